"""Series and fingerprints by number: a window names its engine and set-up in a few bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from tuner.store.codec import decode_fingerprint, encode_fingerprint, words
from tuner.store.tables import fingerprints, series

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Table
    from sqlalchemy.engine import Connection

    from tuner.fleet import Fingerprint, Window

SeriesKey = tuple[str, str, str]
"""Pool, engine, route."""

LOOKUP = 300
"""Keys asked for in one statement; three parameters each, PostgreSQL takes 65 535, SQLite 32 766."""


def insert_into(connection: Connection, table: Table) -> Any:  # noqa: ANN401 - two classes without a common one
    """Return an INSERT that knows ON CONFLICT, in the dialect of the connection."""
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    return insert(table)


def series_key(window: Window) -> SeriesKey:
    """Return the series that a window belongs to."""
    return window.pool, window.engine, window.route


def number_series(
    connection: Connection, windows: Iterable[Window], known: dict[SeriesKey, int]
) -> dict[SeriesKey, int]:
    """Return numbers of the series of ``windows`` that ``known`` lacks, making those that are new."""
    firsts: dict[SeriesKey, float] = {}
    for window in windows:
        key = series_key(window)
        if key not in known:
            firsts[key] = max(firsts.get(key, window.start), window.start)
    if not firsts:
        return {}
    insert = insert_into(connection, series)
    later = insert.excluded.last_start > series.c.last_start
    connection.execute(
        insert.on_conflict_do_update(
            index_elements=["pool", "engine", "route"],
            set_={"last_start": insert.excluded.last_start},
            where=later,
        ),
        [
            {
                "pool": words(pool, "pool"),
                "engine": words(engine, "engine"),
                "route": words(route, "route"),
                "last_start": start,
            }
            for (pool, engine, route), start in firsts.items()
        ],
    )
    keys = list(firsts)
    found: dict[SeriesKey, int] = {}
    for begin in range(0, len(keys), LOOKUP):
        rows = connection.execute(
            select(series.c.pool, series.c.engine, series.c.route, series.c.id).where(
                tuple_(series.c.pool, series.c.engine, series.c.route).in_(keys[begin : begin + LOOKUP])
            )
        )
        found.update({(pool, engine, route): number for pool, engine, route, number in rows})
    return found


def number_fingerprints(
    connection: Connection, wanted: Iterable[Fingerprint], known: dict[Fingerprint, int]
) -> dict[Fingerprint, int]:
    """Return numbers of the fingerprints that ``known`` lacks, making those that are new."""
    contents = {encode_fingerprint(each): each for each in set(wanted) if each not in known}
    if not contents:
        return {}
    connection.execute(
        insert_into(connection, fingerprints).on_conflict_do_nothing(index_elements=["content"]),
        [{"content": content} for content in contents],
    )
    found: dict[Fingerprint, int] = {}
    texts = list(contents)
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
