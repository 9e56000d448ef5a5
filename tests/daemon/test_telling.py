"""What the daemon tells, and when: at once, in whole numbers of windows, and to the last of them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.daemon.settings import config as settings
from tests.daemon.world import ENGINES, make_world, pool_settings, world_settings
from tuner.daemon.clock import SteadyClock, SystemClock
from tuner.daemon.parts import RealParts
from tuner.daemon.reload import changed_settings
from tuner.fleet import Schedule

if TYPE_CHECKING:
    from pathlib import Path

    from tests.daemon.conftest import Events
    from tests.daemon.world import World

POOL = "dense-70b"


def _stored(world: World) -> set[str]:
    return {record.finding.code for record in world.store.findings()}


def _newest(world: World, engine: str) -> float:
    """Return the end of the newest window of an engine that is in the database."""
    windows = world.store.recent_windows(POOL, 0.0, 10_000)
    return max(w.end for w in windows if w.engine.startswith(engine))


def test_a_finding_is_in_the_database_with_the_next_renewal_of_the_lease(
    tmp_path: Path, events: Events
) -> None:
    """Five seconds after it was raised, and after it was taken back, whenever the next cycle is."""
    world = make_world(world_settings(cycle={"interval": "2m"}), tmp_path / "t.db", events)
    world.run_for(20.0)
    world.service.notices.note("config_reload_failed", "warning", "a fault")
    world.run_for(5.0)
    assert "config_reload_failed" in _stored(world)
    world.service.notices.clear("config_reload_failed")
    world.run_for(5.0)
    assert "config_reload_failed" not in _stored(world)


def test_windows_are_those_of_engines(tmp_path: Path, events: Events) -> None:
    """Windows of routes are beside them in memory and database, and are not counted among them."""
    world = make_world(world_settings(), tmp_path / "t.db", events)
    world.run_for(61.0)
    snapshot = world.service.view()
    of_engines = [w for w in world.store.recent_windows(POOL, 0.0, 1000) if w.route == "*"]
    (pool,) = snapshot.pools
    assert pool.windows_held == sum(snapshot.windows_total.values()) == len(of_engines)
    world.leader.release()
    world.restarted(world_settings(), tmp_path / "t.db", events).run_for(1.0)
    told = events.of("remembered")[-1]
    assert told["windows"] == len(of_engines)
    assert told["windows_of_routes"] > 0


def test_how_things_stand_is_told_once_engines_were_asked(tmp_path: Path, events: Events) -> None:
    """Before the first round no engine is said to be down; after it the counts are right, in good grammar."""
    config = world_settings()
    world = make_world(config, tmp_path / "t.db", events)
    world.run_for(0.6)
    assert world.service.status_line().startswith("leading; no engine asked yet in 1 pool; 0 windows to be")
    world.run_for(11.0)
    (told,) = events.of("first scrapes")
    assert told["status"].startswith(f"leading; {ENGINES} of {ENGINES} engines up in 1 pool; ")


def test_what_a_reload_changed_is_named_without_values() -> None:
    """Dotted names; pools and servers by their names, those that came and went as a whole."""
    server = {"name": "main", "url": "http://127.0.0.1:1", "headers": {"X-Scope-OrgID": "one"}}
    old = settings(
        pools=[pool_settings("a"), pool_settings("gone")],
        sources={"prometheus": [server]},
    )
    new = settings(
        pools=[pool_settings("a", mode="advise", guard={"dwell": "5m"}), pool_settings("new")],
        sources={"prometheus": [{**server, "headers": {"X-Scope-OrgID": "two"}}]},
        scrape={"interval": "10s"},
    )
    assert changed_settings(old, new) == (
        "pools[a].guard.dwell",
        "pools[a].mode",
        "pools[gone]",
        "pools[new]",
        "scrape.interval",
        "sources.prometheus[main].headers",
    )
    assert changed_settings(old, old) == ()


def test_the_last_windows_of_an_engine_that_goes_are_kept(tmp_path: Path, events: Events) -> None:
    """What was open when discovery dropped it is written: nothing follows it."""
    world = make_world(world_settings(), tmp_path / "t.db", events)
    world.run_for(33.0)
    directory = world.service.wiring.watched[POOL].directory
    before = _newest(world, f"{POOL}-1")
    directory.engines = 1  # type: ignore[attr-defined]  # the fleet's own directory
    world.service.discover(world.clock.now())
    assert _newest(world, f"{POOL}-1") == before + 5.0


def test_a_clean_end_writes_the_last_windows(tmp_path: Path, events: Events) -> None:
    """The window that ends at the last scrape is in the database."""
    world = make_world(world_settings(), tmp_path / "t.db", events)
    world.run_for(33.0)
    before = _newest(world, POOL)
    world.service.flush()
    assert _newest(world, POOL) == before + 5.0
    world.service.flush()
    stored = world.store.recent_windows(POOL, 0.0, 1000)
    assert len({(w.engine, w.route, w.start) for w in stored}) == len(stored)


def test_what_all_engines_say_they_run_is_the_active_schedule(tmp_path: Path, events: Events) -> None:
    """Read back it outvotes what was told; where engines differ, nothing is said to run."""
    told = pool_settings(mode="advise", admin={}, startup_schedule=[[1, 96, 3]])
    world = make_world(world_settings(pools=[told]), tmp_path / "t.db", events)
    pool = world.service.wiring.watched[POOL]
    assert pool.running(None) == Schedule.from_ranges([[1, 96, 3]])
    world.run_for(2.0)
    assert pool.running(None) == Schedule.from_ranges([[1, 10, 1], [11, 22, 2], [23, 64, 4]])
    other = Schedule.from_ranges([[1, 64, 2]])
    pool.runs(pool.targets[0], other, 0.0)
    assert pool.running(None) is None
    assert pool.running(other) == other


def test_open_files_are_as_many_as_the_system_allows() -> None:
    """The soft limit is raised to the hard one, in a process of its own."""
    program = (
        "import resource; from tuner.daemon.process import raise_file_limit;"
        "kind = resource.RLIMIT_NOFILE; hard = resource.getrlimit(kind)[1];"
        "resource.setrlimit(kind, (100, hard)); raise_file_limit();"
        "assert resource.getrlimit(kind) == (hard, hard), resource.getrlimit(kind)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=90)


def test_connections_are_closed_with_the_parts() -> None:
    """The client that directories and readers share ends with the daemon."""
    parts = RealParts(SteadyClock(SystemClock()))
    parts.close()
    client = parts._http()
    parts.close()
    assert client.is_closed
