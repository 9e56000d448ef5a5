"""Settings read anew: all or nothing, and what did not change keeps its state."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.daemon.settings import config as settings
from tests.daemon.world import make_world, pool_settings, world_settings
from tuner._exceptions import InputError
from tuner.daemon.notify import Notifier
from tuner.daemon.reload import Reloader, needs_restart

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.daemon.conftest import Events
    from tests.daemon.world import World
    from tuner.config import Config


def _reloader(world: World, load: Callable[[Path], Config]) -> Reloader:
    notifier = Notifier({}, world.clock.monotonic, 1)
    return Reloader(Path("tuner.yaml"), world.service, world.driver, world.clock, notifier, world.log, load)


def test_a_pool_that_is_added_leaves_the_others_alone(tmp_path: Path, events: Events) -> None:
    """A new pool gets parts of its own; the old one keeps its live windows, its engines and its memory."""
    world = make_world(world_settings(), tmp_path / "t.db", events)
    world.run_for(60.0)
    before = world.service.wiring
    made = len(world.parts.made)
    new = world_settings(pools=[pool_settings(mode="advise"), pool_settings("another")])
    assert _reloader(world, lambda _: new).reload() is None
    after = world.service.wiring
    assert after.watched["dense-70b"] is before.watched["dense-70b"]
    assert after.gatherer is before.gatherer
    assert world.parts.made[made:] == ["directory another", "live another"]
    assert [pool.name for pool in world.service.view().pools] == ["dense-70b", "another"]
    counted = sum(world.service.view().windows_total.values())
    world.run_for(30.0)
    assert sum(world.service.view().windows_total.values()) >= counted + 10


def test_a_pool_that_is_removed_takes_its_findings_with_it(tmp_path: Path, events: Events) -> None:
    """Findings about a pool that is no more are not told; what was remembered of it stays for a return."""
    both = world_settings(
        pools=[pool_settings(mode="advise"), pool_settings("another", mode="auto", admin={})]
    )
    world = make_world(both, tmp_path / "t.db", events)
    world.run_for(30.0)
    assert "push_not_supported" in world.codes()
    held = world.service.remembered.held("dense-70b")
    assert _reloader(world, lambda _: world_settings()).reload() is None
    assert "push_not_supported" not in world.codes()
    assert world.service.remembered.held("dense-70b") == held


def test_a_bad_file_keeps_the_old_settings_and_says_so(tmp_path: Path, events: Events) -> None:
    """One log line, a metric, a finding; the next good file clears them."""
    world = make_world(world_settings(), tmp_path / "t.db", events)
    world.run_for(10.0)
    old = world.service.config

    def bad(_: Path) -> Config:
        raise InputError("tuner.yaml:3: scrape.interval has no unit: write 15s")

    assert _reloader(world, bad).reload() == "tuner.yaml:3: scrape.interval has no unit: write 15s"
    assert world.service.config is old
    assert not world.service.view().config_reload_ok
    assert "config_reload_failed" in world.codes()
    assert len(events.of("settings not reloaded, the old ones stay")) == 1
    loaded = world.service.view().config_loaded_at
    world.run_for(10.0)
    assert _reloader(world, lambda _: world_settings()).reload() is None
    assert world.service.view().config_reload_ok
    assert world.service.view().config_loaded_at > loaded
    assert "config_reload_failed" not in world.codes()


def test_an_engine_that_is_not_supported_is_refused_as_a_whole(tmp_path: Path, events: Events) -> None:
    """A fault that only the wiring sees leaves everything as it was too."""
    world = make_world(world_settings(), tmp_path / "t.db", events)
    wiring = world.service.wiring
    new = world_settings(pools=[pool_settings("new"), pool_settings("worse", engine="nosuch")])
    error = _reloader(world, lambda _: new).reload()
    assert error is not None
    assert "nosuch" in error
    assert world.service.wiring is wiring


def test_a_changed_interval_is_taken_at_once(tmp_path: Path, events: Events) -> None:
    """A scrape interval of 10 s instead of 5 s halves the rounds, and windows are 10 s long from there on."""
    world = make_world(world_settings(), tmp_path / "t.db", events)
    world.run_for(20.0)
    new = world_settings(scrape={"interval": "10s", "timeout": "2s"})
    assert _reloader(world, lambda _: new).reload() is None
    rounds = world.parts.fleet_scraper.rounds
    world.run_for(60.0)
    assert world.parts.fleet_scraper.rounds - rounds == 6
    newest = world.store.recent_windows("dense-70b", 0.0, 1000)[-1]
    assert newest.seconds == pytest.approx(10.0)


def test_what_needs_a_restart_is_said(tmp_path: Path, events: Events) -> None:
    """A changed address or database is named and not taken; changing it back clears the finding."""
    world = make_world(world_settings(), tmp_path / "t.db", events)
    new = world_settings(store={"url": "sqlite:////elsewhere.db"}, web={"listen": "127.0.0.1:1"})
    reloader = _reloader(world, lambda _: new)
    assert reloader.reload() is None
    (finding,) = (f for f in world.service.view().findings if f.code == "restart_needed")
    assert finding.evidence == {"settings": ["store.url", "web.listen"]}
    reloader._load = lambda _: world_settings()
    assert reloader.reload() is None
    assert "restart_needed" not in world.codes()
    assert needs_restart(settings(), settings()) == ()


def test_other_bounds_of_memory_keep_what_fits(tmp_path: Path, events: Events) -> None:
    """A smaller max_windows thins what is held, and a larger one loses nothing."""
    world = make_world(world_settings(), tmp_path / "t.db", events)
    world.run_for(100.0)
    held = world.service.remembered.held("dense-70b")
    new = world_settings(cycle={"interval": "20s", "max_windows": 100_000})
    assert _reloader(world, lambda _: new).reload() is None
    assert world.service.remembered.held("dense-70b") == held
