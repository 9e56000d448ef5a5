"""What the daemon remembers through trouble of its database: nothing is lost for good, nothing is silent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import text

from tests.daemon.world import FlakyStore, make_world, pool_settings, world_settings
from tuner._exceptions import StoreError

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.daemon.conftest import Events


def test_memory_that_cannot_be_read_is_read_later(
    tmp_path: Path, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that gives the lease and no windows is asked again until it does; it is no fresh start."""
    first = make_world(world_settings(), tmp_path / "t.db", events)
    first.run_for(60.0)
    first.leader.release()
    second = first.restarted(world_settings(), tmp_path / "t.db", events)
    with monkeypatch.context() as patched:

        def refuse(*_: object) -> None:
            raise StoreError("t.db: locked: wait", retryable=True)

        patched.setattr(FlakyStore, "spread_windows", refuse)
        second.run_for(0.5)
        assert second.service.view().leader
        assert second.service.beginning.unread(["dense-70b"])
        assert second.service.remembered.held("dense-70b") == 0
        assert "store_unavailable" in second.codes()
        assert not second.service.view().sources_up["store"]
    second.run_for(5.0)
    assert not second.service.beginning.unread(["dense-70b"])
    assert second.service.remembered.held("dense-70b") > 10


def test_a_pool_that_a_reload_adds_is_remembered_and_one_it_takes_is_not(
    tmp_path: Path, events: Events
) -> None:
    """The past of a new pool comes from the database; of one that is gone nothing is told any more."""
    both = world_settings()
    other = world_settings(pools=[pool_settings("other")])
    world = make_world(both, tmp_path / "t.db", events)
    world.run_for(60.0)
    held = world.service.remembered.held("dense-70b")
    world.service.adopt(other)
    assert world.service.remembered.held("dense-70b") == 0
    assert {pool for pool, _ in world.service.view().windows_total} == set()
    world.service.adopt(both)
    assert world.service.beginning.unread(["dense-70b"]) == {"dense-70b"}
    world.run_for(5.0)
    assert world.service.remembered.held("dense-70b") >= held - 2


def test_a_lease_or_a_file_that_was_deleted_ends_nothing(tmp_path: Path, events: Events) -> None:
    """Without its row the daemon leads again with a higher fence; without its file it makes another one."""
    file = tmp_path / "t.db"
    world = make_world(world_settings(), file, events)
    world.run_for(30.0)
    world.store._database.write(lambda c: c.execute(text("delete from leases")), fence=None)
    world.run_for(15.0)
    assert (world.leader.fence, world.leader.problem) == (2, "")
    for left in tmp_path.glob("t.db*"):
        left.unlink()
    held = world.service.remembered.held("dense-70b")
    world.run_for(30.0)
    assert (world.leader.fence, world.leader.problem) == (3, "")
    assert world.service.remembered.held("dense-70b") > held
    assert world.store.recent_windows("dense-70b", 0.0, 100)
    assert world.service.writer.waiting == 0
    assert "store_unavailable" not in world.codes()
