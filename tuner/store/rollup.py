"""Merging windows by minute and minutes by hour: each window in exactly one row of each tier.

A bucket is always made anew from all rows of the finer tier, so that doing it twice changes nothing. What is
read and computed is computed outside the transaction that writes, which therefore is short; a revision tells
that the rows have not changed in between.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import delete, func, insert, select

from tuner.store.codec import WINDOW_COLUMNS, decode_window, encode_window
from tuner.store.merging import Part, merge_kinds
from tuner.store.names import all_fingerprints
from tuner.store.records import RollUp
from tuner.store.tables import series, stale_buckets
from tuner.store.windows import (
    BY_HOUR,
    BY_MINUTE,
    HOUR,
    MINUTE,
    RAW,
    Tier,
    bucket_of,
    mark_stale,
    tier_states,
    touch,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy.engine import Connection

    from tuner.store.database import Database

SETTLE_SECONDS = 120.0
"""A minute is merged when it has been over for this long: windows come some scrape intervals late. Those that
come later still cost a second merge of their minute, nothing else."""
ROWS_AT_ONCE = 8000
"""Rows merged per transaction, but whole buckets: two minutes of 1 000 engines, half a second."""
STALE_AT_ONCE = 2000
"""Series of one late bucket per transaction."""
PAGE = 2000
"""Rows fetched at a time: 3 MB."""
TRIES = 5
"""Attempts when windows arrive while a bucket is computed, which takes less than the time between them."""


class Job(NamedTuple):
    """Rows to merge: from ``tier``, beginning within ``begin..end``, of some series or of all."""

    tier: Tier
    into: Tier
    begin: float
    end: float
    series: tuple[int, ...] | None


class Merged(NamedTuple):
    """Rows of the coarser tier, ready to be written."""

    revision: int
    """Of the finer tier when it was read."""
    read: int
    rows: list[dict[str, Any]]


def roll_up(database: Database, now: float, *, fence: int) -> RollUp:
    """Merge all that is over by ``now``.

    Args:
        database: where the windows are.
        now: unix seconds.
        fence: of the lease.

    Raises:
        FencedError: another process has the lead; what was done before stays, and is whole.
        StoreError: the same, and the rest is done at the next call.
    """
    done = RollUp()
    for tier, into in ((RAW, BY_MINUTE), (BY_MINUTE, BY_HOUR)):
        for find in (_late, _next):
            for job in _jobs(database, partial(find, tier=tier, into=into, now=now)):
                done = _count(done, job, _run(database, job, fence))
    return done


def _jobs(database: Database, find: Callable[[Connection], Job | None]) -> Iterator[Job]:
    """Yield jobs until there is none; each must have been done when the next is asked for."""
    while (job := database.read(find)) is not None:
        yield job


def _count(done: RollUp, job: Job, merged: Merged) -> RollUp:
    minutes = len(merged.rows) if job.into is BY_MINUTE else 0
    return RollUp(
        done.read + merged.read,
        done.minutes + minutes,
        done.hours + len(merged.rows) - minutes,
        done.late + (job.series is not None),
    )


def _cut(connection: Connection, tier: Tier, now: float) -> float:
    """Return up to where rows of ``tier`` are complete."""
    if tier is RAW:
        return bucket_of(now - SETTLE_SECONDS, MINUTE)
    up_to = tier_states(connection)["raw"].rolled_up_to
    return bucket_of(up_to, HOUR)


def _next(connection: Connection, *, tier: Tier, into: Tier, now: float) -> Job | None:
    """Return the next buckets that have not been rolled up, ``None`` when all that are over have been."""
    state = tier_states(connection)[tier.name]
    cut = _cut(connection, tier, now)
    table = tier.table
    query = select(func.min(table.c.start_time))
    if math.isfinite(state.rolled_up_to):
        query = query.where(table.c.start_time >= state.rolled_up_to)
    first = connection.scalar(query)
    if first is None or bucket_of(first, tier.bucket) >= cut:
        # Nothing to merge; the mark still moves, so that what comes later from before it counts as late.
        if math.isfinite(cut) and math.isfinite(state.rolled_up_to) and cut > state.rolled_up_to:
            return Job(tier, into, cut, cut, None)
        return None
    begin = bucket_of(first, tier.bucket)
    beyond = connection.scalar(
        select(table.c.start_time)
        .where(table.c.start_time >= begin)
        .order_by(table.c.start_time)
        .limit(1)
        .offset(ROWS_AT_ONCE)
    )
    end = cut if beyond is None else min(cut, max(begin + tier.bucket, bucket_of(beyond, tier.bucket)))
    return Job(tier, into, begin, end, None)


def _late(connection: Connection, *, tier: Tier, into: Tier, now: float) -> Job | None:
    """Return a bucket that got windows after it had been rolled up."""
    cut = _cut(connection, tier, now)
    if not math.isfinite(cut):
        return None
    of_tier = stale_buckets.c.tier == tier.name
    bucket = connection.scalar(select(func.min(stale_buckets.c.bucket)).where(of_tier))
    if bucket is None or bucket + tier.bucket > cut:
        return None
    numbers = connection.scalars(
        select(stale_buckets.c.series_id)
        .where(of_tier, stale_buckets.c.bucket == bucket)
        .order_by(stale_buckets.c.series_id)
        .limit(STALE_AT_ONCE)
    )
    return Job(tier, into, bucket, bucket + tier.bucket, tuple(numbers))


def _run(database: Database, job: Job, fence: int) -> Merged:
    """Merge and write; again from the start if rows changed in between."""
    for _ in range(TRIES):
        merged = database.read(partial(_merge, job=job))
        if database.write(partial(_write, job=job, merged=merged), fence=fence):
            return merged
    # The writer never pauses: compute under the lock that it waits for.
    return database.write(partial(_merge_and_write, job=job), fence=fence)


def _merge_and_write(connection: Connection, job: Job) -> Merged:
    merged = _merge(connection, job)
    _write(connection, job, merged)
    return merged


def _merge(connection: Connection, job: Job) -> Merged:
    """Return what the rows of a job merge into."""
    revision = tier_states(connection)[job.tier.name].revision
    fingerprints = all_fingerprints(connection)
    numbers = {fingerprint: number for number, fingerprint in fingerprints.items()}
    names = [*WINDOW_COLUMNS, *([] if job.tier is RAW else ["windows", "until_time"])]
    table = job.tier.table
    query = (
        select(*(table.c[name] for name in names), series.c.pool, series.c.engine, series.c.route)
        .join_from(table, series, table.c.series_id == series.c.id)
        .where(table.c.start_time >= job.begin, table.c.start_time < job.end)
        .order_by(table.c.series_id, table.c.start_time)
        .execution_options(yield_per=PAGE)
    )
    if job.series is not None:
        query = query.where(table.c.series_id.in_(job.series))
    read, rows = 0, []
    width = len(WINDOW_COLUMNS)

    def parts(group: Iterator[Sequence[Any]]) -> Iterator[Part]:
        nonlocal read
        for row in group:
            read += 1
            pool, engine, route = row[-3:]
            window = decode_window(row, pool, engine, route, fingerprints[row[5]])
            yield Part(window, 1, window.end) if job.tier is RAW else Part(window, *row[width : width + 2])

    def place(row: Sequence[Any]) -> tuple[int, float]:
        return row[1], bucket_of(row[0], job.tier.bucket)

    for (series_id, _), group in groupby(connection.execute(query), key=place):
        for window, windows, until in merge_kinds(parts(group)):
            row = encode_window(window, series_id, numbers[window.fingerprint])
            rows.append({**row, "windows": windows, "until_time": until})
    return Merged(revision, read, rows)


def _write(connection: Connection, job: Job, merged: Merged) -> bool:
    """Replace the buckets in the coarser tier and move the mark; false if the rows have changed since."""
    states = tier_states(connection)
    if states[job.tier.name].revision != merged.revision:
        return False
    table = job.into.table
    within = (table.c.start_time >= job.begin) & (table.c.start_time < job.end)
    if job.series is None:
        connection.execute(delete(table).where(within))
        if job.end > states[job.tier.name].rolled_up_to:
            touch(connection, job.tier, rolled_up_to=job.end)
    else:
        connection.execute(delete(table).where(within, table.c.series_id.in_(job.series)))
        connection.execute(
            delete(stale_buckets).where(
                stale_buckets.c.tier == job.tier.name,
                stale_buckets.c.bucket == job.begin,
                stale_buckets.c.series_id.in_(job.series),
            )
        )
    if merged.rows:
        connection.execute(insert(table), merged.rows)
    touch(connection, job.into)
    mark_stale(
        connection,
        job.into,
        {
            (bucket_of(row["start_time"], job.into.bucket), row["series_id"])
            for row in merged.rows
            if job.into is not BY_HOUR and row["start_time"] < states[job.into.name].rolled_up_to
        },
    )
    return True
