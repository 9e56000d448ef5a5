"""The whole daemon in virtual time over a simulated fleet, with a real database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.daemon.world import ENGINES, make_world, pool_settings, world_settings
from tuner._exceptions import StoreError
from tuner.daemon.clock import VirtualClock
from tuner.daemon.notices import LASTING
from tuner.fit.acceptance import AcceptanceFit
from tuner.fleet import Schedule
from tuner.plan.apart import apart, used

if TYPE_CHECKING:
    from pathlib import Path

    from tests.daemon.conftest import Events
    from tests.daemon.world import World

LEARN = 300.0
"""Seconds in which the load of the fleet has visited every range of its table."""


def _pooled(world: World) -> int:
    """Return how many windows of whole engines the database has."""
    return sum(w.route == "*" for w in world.store.recent_windows("dense-70b", 0.0, 10_000))


def test_a_fleet_is_learnt_remembered_and_planned_for(tmp_path: Path, events: Events) -> None:
    """Five minutes: windows reach the database once each, fits and a proposed schedule follow."""
    world = make_world(world_settings(), tmp_path / "t.db", events)
    world.run_for(LEARN)
    snapshot = world.service.view()
    assert snapshot.leader
    assert snapshot.not_ready == ()
    assert snapshot.unhealthy == ()
    assert [target.up for target in snapshot.targets] == [True] * ENGINES
    assert snapshot.buffered == 0
    assert snapshot.sources_up == {"store": True, "discovery:dense-70b": True, "scrape:dense-70b": True}
    assert snapshot.decision is not None
    (pool,) = snapshot.decision.pools
    assert isinstance(pool.acceptance, AcceptanceFit)
    assert isinstance(pool.schedule, Schedule), str(pool.schedule)
    stored = world.store.recent_windows("dense-70b", 0.0, 10_000)
    assert len({(w.engine, w.route, w.start) for w in stored}) == len(stored)
    assert {w.route for w in stored} == {"*", "chat"}
    assert _pooled(world) == sum(snapshot.windows_total.values()) > 30 * ENGINES
    (proposed,) = snapshot.schedules
    assert proposed.state == "proposed"
    assert pool.table is not None
    assert apart(pool.table, proposed.schedule, pool.schedule, used(pool.table, pool.windows)) < 0.03
    assert {fit.kind for fit in world.store.latest_fits("dense-70b")} == {"acceptance", "step_time"}
    assert {job.name: job.errors for job in snapshot.jobs if job.errors} == {}, events.of("job failed")
    assert set(snapshot.stage_seconds) == {"observe", "decide", "store"}


def test_observe_mode_proposes_nothing(tmp_path: Path, events: Events) -> None:
    """In mode observe fits are saved and no schedule is."""
    world = make_world(world_settings(pools=[pool_settings()]), tmp_path / "t.db", events)
    world.run_for(LEARN)
    assert world.store.latest_fits("dense-70b")
    assert world.store.schedules() == []
    assert world.service.view().schedules == ()


def test_auto_mode_proposes_and_says_that_nothing_is_pushed(tmp_path: Path, events: Events) -> None:
    """Mode auto is treated as advise, and a finding says so."""
    auto = pool_settings(mode="auto", admin={"token_file": "/nonexistent"})
    world = make_world(world_settings(pools=[auto]), tmp_path / "t.db", events)
    world.run_for(LEARN)
    assert "push_not_supported" in world.codes()
    assert [s.state for s in world.service.view().schedules] == ["proposed"]


def test_a_restart_goes_on_where_the_last_one_ended(tmp_path: Path, events: Events) -> None:
    """A new process on the same database knows the proposed schedule at once and plans within seconds."""
    config = world_settings()
    first = make_world(config, tmp_path / "t.db", events)
    first.run_for(LEARN)
    known = first.service.view().schedules
    first.leader.release()
    second = first.restarted(config, tmp_path / "t.db", events)
    second.run_for(1.5)
    assert second.service.view().schedules == known
    second.run_for(1.0)
    decision = second.service.view().decision
    assert decision is not None
    assert isinstance(decision.pools[0].schedule, Schedule)
    assert second.service.view().fence == 2


def test_the_last_good_schedule_stands_when_nothing_can_be_said(tmp_path: Path, events: Events) -> None:
    """All engines gone: findings say so, and the proposed schedule stays."""
    world = make_world(
        world_settings(cycle={"interval": "20s", "half_life": "20s"}), tmp_path / "t.db", events
    )
    world.run_for(LEARN)
    before = world.service.view().schedules
    assert before
    world.parts.fleet_scraper.down = {f"dense-70b-{n}" for n in range(ENGINES)}
    world.run_for(200.0)
    snapshot = world.service.view()
    assert snapshot.schedules == before
    assert "engines_unreachable" in world.codes()
    assert not snapshot.sources_up["scrape:dense-70b"]
    world.parts.fleet_scraper.down = set()
    world.run_for(10.0)
    assert "engines_unreachable" not in world.codes()


def test_a_database_that_fails_delays_windows_and_loses_none(tmp_path: Path, events: Events) -> None:
    """Scrapes go on, windows wait and are counted in a finding, and all arrive when it is back."""
    world = make_world(world_settings(), tmp_path / "t.db", events)
    world.run_for(60.0)
    world.store.broken = "t.db: the disk is full: make room"
    rounds = world.parts.fleet_scraper.rounds
    world.run_for(100.0)
    snapshot = world.service.view()
    assert world.parts.fleet_scraper.rounds == rounds + 20
    assert snapshot.buffered >= 2 * 18 * ENGINES
    assert "store_unavailable" in world.codes()
    assert snapshot.decision is not None
    assert snapshot.decision.at == pytest.approx(world.clock.now(), abs=21.0)
    world.store.broken = ""
    world.run_for(40.0)
    snapshot = world.service.view()
    assert snapshot.buffered == snapshot.dropped_total == 0
    assert "store_unavailable" not in world.codes()
    assert _pooled(world) == sum(snapshot.windows_total.values())


def test_a_database_that_is_down_at_the_start_is_tried_again(tmp_path: Path, events: Events) -> None:
    """It stays up, says why it is not ready, scrapes nobody, and begins when the database is there."""
    down = [True]

    def opened() -> None:
        if down[0]:
            raise StoreError("db: no connection: start the server", retryable=True)

    world = make_world(world_settings(), tmp_path / "t.db", events, opened=opened)
    world.run_for(60.0)
    snapshot = world.service.view()
    assert snapshot.not_ready == ("db: no connection: start the server",)
    assert not snapshot.sources_up["store"]
    assert world.parts.fleet_scraper.rounds == 0
    assert not snapshot.leader
    (told,) = events.of("database unavailable")
    assert told["error"] == "db: no connection: start the server"
    down[0] = False
    world.run_for(15.0)
    assert world.service.view().not_ready == ()
    assert world.parts.fleet_scraper.rounds > 0


def test_a_second_daemon_stands_by_and_takes_over(tmp_path: Path, events: Events) -> None:
    """One of two scrapes; when it falls silent the other leads within 30 s, and its writes fail."""
    config = world_settings()
    first = make_world(config, tmp_path / "t.db", events)
    first.run_for(30.0)
    second = first.restarted(config, tmp_path / "t.db", events)
    for _ in range(12):
        first.run_for(5.0)
        second.driver.run_for(0.0)
    assert second.service.view().not_ready == ()
    assert not second.service.view().leader
    assert second.parts.fleet_scraper.rounds == 0
    begun = second.wall.monotonic()
    while second.leader.fence is None and second.wall.monotonic() < begun + 60.0:
        second.run_for(1.0)
    assert second.wall.monotonic() - begun <= 30.0
    second.run_for(20.0)
    written = len(second.store.recent_windows("dense-70b", 0.0, 10_000))
    first.service.scrape(first.clock.now())
    first.service.scrape(first.clock.now())
    first.service.cycle(first.clock.now())
    assert first.leader.fence is None
    assert len(second.store.recent_windows("dense-70b", 0.0, 10_000)) == written
    first.service.publish()
    assert not first.service.view().leader
    first.service.lead(first.clock.now())
    assert first.service.writer.waiting == 0


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_a_stepped_clock_is_noticed_and_work_goes_on(step: float, tmp_path: Path, events: Events) -> None:
    """An hour on or back: scrapes and cycles keep their pace, a finding says so, the schedule stands."""
    world = make_world(world_settings(), tmp_path / "t.db", events)
    world.run_for(LEARN)
    before = world.service.view()
    rounds = world.parts.fleet_scraper.rounds
    world.wall.step(step)
    world.run_for(100.0)
    after = world.service.view()
    assert world.parts.fleet_scraper.rounds - rounds == 20
    assert "clock_stepped" in world.codes()
    assert after.at == pytest.approx(before.at + step + 100.0, abs=6.0)
    assert after.schedules
    assert after.decision is not None
    assert isinstance(after.decision.pools[0].schedule, Schedule)
    counted = sum(after.windows_total.values()) - sum(before.windows_total.values())
    assert counted >= 16 * ENGINES
    assert max(w.seconds for w in world.store.recent_windows("dense-70b", 0.0, 10_000)) <= 21.0
    VirtualClock.advance(world.wall, LASTING)
    world.service.publish()
    assert "clock_stepped" not in world.codes()


def test_a_full_buffer_drops_the_oldest_and_says_so(tmp_path: Path, events: Events) -> None:
    """What does not fit is dropped from the old end, counted, and told of."""
    world = make_world(world_settings(), tmp_path / "t.db", events)
    world.run_for(20.0)
    world.store.broken = "down"
    world.service.writer._waiting = type(world.service.writer._waiting)(maxlen=10)
    world.run_for(60.0)
    snapshot = world.service.view()
    assert snapshot.buffered == 10
    assert snapshot.dropped_total > 10
    assert "windows_dropped" in world.codes()
    world.store.broken = ""
    world.run_for(10.0)
    newest = world.store.recent_windows("dense-70b", 0.0, 10_000)[-1]
    assert newest.end == pytest.approx(world.clock.now(), abs=11.0)


def test_lead_lost_in_the_middle_of_a_round_writes_nothing(tmp_path: Path, events: Events) -> None:
    """Windows of a round during which the lead went are neither written nor remembered."""
    world = make_world(world_settings(), tmp_path / "t.db", events)
    world.run_for(30.0)
    held = world.service.remembered.held("dense-70b")
    world.parts.fleet_scraper.during = lambda: world.leader.lost("taken")
    world.service.scrape(world.clock.now())
    assert world.service.remembered.held("dense-70b") == held


def test_nothing_is_deleted_by_a_clock_that_was_just_set(tmp_path: Path, events: Events) -> None:
    """A clock a month ahead makes every window look old: nothing is deleted until a day has passed."""
    config = world_settings(retention={"raw": "60s", "minute": "2m"})
    world = make_world(config, tmp_path / "t.db", events)
    world.run_for(60.0)
    kept = len(world.store.recent_windows("dense-70b", 0.0, 10_000))
    assert kept > 0
    world.wall.step(30 * 86_400.0)
    world.run_for(5.0)
    world.service.roll_up(world.clock.now())
    world.service.retain(world.clock.now())
    assert len(world.store.recent_windows("dense-70b", 0.0, 10_000)) >= kept


def test_roll_up_and_retention_run_with_the_fence(tmp_path: Path, events: Events) -> None:
    """Each minute windows are summed, and what is older than the settings say is deleted."""
    config = world_settings(retention={"raw": "60s", "minute": "2m"})
    world = make_world(config, tmp_path / "t.db", events)
    world.run_for(200.0)
    world.service.retain(world.clock.now())
    jobs = {job.name: job for job in world.service.view().jobs}
    assert (jobs["rollup"].runs, jobs["retention"].runs) == (3, 1)
    assert jobs["rollup"].errors == jobs["retention"].errors == 0
    windows = world.store.recent_windows("dense-70b", 0.0, 10_000)
    assert max(w.seconds for w in windows) > 5.0
    assert {w.seconds for w in windows if w.end > world.clock.now() - 50.0} == {5.0}
