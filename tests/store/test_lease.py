"""Who leads: by a counter that moves or does not, never by the clocks of two hosts."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.store.processes import child
from tests.store.samples import SCHEDULE, T0, window
from tuner._exceptions import FencedError, StoreError
from tuner.fleet import Finding
from tuner.store import FitRecord, open_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.store.processes import Child
    from tuner.store import Store

TTL = 20.0


def test_a_free_lease_is_taken_at_once(store: Store) -> None:
    """Nobody leads a new database; the first fence is 1, above the 0 of unfenced writes."""
    keeper = store.lease("a", TTL)
    assert keeper.fence is None
    assert keeper.try_acquire(0.0) == 1
    assert keeper.try_acquire(1.0) == 1, "it holds it already"
    assert keeper.renew(2.0)


def test_a_lease_is_not_taken_from_one_who_renews(store: Store) -> None:
    """However long the stand-by waits, and whatever its clock says."""
    leader, standby = store.lease("a", TTL), store.lease("b", TTL)
    leader.try_acquire(5.0)
    for step in range(20):
        assert standby.try_acquire(1e6 + step * TTL * 0.9) is None
        assert leader.renew(6.0 + step)


def test_a_lease_that_stands_still_is_taken_with_a_higher_fence(store: Store) -> None:
    """The stand-by counts ``ttl`` from when it first saw the counter at rest, by its own clock."""
    leader, standby = store.lease("a", TTL), store.lease("b", TTL)
    leader.try_acquire(0.0)
    assert standby.try_acquire(1000.0) is None
    assert standby.try_acquire(1000.0 + TTL - 0.1) is None
    assert standby.try_acquire(1000.0 + TTL) == 2
    assert not leader.renew(1.0)
    assert leader.fence is None
    assert leader.try_acquire(1.0) is None


def _delete_row(store: Store) -> None:
    from sqlalchemy import text

    store._database.write(lambda connection: connection.execute(text("delete from leases")), fence=None)


def test_a_row_that_was_deleted_is_made_anew_with_a_higher_fence(store: Store) -> None:
    """The leader hears that its row is gone, nobody writes, and the next look leads: above its own fence."""
    leader = store.lease("a", TTL)
    for _ in range(3):
        leader.try_acquire(0.0)
        leader.release()
    assert leader.try_acquire(0.0) == 4
    _delete_row(store)
    with pytest.raises(FencedError, match="row of the lease was deleted"):
        store.add_windows([window()], fence=4)
    assert not leader.renew(1.0)
    assert "deleted" in leader.lost
    assert leader.try_acquire(2.0) == 5
    assert leader.renew(3.0)
    assert store.add_windows([window()], fence=5) == 1


def test_a_deleted_row_gives_a_stranger_no_fence_that_was_used(store: Store) -> None:
    """A process that never led counts on from what the newest leader told of in the audit trail."""
    leader, standby = store.lease("a", TTL), store.lease("b", TTL)
    assert standby.try_acquire(0.0) == 1
    standby.release()
    assert leader.try_acquire(0.0) == 2
    store.add_event("tuner", "lead", {}, "", {"fence": 2}, now=T0, fence=2)
    _delete_row(store)
    stranger = store.lease("c", TTL)
    assert stranger.try_acquire(0.0) == 3
    assert leader.try_acquire(0.0) is None
    assert standby.try_acquire(0.0) is None


def test_takeover_is_within_thirty_seconds(store: Store) -> None:
    """With the ttl of 20 s and a look each 5 s, a dead leader is followed after 30 s at most."""
    leader, standby = store.lease("a", TTL), store.lease("b", TTL)
    leader.try_acquire(0.0)
    for moment in (0.0, 5.0, 10.0):
        assert leader.renew(moment)
        assert standby.try_acquire(moment + 4.9) is None
    taken = next(now for now in (14.9 + 5 * step for step in range(1, 10)) if standby.try_acquire(now))
    assert taken - 10.0 <= 30.0


def test_a_lease_that_is_given_up_is_taken_at_once(store: Store) -> None:
    """A clean stop costs no waiting, and the fence still rises."""
    leader, standby = store.lease("a", TTL), store.lease("b", TTL)
    leader.try_acquire(0.0)
    standby.try_acquire(0.0)
    leader.release()
    leader.release()
    assert standby.try_acquire(0.1) == 2
    assert not leader.renew(0.2)


def test_two_of_one_name_are_two(store: Store) -> None:
    """Containers are often called the same and have the same process number; they are told apart."""
    assert store.lease("tuner-0:1", TTL).try_acquire(0.0) == 1
    assert store.lease("tuner-0:1", TTL).try_acquire(0.0) is None


def test_the_holder_knows_when_it_may_have_been_followed(store: Store) -> None:
    """Without a renewal for ``ttl`` it must take itself for a stand-by, whatever the database would say."""
    keeper = store.lease("a", TTL)
    assert keeper.expired(0.0)
    keeper.try_acquire(0.0)
    assert not keeper.expired(TTL - 0.1)
    keeper.renew(TTL - 0.1)
    assert not keeper.expired(TTL + 5)
    assert keeper.expired(2 * TTL)


WRITES: dict[str, Callable[[Store, int], object]] = {
    "add_windows": lambda store, fence: store.add_windows([window()], fence=fence),
    "roll_up": lambda store, fence: store.roll_up(T0 + 3600, fence=fence),
    "retain": lambda store, fence: store.retain(T0, 1.0, 2.0, 3.0, fence=fence),
    "save_decision": lambda store, fence: store.save_decision(
        [FitRecord("chat", "acceptance", "direct", T0, T0 + 60, 4, {})], now=T0, fence=fence
    ),
    "propose_schedule": lambda store, fence: store.propose_schedule(
        "chat", SCHEDULE, state="proposed", why="", now=T0, fence=fence
    ),
    "record_findings": lambda store, fence: store.record_findings(
        [Finding("x", "info", "")], now=T0, fence=fence
    ),
    "add_event": lambda store, fence: store.add_event("a", "b", {}, now=T0, fence=fence),
    "once": lambda store, fence: store.once("job", T0, fence=fence),
}


@pytest.mark.parametrize("name", sorted(WRITES))
def test_every_write_is_fenced(store: Store, name: str) -> None:
    """A fence that is not the current one, lower or made up, is refused, and nothing is written."""
    store.add_windows([window(T0 - 600)], fence=0)
    assert store.lease("a", TTL).try_acquire(0.0) == 1
    for fence in (0, 2, -1):
        with pytest.raises(FencedError, match="stand by") as refused:
            WRITES[name](store, fence)
        assert not refused.value.retryable
    assert store.recent_windows("chat", 0.0, 10) == [window(T0 - 600)]
    for left in (store.latest_fits("chat"), store.schedules(), store.findings(), store.events()):
        assert list(left) == []
    WRITES[name](store, 1)


def test_no_lead_over_a_schema_of_another_release(store: Store) -> None:
    """A replica that is older or newer than the database stands by."""
    from sqlalchemy import text

    store._database.write(
        lambda connection: connection.execute(text("update alembic_version set version_num = 'r9999'")),
        fence=None,
    )
    with pytest.raises(StoreError, match="newer than this release"):
        store.lease("a", TTL).try_acquire(0.0)


def test_a_leader_that_slept_is_fenced(url: str) -> None:
    """The leader is stopped beyond the ttl, the stand-by follows, the leader wakes and is refused."""
    with closing(open_store(url)) as store:
        store.migrate()
    with child(url, "a", 0.5) as leader, child(url, "b", 0.5) as standby:
        assert leader.ask("keeper.try_acquire(time.monotonic())") == 1
        assert leader.ask("store.add_windows([window()], fence=1)") == 1
        assert standby.ask("keeper.try_acquire(time.monotonic())") is None
        leader.send("keeper.renew(time.monotonic())")
        assert leader.answer() is True
        os.kill(leader.process.pid, signal.SIGSTOP)
        try:
            fence = _until_taken(standby)
            assert fence == 2
            assert standby.ask("store.add_windows([window(T0 + 15)], fence=2)") == 1
            # What the leader was about to do reaches it while it sleeps.
            leader.send("store.add_windows([window(T0 + 30)], fence=1)")
        finally:
            os.kill(leader.process.pid, signal.SIGCONT)
        refused = leader.answer()
        assert refused["error"] == "FencedError"
        assert leader.ask("keeper.renew(time.monotonic())") is False
        assert leader.ask("len(store.recent_windows('chat', 0.0, 10))") == 2


def test_a_killed_leader_is_followed(url: str) -> None:
    """SIGKILL leaves the lease behind; the stand-by takes it after the ttl."""
    with closing(open_store(url)) as store:
        store.migrate()
    with child(url, "a", 0.5) as leader, child(url, "b", 0.5) as standby:
        assert leader.ask("keeper.try_acquire(time.monotonic())") == 1
        assert standby.ask("keeper.try_acquire(time.monotonic())") is None
        leader.process.kill()
        assert _until_taken(standby) == 2


def _until_taken(standby: Child) -> int:
    """Let a stand-by try until it has the lease."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        fence = standby.ask("keeper.try_acquire(time.monotonic())")
        if fence is not None:
            return int(fence)
    pytest.fail("the lease was not taken over within a minute")
