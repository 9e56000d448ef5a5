"""Windows in the database: taken once each, read back from the finest tier that still has them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import select, update

from tuner.store.codec import WINDOW_COLUMNS, decode_window, encode_window
from tuner.store.names import (
    all_fingerprints,
    insert_into,
    number_fingerprints,
    number_series,
    series_key,
)
from tuner.store.tables import series, stale_buckets, tiers, windows_hour, windows_minute, windows_raw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Table
    from sqlalchemy.engine import Connection

    from tuner.fleet import Fingerprint, Window

MINUTE = 60.0
HOUR = 3600.0


FIRST_STRETCH = 600.0
STRETCH_GROWTH = 1.5
"""Seconds of the newest stretch that is read after a start, and how much longer each before it is: 14 of
them reach back two days, so that 28 000 windows are read at most where 4 000 are held, in about a second."""


@dataclass(frozen=True, slots=True)
class Tier:
    """One resolution of windows."""

    name: str
    table: Table
    bucket: float
    """Seconds of the buckets that its rows are merged into, in the next tier."""


RAW = Tier("raw", windows_raw, MINUTE)
BY_MINUTE = Tier("minute", windows_minute, HOUR)
BY_HOUR = Tier("hour", windows_hour, math.inf)
TIERS = (RAW, BY_MINUTE, BY_HOUR)
"""From the finest to the coarsest."""


@dataclass(frozen=True, slots=True)
class TierState:
    """How far a tier has come; -inf: not begun."""

    rolled_up_to: float
    kept_from: float
    revision: int


def tier_states(connection: Connection) -> dict[str, TierState]:
    """Read all tiers."""
    rows = connection.execute(select(tiers.c.name, tiers.c.rolled_up_to, tiers.c.kept_from, tiers.c.revision))
    return {
        name: TierState(
            -math.inf if rolled is None else rolled, -math.inf if kept is None else kept, revision
        )
        for name, rolled, kept, revision in rows
    }


def touch(connection: Connection, tier: Tier, **changes: float) -> None:
    """Count a change of the tier's rows, and write what else moved."""
    connection.execute(
        update(tiers).where(tiers.c.name == tier.name).values(revision=tiers.c.revision + 1, **changes)
    )


def bucket_of(start: float, seconds: float) -> float:
    """Return the start of the bucket that a moment belongs to; of -inf, -inf."""
    return math.floor(start / seconds) * seconds if math.isfinite(start) else start


def add(connection: Connection, windows: Sequence[Window]) -> int:
    """Add windows that are not there yet, by pool, engine, route and start; return how many."""
    series_ids = number_series(connection, windows)
    fingerprint_ids = number_fingerprints(connection, (window.fingerprint for window in windows))
    rows = [
        encode_window(window, series_ids[series_key(window)], fingerprint_ids[window.fingerprint])
        for window in windows
    ]
    states = tier_states(connection)
    horizon = states["raw"].kept_from
    fresh = [row for row in rows if row["start_time"] >= horizon]
    count = 0
    if fresh:
        result = connection.execute(
            insert_into(connection, windows_raw).on_conflict_do_nothing(
                index_elements=["start_time", "series_id"]
            ),
            fresh,
            execution_options={"preserve_rowcount": True},
        )
        count = int(result.rowcount)
        if count:
            touch(connection, RAW)
            _mark(connection, RAW, fresh, states["raw"].rolled_up_to)
    for row in rows:
        if row["start_time"] < horizon:
            count += _add_late(connection, row, states)
    return count


def _mark(connection: Connection, tier: Tier, rows: Sequence[dict[str, Any]], rolled_up_to: float) -> None:
    """Note buckets that were rolled up before these rows came."""
    buckets = {
        (bucket_of(row["start_time"], tier.bucket), row["series_id"])
        for row in rows
        if row["start_time"] < rolled_up_to
    }
    mark_stale(connection, tier, buckets)


def mark_stale(connection: Connection, tier: Tier, buckets: set[tuple[float, int]]) -> None:
    """Note (bucket, series) that have to be rolled up again."""
    if buckets:
        connection.execute(
            insert_into(connection, stale_buckets).on_conflict_do_nothing(),
            [{"tier": tier.name, "bucket": at, "series_id": number} for at, number in sorted(buckets)],
        )


def _add_late(connection: Connection, row: dict[str, Any], states: dict[str, TierState]) -> int:
    """Add a window from before the raw horizon to a coarser tier, unless something covers its time there.

    Its own row may have been merged and deleted: then a merged row of its series spans its start.
    """
    tier = BY_MINUTE if row["start_time"] >= states["minute"].kept_from else BY_HOUR
    if tier is BY_HOUR and row["start_time"] < states["hour"].kept_from:
        return 0
    table = tier.table
    covered = connection.execute(
        select(table.c.start_time)
        .where(
            table.c.series_id == row["series_id"],
            table.c.start_time > row["start_time"] - 2 * HOUR,
            table.c.start_time < row["end_time"],
            (table.c.until_time > row["start_time"]) | (table.c.start_time >= row["start_time"]),
        )
        .limit(1)
    ).first()
    if covered is not None:
        return 0
    result = connection.execute(
        insert_into(connection, table).on_conflict_do_nothing(),
        [{**row, "windows": 1, "until_time": row["end_time"]}],
        execution_options={"preserve_rowcount": True},
    )
    if result.rowcount:
        touch(connection, tier)
        _mark(connection, tier, [row], states[tier.name].rolled_up_to)
    return int(result.rowcount)


def recent(
    connection: Connection, pool: str, since: float, limit: int, until: float = math.inf
) -> list[Window]:
    """Return the newest ``limit`` windows of a pool that begin in ``[since, until)``, oldest first.

    Each piece of time comes from the finest tier that still has it, so nothing comes twice.
    """
    states = tier_states(connection)
    known = all_fingerprints(connection)
    found: list[Window] = []
    before = until
    for tier in TIERS:
        kept_from = states[tier.name].kept_from
        if limit > len(found) and since < before:
            found += _read(connection, tier, pool, max(since, kept_from), before, limit - len(found), known)
        before = min(before, kept_from)
    return found[::-1]


def spread(connection: Connection, pool: str, since: float, now: float, limit: int) -> list[Window]:
    """Return windows of a pool from all of ``[since, now]``, oldest first: of each stretch the newest.

    The newest ``limit`` of a pool of 24 engines with four routes are nine minutes, of one load. Stretches
    grow into the past, as what is remembered thins out, and half of ``limit`` comes from each.
    """
    found: list[list[Window]] = []
    end, length, until = now, FIRST_STRETCH, math.inf
    while end > since:
        begin = max(end - length, since)
        found.append(recent(connection, pool, begin, max(limit // 2, 1), until))
        end = until = begin
        length *= STRETCH_GROWTH
    return [window for stretch in reversed(found) for window in stretch]


def _read(
    connection: Connection,
    tier: Tier,
    pool: str,
    since: float,
    before: float,
    limit: int,
    known: dict[int, Fingerprint],
) -> list[Window]:
    """Return windows of one tier, newest first."""
    table = tier.table
    query = (
        select(*(table.c[name] for name in WINDOW_COLUMNS), series.c.engine, series.c.route)
        .join_from(table, series, table.c.series_id == series.c.id)
        .where(series.c.pool == pool)
        .order_by(table.c.start_time.desc(), table.c.series_id)
        .limit(limit)
    )
    if math.isfinite(since):
        query = query.where(table.c.start_time >= since)
    if math.isfinite(before):
        query = query.where(table.c.start_time < before)
    return [
        decode_window(row, pool, row[-2], row[-1], known[row[5]]) for row in connection.execute(query).all()
    ]
