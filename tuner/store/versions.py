"""Schedules: versions whose content never changes, one in force and one proposed per pool."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, insert, select, update

from tuner._exceptions import StoreError
from tuner.fleet import Schedule
from tuner.store.codec import number, to_json, words
from tuner.store.database import refuse
from tuner.store.records import ScheduleRecord
from tuner.store.tables import fits
from tuner.store.tables import schedules as table

if TYPE_CHECKING:
    from sqlalchemy import Row, Select
    from sqlalchemy.engine import Connection

PROPOSED, ACTIVE, SUPERSEDED = "proposed", "active", "superseded"
CITED = 3
"""``fits.keep`` of what a schedule follows from: never deleted."""


def propose_schedule(
    connection: Connection,
    pool: str,
    schedule: Schedule,
    state: str,
    why: str,
    fit_ids: tuple[int, ...],
    now: float,
) -> ScheduleRecord:
    """Save a schedule in a state; see :meth:`tuner.store.Store.propose_schedule`."""
    if state not in (PROPOSED, ACTIVE):
        raise refuse(f"schedule of {pool}: state {state!r} is not proposed or active")
    content = to_json(schedule.as_lists(), f"schedule of {pool}")
    open_rows = {
        row.state: row
        for row in connection.execute(
            select(table).where(table.c.pool == pool, table.c.state.in_((PROPOSED, ACTIVE)))
        )
    }
    active, proposed = open_rows.get(ACTIVE), open_rows.get(PROPOSED)
    if active is not None and active.content == content:
        if proposed is not None:
            _move(connection, proposed.id, SUPERSEDED, now)
        return _record(active)
    if proposed is not None and proposed.content == content:
        if state == PROPOSED:
            return _record(proposed)
        if active is not None:
            _move(connection, active.id, SUPERSEDED, now)
        _move(connection, proposed.id, ACTIVE, now)
        return _by_id(connection, proposed.id)
    for row in (proposed, active if state == ACTIVE else None):
        if row is not None:
            _move(connection, row.id, SUPERSEDED, now)
    last = connection.scalar(select(func.max(table.c.number)).where(table.c.pool == pool))
    added = connection.execute(
        insert(table).values(
            pool=words(pool, "pool"),
            number=(last or 0) + 1,
            version=schedule.version,
            content=content,
            why=words(why, "why"),
            fit_ids=to_json(list(fit_ids), "fit_ids"),
            created_at=number(now, "now"),
            state=state,
            state_since=now,
        )
    )
    if fit_ids:
        connection.execute(update(fits).where(fits.c.id.in_(fit_ids)).values(keep=CITED))
    assert added.inserted_primary_key is not None
    return _by_id(connection, added.inserted_primary_key[0])


def _move(connection: Connection, number_: int, state: str, now: float) -> None:
    """Give a version another state."""
    connection.execute(update(table).where(table.c.id == number_).values(state=state, state_since=now))


def _by_id(connection: Connection, number_: int) -> ScheduleRecord:
    return _record(connection.execute(select(table).where(table.c.id == number_)).one())


def _record(row: Row[Any]) -> ScheduleRecord:
    """Return a row as a value, after its content was held against its hash."""
    schedule = Schedule.from_ranges(json.loads(row.content))
    if schedule.version != row.version:
        raise StoreError(
            f"schedule {row.number} of {row.pool}: its content does not hash to its version {row.version}: "
            "it was changed behind our back, restore a backup"
        )
    return ScheduleRecord(
        pool=row.pool,
        version=row.version,
        number=row.number,
        state=row.state,
        schedule=schedule,
        created_at=row.created_at,
        why=row.why,
        fit_ids=tuple(json.loads(row.fit_ids)),
        state_since=row.state_since,
    )


def schedules(connection: Connection, pool: str | None, limit: int) -> list[ScheduleRecord]:
    """Return versions, newest first."""
    query: Select[Any] = select(table).order_by(table.c.id.desc()).limit(limit)
    if pool is not None:
        query = query.where(table.c.pool == pool)
    return [_record(row) for row in connection.execute(query)]


def active_schedule(connection: Connection, pool: str) -> ScheduleRecord | None:
    """Return the version in force."""
    row = connection.execute(select(table).where(table.c.pool == pool, table.c.state == ACTIVE)).first()
    return None if row is None else _record(row)
