"""Signs of life: sent while scrape and cycle end in time, withheld when one hangs."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from tests.daemon.world import make_world, world_settings
from tuner.daemon.clock import VirtualClock
from tuner.daemon.hanging import HANG_INTERVALS, LEAST_HANG
from tuner.daemon.notify import Notifier

if TYPE_CHECKING:
    from pathlib import Path

    from tests.daemon.conftest import Events
    from tests.daemon.world import World


def _heard(listener: socket.socket) -> list[str]:
    """Return what is waiting on the socket, by the first word of each notice."""
    listener.setblocking(False)  # noqa: FBT003 - the standard library's signature
    notices = []
    while True:
        try:
            notices.append(listener.recv(4096).decode().split("\n")[0])
        except BlockingIOError:
            return notices


@pytest.mark.parametrize("job", ["scrape", "cycle"])
def test_a_hung_job_stops_the_watchdog(job: str, tmp_path: Path, events: Events) -> None:
    """On a real socket: WATCHDOG while both end, none once one does not, and again after it does."""
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name)
        world = make_world(world_settings(), tmp_path / "t.db", events)
        notifier = Notifier({"NOTIFY_SOCKET": name}, world.clock.monotonic, 1)
        world.service.alive, world.service.ailing = notifier.alive, notifier.status
        world.run_for(45.0)
        assert _heard(listener) == ["WATCHDOG=1"] * 9
        _hang(world, job)
        _heard(listener)
        world.service.watch(world.clock.now())
        (notice,) = _heard(listener)
        assert notice.startswith("STATUS=")
        assert f"{job} hangs" in notice
        snapshot = world.service.view()
        assert snapshot.unhealthy == (f"job {job} hangs",)
        assert "job_hung" in world.codes()
        world.service.book.finished(job, world.clock.now())
        world.service.tick()
        world.service.watch(world.clock.now())
        assert _heard(listener) == ["WATCHDOG=1"]
        assert world.service.view().unhealthy == ()


def _hang(world: World, job: str) -> None:
    """Let one job run on while the others come and go for twice its interval."""
    interval = {"scrape": 5.0, "cycle": 20.0}[job]
    world.service.book.started(job, world.clock.now())
    seconds = max(HANG_INTERVALS * interval, LEAST_HANG) + 1.0
    VirtualClock.advance(world.wall, seconds)
    for other in ("scrape", "cycle"):
        if other != job:
            world.service.book.started(other, world.clock.now())
            world.service.book.finished(other, world.clock.now())
    world.service.tick()


def test_a_stand_by_is_alive_too(tmp_path: Path, events: Events) -> None:
    """A daemon that only waits for the lease ends its jobs in no time, and is not restarted for it."""
    first = make_world(world_settings(), tmp_path / "t.db", events)
    first.run_for(2.0)
    second = first.restarted(world_settings(), tmp_path / "t.db", events)
    alive: list[str] = []
    second.service.alive = alive.append
    for _ in range(6):
        first.run_for(5.0)
        second.run_for(5.0)
    assert len(alive) == 12
    assert all(line.startswith("standing by") for line in alive)


def test_a_pause_of_the_process_is_told(tmp_path: Path, events: Events) -> None:
    """Stopped for 45 s: a finding says so, one scrape is made up for, and no window spans the gap."""
    world = make_world(world_settings(), tmp_path / "t.db", events)
    world.run_for(30.0)
    world.wall.advance(45.0)
    world.run_for(30.0)
    assert "process_stalled" in world.codes()
    windows = world.store.recent_windows("dense-70b", 0.0, 1000)
    assert max(w.seconds for w in windows) <= 20.0
    assert max(w.tokens_per_second or 0.0 for w in windows) < 1e4
    jobs = {job.name: job for job in world.service.view().jobs}
    assert jobs["scrape"].runs <= 14


def test_a_job_that_fails_is_a_finding_until_it_succeeds(tmp_path: Path, events: Events) -> None:
    """A raising job is told with its message, and the finding goes with the next good run."""
    world = make_world(world_settings(), tmp_path / "t.db", events)
    world.run_for(20.0)

    def broken() -> None:
        raise RuntimeError("no luck")

    world.parts.fleet_scraper.during = broken
    world.run_for(10.0)
    found = {f.code: f for f in world.service.view().findings}
    assert "RuntimeError: no luck" in found["job_failed"].message
    world.parts.fleet_scraper.during = lambda: None
    world.run_for(10.0)
    assert "job_failed" not in world.codes()
