"""The table of jobs in odd hours: days of 23 and 25, restarts, and failures with much in hand."""

from __future__ import annotations

import resource
import time
from collections import defaultdict
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tuner.daemon.book import JobBook
from tuner.daemon.clock import SteadyClock, SystemClock, VirtualClock
from tuner.daemon.drive import ApschedulerDriver, Runner, VirtualDriver
from tuner.daemon.jobs import JOBS, Cadence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.daemon.conftest import Events

NAMES = [spec.name for spec in JOBS]
CADENCE = Cadence(scrape=60.0, cycle=60.0, discovery=60.0, lease=60.0)
DAY = 86_400.0
MEGABYTE = 1 << 20


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Live in Berlin, where clocks are moved twice a year."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize("day", [datetime(2025, 10, 26, tzinfo=UTC), datetime(2026, 3, 29, tzinfo=UTC)])
def test_the_hour_that_is_twice_or_not_at_all(day: datetime, events: Events) -> None:
    """On both days each job runs as often as on any other, evenly: everything is in UTC (case B55)."""
    wall = VirtualClock(now=day.timestamp())
    clock = SteadyClock(wall)
    runs: dict[str, list[float]] = defaultdict(list)
    functions = {name: runs[name].append for name in NAMES}
    runner = Runner(functions, clock, JobBook(NAMES, clock.monotonic), events, lambda: None)
    driver = VirtualDriver(runner.run, clock, wall)
    driver.start(CADENCE, clock.now())
    driver.run_for(DAY - 0.5)
    for name, interval in (("retention", 3600.0), ("rollup", 60.0), ("cycle", 60.0)):
        assert len(runs[name]) == pytest.approx(DAY / interval, abs=1)
        assert {round(later - one) for one, later in pairwise(runs[name])} == {round(interval)}


def test_three_starts_make_no_job_more(events: Events) -> None:
    """Jobs live in memory, under fixed names, in UTC: as many after three restarts as before (case B56)."""
    for _ in range(3):
        clock = SteadyClock(SystemClock())
        book = JobBook(NAMES, clock.monotonic)
        runner = Runner(dict.fromkeys(NAMES, lambda _: None), clock, book, events, lambda: None)
        driver = ApschedulerDriver(runner.run, book)
        driver.start(CADENCE, clock.now() + 1000.0)
        try:
            jobs = driver._scheduler.get_jobs()
            assert sorted(job.id for job in jobs) == sorted(NAMES)
            assert {str(job.next_run_time.tzinfo) for job in jobs} == {"UTC"}
            assert {job.max_instances for job in jobs} == {1}
            assert all(job.misfire_grace_time >= 1 and job.coalesce for job in jobs)
        finally:
            driver.stop()


def test_a_job_that_fails_with_much_in_hand_keeps_none_of_it(events: Events) -> None:
    """A hundred failures with 20 MB in their locals: what is kept of each is a line of text (case B57)."""
    wall = VirtualClock()
    clock = SteadyClock(wall)

    def fail(_: float) -> None:
        much = b"x" * (20 * MEGABYTE)
        raise ValueError(len(much))

    runner = Runner({"cycle": fail}, clock, JobBook(NAMES, clock.monotonic), events, lambda: None)
    for _ in range(3):
        runner.run("cycle")
    before = _resident()
    for _ in range(97):
        runner.run("cycle")
    assert _resident() - before < 10 * MEGABYTE
    assert len(events.of("job failed")) == 100


def _resident() -> int:
    """Return bytes of memory that this process has in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
