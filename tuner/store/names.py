"""Series and fingerprints by number: a window names its engine and set-up in a few bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from tuner.store.codec import decode_fingerprint, encode_fingerprint, words
from tuner.store.tables import fingerprints, series

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import Table
    from sqlalchemy.engine import Connection

    from tuner.fleet import Fingerprint, Window

SeriesKey = tuple[str, str, str]
"""Pool, engine, route."""

LAST_START_STEP = 3600.0
"""``series.last_start`` moves by an hour at a time, so that a round does not write every series again."""
LOOKUP = 300
"""Keys asked for in one statement; three parameters each, PostgreSQL takes 65 535, SQLite 32 766."""


def insert_into(connection: Connection, table: Table) -> Any:  # noqa: ANN401 - two classes without a common one
    """Return an INSERT that knows ON CONFLICT, in the dialect of the connection."""
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    return insert(table)


def series_key(window: Window) -> SeriesKey:
    """Return the series that a window belongs to."""
    return window.pool, window.engine, window.route


def number_series(connection: Connection, windows: Iterable[Window]) -> dict[SeriesKey, int]:
    """Return the numbers of the series of ``windows``, making those that are new.

    Looked up at each call, in 5 ms for 1 000 engines: numbers remembered between calls would be wrong after
    a backup was restored.
    """
    newest: dict[SeriesKey, float] = {}
    for window in windows:
        key = series_key(window)
        for text in key if key not in newest else ():
            words(text, "name of a pool, engine or route")
        newest[key] = max(newest.get(key, window.start), window.start)
    found = _find_series(connection, list(newest))
    behind = [
        {"pool": key[0], "engine": key[1], "route": key[2], "last_start": start}
        for key, start in newest.items()
        if key not in found or start > found[key][1] + LAST_START_STEP
    ]
    if behind:
        insert = insert_into(connection, series)
        connection.execute(
            insert.on_conflict_do_update(
                index_elements=["pool", "engine", "route"], set_={"last_start": insert.excluded.last_start}
            ),
            behind,
        )
        found |= _find_series(connection, [key for key in newest if key not in found])
    return {key: number for key, (number, _) in found.items()}


def _find_series(connection: Connection, keys: Sequence[SeriesKey]) -> dict[SeriesKey, tuple[int, float]]:
    """Return number and ``last_start`` of the series that exist."""
    found: dict[SeriesKey, tuple[int, float]] = {}
    for begin in range(0, len(keys), LOOKUP):
        rows = connection.execute(
            select(series.c.pool, series.c.engine, series.c.route, series.c.id, series.c.last_start).where(
                tuple_(series.c.pool, series.c.engine, series.c.route).in_(keys[begin : begin + LOOKUP])
            )
        )
        found.update({(pool, engine, route): (number, last) for pool, engine, route, number, last in rows})
    return found


def number_fingerprints(connection: Connection, wanted: Iterable[Fingerprint]) -> dict[Fingerprint, int]:
    """Return the numbers of fingerprints, making those that are new."""
    contents = {encode_fingerprint(each): each for each in set(wanted)}
    found = _find_fingerprints(connection, contents)
    new = [content for content, each in contents.items() if each not in found]
    if new:
        connection.execute(
            insert_into(connection, fingerprints).on_conflict_do_nothing(index_elements=["content"]),
            [{"content": content} for content in new],
        )
        found |= _find_fingerprints(connection, {content: contents[content] for content in new})
    return found


def _find_fingerprints(connection: Connection, contents: Mapping[str, Fingerprint]) -> dict[Fingerprint, int]:
    """Return the numbers of the fingerprints that exist."""
    texts = list(contents)
    found: dict[Fingerprint, int] = {}
    for begin in range(0, len(texts), LOOKUP):
        rows = connection.execute(
            select(fingerprints.c.content, fingerprints.c.id).where(
                fingerprints.c.content.in_(texts[begin : begin + LOOKUP])
            )
        )
        found.update({contents[content]: number for content, number in rows})
    return found


def all_fingerprints(connection: Connection) -> dict[int, Fingerprint]:
    """Return every fingerprint by number: a handful, one per build and set-up that ever ran."""
    rows: Sequence[Any] = connection.execute(select(fingerprints.c.id, fingerprints.c.content)).all()
    return {number: decode_fingerprint(content) for number, content in rows}
