"""Leadership over a real database: taken, renewed, doubted, lost, given back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tuner._exceptions import FencedError, StoreError
from tuner.daemon.clock import VirtualClock
from tuner.daemon.leader import Leader, WithoutDatabase
from tuner.daemon.notices import MOST, Notices
from tuner.fleet import Finding
from tuner.store import Store, open_store

if TYPE_CHECKING:
    from pathlib import Path

    from tests.daemon.conftest import Events

TTL = 20.0


def _leader(file: Path, clock: VirtualClock, log: Events, name: str) -> Leader:
    def opened() -> Store:
        store = open_store(f"sqlite:///{file}")
        store.migrate()
        return store

    return Leader(opened, name, TTL, clock.monotonic, log)


def _state(leader: Leader) -> tuple[int | None, str, bool]:
    return leader.fence, leader.problem, leader.sure


def test_the_first_leads_and_the_second_waits_for_silence(tmp_path: Path, events: Events) -> None:
    """While the first renews, the second stands by; 25 s after that it leads with a higher fence."""
    clock = VirtualClock()
    first, second = (_leader(tmp_path / "t.db", clock, events, name) for name in ("a", "b"))
    for _ in range(20):
        first.tick()
        second.tick()
        clock.advance(5.0)
    assert _state(first) == (1, "", True)
    assert _state(second) == (None, "", False)
    silent = clock.monotonic()
    while second.fence is None:
        second.tick()
        clock.advance(5.0)
    assert clock.monotonic() - silent <= 30.0
    assert _state(second) == (2, "", True)
    assert _state(first) == (1, "", False), "a leader that did not renew cannot be sure of it"
    first.tick()
    assert _state(first) == (None, "", False)
    store = second.store
    assert store is not None
    with pytest.raises(FencedError):
        store.add_event("a", "late", {}, now=1.0, fence=1)


def test_a_lease_that_is_given_back_is_taken_at_once(tmp_path: Path, events: Events) -> None:
    """After a clean end the next look takes over, without waiting for the lease's life."""
    clock = VirtualClock()
    first, second = (_leader(tmp_path / "t.db", clock, events, name) for name in ("a", "b"))
    first.tick()
    second.tick()
    first.release()
    first.release()
    second.tick()
    assert second.fence == 2


def test_a_database_that_fails_is_told_once(tmp_path: Path, events: Events) -> None:
    """Doubt is no loss: the fence stays, the leader is unsure after a while, and one line is logged."""
    clock = VirtualClock()
    leader = _leader(tmp_path / "t.db", clock, events, "a")
    leader.tick()
    assert _state(leader) == (1, "", True)
    lease = leader._lease
    assert lease is not None

    def renew(monotonic: float) -> bool:
        del monotonic
        raise StoreError("t.db: locked: end whoever holds the lock", retryable=True)

    real, lease.renew = lease.renew, renew  # type: ignore[method-assign]  # a database that fails
    for _ in range(5):
        clock.advance(5.0)
        leader.tick()
    assert _state(leader) == (1, "t.db: locked: end whoever holds the lock", False)
    assert len(events.of("database unavailable")) == 1
    lease.renew = real  # type: ignore[method-assign]  # and works again
    leader.tick()
    assert _state(leader) == (1, "", True)


def test_a_dry_run_leads_without_a_database(events: Events) -> None:
    """There is nothing to share and nothing to write to."""
    leader = WithoutDatabase(VirtualClock().monotonic, events)
    leader.tick()
    assert leader.store is None
    assert _state(leader) == (0, "", True)


def test_findings_last_are_replaced_and_are_bounded() -> None:
    """The newest of one code and subject counts; those that happened once pass; there are at most 500."""
    clock = VirtualClock()
    notices = Notices(clock.monotonic)
    notices.note("a", "info", "first", {"pool": "x"})
    notices.note("a", "info", "second", {"pool": "x"})
    notices.note("b", "info", "once", lasting=60.0)
    assert [f.message for f in notices.active()] == ["second", "once"]
    clock.advance(61.0)
    assert [f.message for f in notices.active()] == ["second"]
    notices.clear_where("pool", "x")
    assert notices.active() == ()
    notices.add(Finding("c", "info", "x", {"engine": str(n)}) for n in range(MOST + 10))
    active = notices.active()
    assert len(active) == MOST
    assert active[-1].subject == {"engine": str(MOST + 9)}
