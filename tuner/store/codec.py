"""Values ↔ what the tables hold: numbers in columns, lists as JSON text; never NaN, never infinity."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from tuner.fleet import Counts, Fingerprint, Gauges, Window, WindowState
from tuner.store.database import refuse
from tuner.store.tables import COUNT_COLUMNS, GAUGE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

WHOLE_LIMIT = 2.0**53
"""Up to here every whole double is an integer that JSON readers keep exactly."""
BIGGEST_INTEGER = 2**63 - 1

WINDOW_COLUMNS: tuple[str, ...] = (
    *("start_time", "series_id", "end_time", "state", "reason", "fingerprint_id", "draft_lens", "restarts"),
    *COUNT_COLUMNS,
    *("accepted_by_position", "exposed_by_position", "joint"),
    *GAUGE_COLUMNS,
)
"""Columns of a tier of windows in the order in which they are read."""

_FIRST_COUNT = WINDOW_COLUMNS.index(COUNT_COLUMNS[0])
_FIRST_LIST = _FIRST_COUNT + len(COUNT_COLUMNS)
_FIRST_GAUGE = WINDOW_COLUMNS.index(GAUGE_COLUMNS[0])
_FINGERPRINT_FIELDS = frozenset(field.name for field in fields(Fingerprint))


def number(value: float, where: str) -> float:
    """Return ``value`` if it is finite.

    Raises:
        StoreError: NaN or infinite.
    """
    if not math.isfinite(value):
        raise refuse(f"{where} is {value}: only finite numbers are stored, mend what made it")
    return float(value)


def words(value: str, where: str) -> str:
    """Return ``value`` if both databases can hold it.

    Raises:
        StoreError: a NUL or half a surrogate pair, which PostgreSQL's UTF-8 refuses.
    """
    if "\x00" in value or not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise refuse(f"{where} is no valid Unicode: {ascii(value)[:60]}") from None
        if "\x00" in value:
            raise refuse(f"{where} has a NUL character: {ascii(value)[:60]}")
    return value


def compact(value: float) -> float | int:
    """Return a whole number as an integer, which is shorter in JSON and equal."""
    return int(value) if value.is_integer() and abs(value) < WHOLE_LIMIT else value


def to_json(document: Mapping[str, Any] | Sequence[Any], where: str) -> str:
    """Return canonical JSON: sorted keys, no spaces.

    Raises:
        StoreError: a number that is not finite, or a value that JSON has no form for.
    """
    try:
        text = json.dumps(
            document, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
        )
    except (ValueError, TypeError) as error:
        raise refuse(f"{where} cannot be stored as JSON: {error}") from None
    return words(text, where)


def encode_fingerprint(fingerprint: Fingerprint) -> str:
    """Return the known fields as canonical JSON."""
    return to_json({name: value for name, value in asdict(fingerprint).items() if value}, "fingerprint")


def decode_fingerprint(content: str) -> Fingerprint:
    """Return what :func:`encode_fingerprint` wrote; fields of a later release are left out."""
    return Fingerprint(
        **{name: value for name, value in json.loads(content).items() if name in _FINGERPRINT_FIELDS}
    )


def encode_window(window: Window, series_id: int, fingerprint_id: int) -> dict[str, Any]:
    """Return the row of ``window``.

    Raises:
        StoreError: a number is not finite, a text cannot be held, or the window ends before it starts.
    """
    where = f"window of {window.pool}/{window.engine} at {window.start}"
    counts, gauges = window.counts, window.gauges
    row: dict[str, Any] = {
        "start_time": number(window.start, f"{where}: start"),
        "series_id": series_id,
        "end_time": number(window.end, f"{where}: end"),
        "state": window.state.value,
        "reason": words(window.reason, f"{where}: reason"),
        "fingerprint_id": fingerprint_id,
        "draft_lens": None if window.draft_lens is None else to_json(sorted(window.draft_lens), where),
        "restarts": window.restarts,
    }
    if window.end < window.start:
        raise refuse(f"{where} ends before it starts, at {window.end}: mend what made it")
    if not -BIGGEST_INTEGER <= window.restarts <= BIGGEST_INTEGER:
        raise refuse(f"{where}: {window.restarts} restarts are not a count")
    if window.weight != 1.0:
        raise refuse(f"{where} stands for {window.weight:g} windows: only windows as observed are stored")
    for name in COUNT_COLUMNS:
        value = getattr(counts, name)
        row[name] = None if value is None else number(value, f"{where}: {name}")
    row["accepted_by_position"] = _list(counts.accepted_by_position, f"{where}: accepted_by_position")
    row["exposed_by_position"] = _list(counts.exposed_by_position, f"{where}: exposed_by_position")
    joint = [
        [drafted, accepted, compact(number(count, f"{where}: joint"))]
        for (drafted, accepted), count in sorted(counts.joint.items())
    ]
    row["joint"] = to_json(joint, where) if joint else None
    for name in GAUGE_COLUMNS:
        value = getattr(gauges, name)
        row[name] = None if value is None else number(value, f"{where}: {name}")
    return row


def _list(values: Iterable[float], where: str) -> str | None:
    """Return numbers as JSON, ``None`` for none of them."""
    numbers = [compact(number(value, where)) for value in values]
    return to_json(numbers, where) if numbers else None


def decode_window(row: Sequence[Any], pool: str, engine: str, route: str, fingerprint: Fingerprint) -> Window:
    """Return the window whose ``WINDOW_COLUMNS`` are the first of ``row``."""
    accepted, exposed, joint = row[_FIRST_LIST:_FIRST_GAUGE]
    counts = dict(zip(COUNT_COLUMNS, row[_FIRST_COUNT:_FIRST_LIST], strict=True))
    return Window(
        pool=pool,
        engine=engine,
        start=row[0],
        end=row[2],
        state=WindowState(row[3]),
        reason=row[4],
        counts=Counts(
            **counts,
            accepted_by_position=_numbers(accepted),
            exposed_by_position=_numbers(exposed),
            joint={(d, a): float(count) for d, a, count in json.loads(joint)} if joint else {},
        ),
        gauges=Gauges(*row[_FIRST_GAUGE : len(WINDOW_COLUMNS)]),
        fingerprint=fingerprint,
        route=route,
        draft_lens=None if row[6] is None else frozenset(json.loads(row[6])),
        restarts=row[7],
    )


def _numbers(content: str | None) -> tuple[float, ...]:
    return tuple(map(float, json.loads(content))) if content else ()
