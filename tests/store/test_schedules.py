"""Versions of schedules: numbered, hashed, never changed, one in force."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from tests.store.samples import OTHER_SCHEDULE, SCHEDULE, T0
from tuner._exceptions import StoreError
from tuner.store import FitRecord, ScheduleRecord, open_store
from tuner.store.tables import metadata

if TYPE_CHECKING:
    from tuner.fleet import Schedule
    from tuner.store import Store


def propose(
    store: Store, schedule: Schedule, state: str = "proposed", now: float = T0, pool: str = "chat"
) -> ScheduleRecord:
    """Save a schedule."""
    return store.propose_schedule(pool, schedule, state=state, why="goodput", now=now, fence=0)


def test_a_version_is_numbered_and_hashed(store: Store) -> None:
    """Numbers count per pool, the version is the content's own hash, and what is read is what was saved."""
    first = propose(store, SCHEDULE)
    assert first == ScheduleRecord(
        pool="chat",
        version=SCHEDULE.version,
        number=1,
        state="proposed",
        schedule=SCHEDULE,
        created_at=T0,
        why="goodput",
        fit_ids=(),
        state_since=T0,
    )
    second = propose(store, OTHER_SCHEDULE, now=T0 + 60)
    assert (second.number, second.version) == (2, OTHER_SCHEDULE.version)
    assert propose(store, SCHEDULE, pool="code").number == 1
    assert [each.number for each in store.schedules("chat")] == [2, 1]
    assert len(store.schedules()) == 3
    assert store.schedules(limit=1)[0].pool == "code"


def test_the_same_proposal_is_one_version(store: Store) -> None:
    """A cycle that comes to the same table each minute leaves one row."""
    first = propose(store, SCHEDULE)
    assert propose(store, SCHEDULE, now=T0 + 60) == first
    assert len(store.schedules()) == 1


def test_one_proposal_is_open(store: Store) -> None:
    """A new proposal supersedes the one before."""
    propose(store, SCHEDULE)
    propose(store, OTHER_SCHEDULE, now=T0 + 60)
    assert [(each.state, each.state_since) for each in store.schedules()] == [
        ("proposed", T0 + 60),
        ("superseded", T0 + 60),
    ]


def test_a_proposal_becomes_the_version_in_force(store: Store) -> None:
    """Taking up a proposal keeps its number; the version before is superseded."""
    assert store.active_schedule("chat") is None
    old = propose(store, OTHER_SCHEDULE, "active")
    proposed = propose(store, SCHEDULE, now=T0 + 60)
    assert store.active_schedule("chat") == old
    active = propose(store, SCHEDULE, "active", now=T0 + 120)
    assert (active.number, active.state, active.created_at) == (proposed.number, "active", T0 + 60)
    assert store.active_schedule("chat") == active
    assert [each.state for each in store.schedules()] == ["active", "superseded"]
    assert propose(store, SCHEDULE, "active", now=T0 + 180) == active


def test_a_proposal_of_what_is_in_force_withdraws_the_open_one(store: Store) -> None:
    """When the plan comes back to what runs, nothing is left to decide."""
    active = propose(store, SCHEDULE, "active")
    propose(store, OTHER_SCHEDULE, now=T0 + 60)
    assert propose(store, SCHEDULE, now=T0 + 120) == active
    assert [each.state for each in store.schedules()] == ["superseded", "active"]


def test_going_back_is_a_new_version_of_old_content(store: Store) -> None:
    """A rollback gets a number of its own and the hash of before."""
    for number, schedule in enumerate((SCHEDULE, OTHER_SCHEDULE, SCHEDULE), start=1):
        assert propose(store, schedule, "active", now=T0 + number).number == number
    versions = [each.version for each in store.schedules()]
    assert versions[0] == versions[2] != versions[1]


@pytest.mark.parametrize("state", ["superseded", "approved", ""])
def test_other_states_are_not_asked_for(store: Store, state: str) -> None:
    """A version is superseded by another, not by wish."""
    with pytest.raises(StoreError, match="is not proposed or active"):
        propose(store, SCHEDULE, state)


@pytest.mark.parametrize(
    "statement",
    [
        "update schedules set content = '[[1,64,0]]'",
        "update schedules set version = 'aaaaaaaaaaaa'",
        "update schedules set number = 7",
        "update schedules set pool = 'code'",
        "update schedules set why = 'because'",
        "update schedules set fit_ids = '[7]'",
        "update schedules set created_at = 0",
        "update schedules set state = 'superseded', content = '[]'",
        "delete from schedules",
        "update events set why = 'because'",
        "update events set actor = 'nobody' where id = 1",
        "delete from events",
    ],
)
def test_the_database_itself_refuses_to_change_history(store: Store, statement: str) -> None:
    """Whoever connects, with whatever tool: content of versions and the audit trail cannot be changed."""
    version = propose(store, SCHEDULE, "active")
    store.add_event("me", "push", {"pool": "chat"}, now=T0, fence=0)
    events = store.events()
    with pytest.raises(StoreError, match="refused"):
        store._database.write(lambda connection: connection.execute(text(statement)), fence=0)
    assert (store.schedules(), store.events()) == ([version], events)


def test_postgresql_refuses_to_empty_the_tables(postgres_url: str) -> None:
    """TRUNCATE goes past row triggers, so it has its own."""
    with closing(open_store(postgres_url)) as store:
        store.migrate()
        for table in ("schedules", "events"):
            with pytest.raises(StoreError, match="refused"):
                store._database.write(lambda c, t=table: c.execute(text(f"truncate {t}")), fence=0)  # type: ignore[misc]  # binds the loop


def test_one_version_is_in_force_whatever_is_written(store: Store) -> None:
    """The database refuses a second active or proposed row of a pool."""
    propose(store, SCHEDULE, "active")
    propose(store, OTHER_SCHEDULE)
    for state in ("active", "proposed"):
        rival = metadata.tables["schedules"].insert().values(
            pool="chat", number=9, version="v", content="[]", why="", fit_ids="[]", created_at=T0,
            state=state, state_since=T0,
        )  # fmt: skip
        with pytest.raises(StoreError, match="contradicts"):
            store._database.write(lambda connection, row=rival: connection.execute(row), fence=0)  # type: ignore[misc]  # binds the loop


def test_content_that_does_not_hash_to_its_version_is_not_used(store: Store) -> None:
    """A row written past the code, with content of another version, is refused when it is read."""
    forged = metadata.tables["schedules"].insert().values(
        pool="chat", number=1, version=SCHEDULE.version, content="[[1,64,7]]", why="", fit_ids="[]",
        created_at=T0, state="active", state_since=T0,
    )  # fmt: skip
    store._database.write(lambda connection: connection.execute(forged), fence=0)
    with pytest.raises(StoreError, match="does not hash to its version"):
        store.active_schedule("chat")


def test_a_schedule_keeps_the_fits_that_it_follows_from(store: Store) -> None:
    """Fits are thinned out with age, but not those that a version cites."""
    fits = [FitRecord("chat", "acceptance", "direct", T0, T0 + 60, 4, {"alpha": 0.8})]
    ids = [store.save_decision(fits, now=T0 + 60 * minute, fence=0)[0] for minute in range(5)]
    cited = store.propose_schedule(
        "chat", SCHEDULE, state="proposed", why="", fit_ids=[ids[3]], now=T0 + 300, fence=0
    )
    assert cited.fit_ids == (ids[3],)
    deleted = store.retain(T0 + 10**9, 1.0, 2.0, 3.0, fence=0)
    assert deleted.fits == 4
    assert [each.id for each in store.latest_fits("chat")] == [ids[3]]
