"""Forgetting: each tier for its time, and never what the next tier has not taken yet."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sqlalchemy import delete, func, select

from tuner._exceptions import StoreError
from tuner.store.names import LAST_START_STEP
from tuner.store.records import Deleted
from tuner.store.tables import findings, fits, job_runs, series, stale_buckets
from tuner.store.windows import BY_HOUR, BY_MINUTE, HOUR, MINUTE, RAW, Tier, bucket_of, tier_states, touch

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from tuner.store.database import Database

SLICES = {"raw": 10 * MINUTE, "minute": 6 * HOUR, "hour": 10 * 24 * HOUR}
"""Time deleted per transaction: 40 000, 360 000 and 240 000 rows of 1 000 engines, so that the lock is held
for about a second after a long pause. A regular run needs one each."""


def retain(database: Database, now: float, raw: float, minute: float, hour: float, *, fence: int) -> Deleted:
    """Delete what is older than it has to be kept.

    Args:
        database: where everything is.
        now: unix seconds.
        raw: seconds that windows are kept as observed.
        minute: seconds that they are kept by minute; fits that are the first of their hour too.
        hour: seconds that they are kept by hour; closed findings and runs of jobs too.
        fence: of the lease.

    Raises:
        FencedError: another process has the lead.
        StoreError: the ages do not rise, or the database refuses.
    """
    if not 0 < raw <= minute <= hour:
        raise StoreError(
            f"retention {raw:g} s, {minute:g} s, {hour:g} s: must rise from raw over minute to hour"
        )
    deleted = {
        tier.name: _trim(database, tier, finer, now - age, fence)
        for tier, finer, age in ((RAW, None, raw), (BY_MINUTE, RAW, minute), (BY_HOUR, BY_MINUTE, hour))
    }

    def others(connection: Connection) -> tuple[int, int, int, int]:
        old_fits = (fits.c.keep <= 2) & (fits.c.created_at < now - hour)  # noqa: PLR2004 - see tables.fits
        old_fits |= (fits.c.keep <= 1) & (fits.c.created_at < now - minute)
        old_fits |= (fits.c.keep == 0) & (fits.c.created_at < now - raw)
        closed = findings.c.resolved_at < now - hour
        # A series whose last window began before the oldest hour has no row left in any tier.
        horizon = min(tier_states(connection)[tier.name].kept_from for tier in (RAW, BY_MINUTE, BY_HOUR))
        gone = series.c.last_start < horizon - LAST_START_STEP if math.isfinite(horizon) else series.c.id < 0
        return (
            connection.execute(delete(fits).where(old_fits)).rowcount,
            connection.execute(delete(findings).where(closed)).rowcount,
            connection.execute(delete(job_runs).where(job_runs.c.period_start < now - hour)).rowcount,
            connection.execute(delete(series).where(gone)).rowcount,
        )

    return Deleted(deleted["raw"], deleted["minute"], deleted["hour"], *database.write(others, fence=fence))


def _trim(database: Database, tier: Tier, finer: Tier | None, before: float, fence: int) -> int:
    """Delete rows of one tier that begin before a moment, slice by slice."""

    def cut(connection: Connection) -> tuple[int, bool]:
        states = tier_states(connection)
        state = states[tier.name]
        step = MINUTE if tier is RAW else HOUR
        limit = bucket_of(before, step)
        if tier is not BY_HOUR:
            waiting = connection.scalar(
                select(func.min(stale_buckets.c.bucket)).where(stale_buckets.c.tier == tier.name)
            )
            limit = min(limit, state.rolled_up_to, math.inf if waiting is None else waiting)
        if finer is not None:
            # A coarse row must not reach into the time that finer rows are read for.
            limit = min(limit, bucket_of(states[finer.name].kept_from, HOUR))
        if limit <= state.kept_from:
            return 0, True
        table = tier.table
        first = connection.scalar(select(func.min(table.c.start_time)))
        end = limit if first is None else min(limit, bucket_of(first, step) + SLICES[tier.name])
        count = connection.execute(delete(table).where(table.c.start_time < end)).rowcount
        if end > state.kept_from:
            touch(connection, tier, kept_from=end)
        return count, end >= limit

    count, finished = 0, False
    while not finished:
        some, finished = database.write(cut, fence=fence)
        count += some
    return count
