"""Both drivers run the same table: in order, counted, and on through failures and steps of the clock."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import time_machine

from tuner.daemon.book import JobBook
from tuner.daemon.clock import SteadyClock, SystemClock, VirtualClock
from tuner.daemon.drive import ApschedulerDriver, Runner, VirtualDriver, describe, moved
from tuner.daemon.jobs import JOBS, Cadence, every, job

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.daemon.conftest import Events

NAMES = [spec.name for spec in JOBS]
CADENCE = Cadence(scrape=15.0, cycle=60.0, discovery=60.0)
HANG = 30.0
"""Seconds after which a test of threads gives up."""


def _runner(
    functions: Mapping[str, Callable[[float], None]], clock: SteadyClock, book: JobBook, log: Events
) -> Runner:
    idle: dict[str, Callable[[float], None]] = {name: lambda _: None for name in NAMES}
    return Runner({**idle, **functions}, clock, book, log, lambda: None)


def _virtual(
    log: Events, functions: Mapping[str, Callable[[float], None]] | None = None
) -> tuple[VirtualClock, SteadyClock, JobBook, VirtualDriver]:
    wall = VirtualClock()
    clock = SteadyClock(wall)
    book = JobBook(NAMES, clock.monotonic)
    runner = _runner(functions or {}, clock, book, log)
    return wall, clock, book, VirtualDriver(runner.run, clock, wall)


def test_the_table_is_complete() -> None:
    """Every job has a name of its own, a trigger, a finite grace, one instance, and a thread of its own."""
    cadence = CADENCE
    assert len(set(NAMES)) == len(NAMES)
    assert {"scrape", "readback", "cycle", "discovery", "rollup", "retention", "lease"} <= set(NAMES)
    for spec in JOBS:
        trigger = spec.trigger(cadence, 1e9)
        assert trigger.interval_length == spec.interval(cadence) > 0
        assert 0 < spec.grace(cadence) < float("inf")
        assert (spec.coalesce, spec.max_instances, spec.workers) == (True, 1, 1)
        assert trigger.timezone is UTC
    assert job("retention").grace(cadence) >= 3600.0


def test_missed_run_times_are_not_listed() -> None:
    """After thirty days the next run is the next of the series, found without listing those between."""
    trigger = every(15.0, 1_000_000_000.0)
    now = datetime.fromtimestamp(1_000_000_000.0, tz=UTC) + timedelta(days=30, seconds=4)
    following = trigger.get_next_fire_time(datetime.fromtimestamp(1_000_000_000.0, tz=UTC), now)
    assert following == now + timedelta(seconds=11)


def test_virtual_time_runs_each_job_as_often_as_its_interval_says(events: Events) -> None:
    """An hour of virtual time: 240 scrapes, a cycle a minute, a lease every 5 s, in order."""
    runs: list[tuple[str, float]] = []

    def note(name: str, now: float) -> None:
        runs.append((name, now))

    functions = {name: partial(note, name) for name in NAMES}
    _, clock, book, driver = _virtual(events, functions)
    begun = clock.now()
    driver.start(CADENCE, begun)
    driver.run_for(3600.0)
    counts = Counter(name for name, _ in runs)
    assert counts["scrape"] == 240
    assert counts["cycle"] == 60
    assert counts["lease"] == 721
    assert counts["rollup"] == 60
    assert counts["retention"] == 1
    assert [now for _, now in runs] == sorted(now for _, now in runs)
    assert clock.now() == pytest.approx(begun + 3600.0)
    assert {s.name: s.runs for s in book.statuses()} == counts


def test_a_job_that_raises_stays_scheduled_and_leaves_no_frame_behind(events: Events) -> None:
    """A failing job is logged as text, counted, run again; what its frames held is let go."""

    class Heavy:
        pass

    held: list[weakref.ref[Heavy]] = []

    def fail(_: float) -> None:
        heavy = Heavy()
        held.append(weakref.ref(heavy))
        raise RuntimeError("no luck\nat all")

    _, clock, book, driver = _virtual(events, {"scrape": fail})
    driver.start(CADENCE, clock.now())
    driver.run_for(150.0)
    status = next(s for s in book.statuses() if s.name == "scrape")
    assert status.runs == status.errors == 10
    assert status.last_success is None
    gc.collect()
    assert [ref() for ref in held] == [None] * 10
    assert len(events.of("job failed")) == 10
    assert "RuntimeError: no luck at all at test_drive.py:" in events.of("job failed")[0]["error"]
    assert book.errors()["scrape"].startswith("RuntimeError")


def test_a_run_after_a_failure_clears_it(events: Events) -> None:
    """Success is noted with its time, and the last error goes."""
    outcomes = iter([ValueError("bad"), None])

    def sometimes(_: float) -> None:
        if (outcome := next(outcomes, None)) is not None:
            raise outcome

    _, clock, book, driver = _virtual(events, {"cycle": sometimes})
    driver.start(CADENCE, clock.now())
    driver.run_for(120.0)
    status = next(s for s in book.statuses() if s.name == "cycle")
    assert (status.runs, status.errors) == (2, 1)
    assert status.last_success == pytest.approx(clock.now())
    assert book.errors() == {}


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_virtual_jobs_go_on_through_a_stepped_clock(step: float, events: Events) -> None:
    """Set an hour on or back, jobs run as often as before: neither a burst nor an hour of silence."""
    runs: list[float] = []
    wall = VirtualClock()
    clock = SteadyClock(wall)
    book = JobBook(NAMES, clock.monotonic)
    runner = _runner({"scrape": lambda _: runs.append(clock.monotonic())}, clock, book, events)

    def tick() -> None:
        if moved_by := clock.settle():
            driver.shift(moved_by, clock.now())

    driver = VirtualDriver(runner.run, clock, wall, tick)
    driver.start(CADENCE, clock.now())
    driver.run_for(300.0)
    wall.step(step)
    driver.run_for(300.0)
    assert len(runs) == 40
    assert max(b - a for a, b in pairwise(runs)) <= 30.0


def test_changed_intervals_are_taken_and_others_left(events: Events) -> None:
    """A reload that halves the scrape interval doubles the scrapes; the cycle keeps its next run."""
    runs: Counter[str] = Counter()

    def note(name: str, _: float) -> None:
        runs[name] += 1

    functions = {name: partial(note, name) for name in NAMES}
    _, clock, _, driver = _virtual(events, functions)
    driver.start(CADENCE, clock.now())
    driver.run_for(50.0)
    driver.reschedule(replace(CADENCE, scrape=5.0), clock.now())
    runs.clear()
    driver.run_for(60.0)
    assert runs["scrape"] == 12
    assert runs["cycle"] == 1


def test_a_due_time_is_moved_with_the_clock_but_never_far() -> None:
    """What was due in 5 s is due in 5 s; one that already went on by the new clock is not moved twice."""
    assert moved(1005.0, -3600.0, now=-2600.0, interval=15.0) == -2595.0
    assert moved(1005.0, 3600.0, now=4600.0, interval=15.0) == 4605.0
    assert moved(4610.0, 3600.0, now=4600.0, interval=15.0) == 4615.0
    assert moved(990.0, 0.0, now=1000.0, interval=15.0) == 1000.0


def test_an_error_made_on_purpose_is_told_as_it_is() -> None:
    """Our own errors name place and remedy; foreign ones are told with type and place."""
    from tuner._exceptions import InputError

    assert describe(InputError("file: is bad: mend it")) == "file: is bad: mend it"
    assert describe(KeyError("x")) == "KeyError: 'x'"


def test_apscheduler_runs_the_table_in_threads(events: Events) -> None:
    """Production: jobs run by their triggers, a job that hangs skips itself only, and others go on."""
    clock = SteadyClock(SystemClock())
    book = JobBook(NAMES, clock.monotonic)
    release, twice = threading.Event(), threading.Event()
    cycles: list[float] = []

    def cycle(now: float) -> None:
        cycles.append(now)
        if len(cycles) > 3:
            twice.set()

    runner = _runner({"scrape": lambda _: _wait(release), "cycle": cycle}, clock, book, events)
    driver = ApschedulerDriver(runner.run, book)
    cadence = replace(CADENCE, scrape=0.2, cycle=0.2)
    driver.start(cadence, clock.now() - 1.0)
    try:
        assert twice.wait(HANG)
        skipped = _until(lambda: next(s for s in book.statuses() if s.name == "scrape").skipped > 0)
        assert skipped
        assert book.running_for("scrape") > 0.0
        assert book.idle_for("scrape") > book.idle_for("cycle")
    finally:
        release.set()
        driver.stop()


def test_apscheduler_goes_on_when_the_clock_is_set_back(events: Events) -> None:
    """Set back an hour, its jobs would wait an hour; shifted with the clock they run on at once."""
    clock = SteadyClock(SystemClock())
    book = JobBook(NAMES, clock.monotonic)
    ran = threading.Event()
    runner = _runner({"cycle": lambda _: ran.set()}, clock, book, events)
    driver = ApschedulerDriver(runner.run, book)
    cadence = replace(CADENCE, scrape=0.2, cycle=0.3)
    driver.start(cadence, clock.now())
    try:
        assert ran.wait(HANG)
        for hours in (-1, 1):
            with time_machine.travel(datetime.now(UTC) + timedelta(hours=hours), tick=True):
                step = clock.settle()
                assert step == pytest.approx(3600.0 * hours, abs=5.0)
                driver.shift(step, clock.now())
                ran.clear()
                assert ran.wait(HANG)
            driver.shift(clock.settle(), clock.now())
    finally:
        driver.stop()


def test_a_job_is_hastened_and_goes_on_from_there(events: Events) -> None:
    """Two seconds from now in place of a minute, then each minute; one that is due before stays as it is."""
    runs: list[float] = []
    _, clock, _, driver = _virtual(events, {"cycle": runs.append})
    begun = clock.now()
    driver.start(CADENCE, begun)
    driver.hasten("cycle", begun + 2.0)
    driver.hasten("cycle", begun + 30.0)
    driver.run_for(125.0)
    assert [run - begun for run in runs] == pytest.approx([2.0, 62.0, 122.0])
    driver.stop()
    driver.hasten("cycle", clock.now())
    driver.run_for(60.0)
    assert len(runs) == 3


def test_apscheduler_hastens_a_job(events: Events) -> None:
    """A cycle that is an hour away runs at once, and after the end nothing does."""
    clock = SteadyClock(SystemClock())
    book = JobBook(NAMES, clock.monotonic)
    ran = threading.Event()
    runner = _runner({"cycle": lambda _: ran.set()}, clock, book, events)
    driver = ApschedulerDriver(runner.run, book)
    driver.start(replace(CADENCE, cycle=3600.0), clock.now())
    try:
        driver.hasten("cycle", clock.now())
        assert ran.wait(HANG)
    finally:
        driver.stop()
    driver.hasten("cycle", clock.now())


def _wait(event: threading.Event) -> None:
    event.wait(HANG)


def _until(condition: Callable[[], bool]) -> bool:
    """Wait until something holds."""
    pause = threading.Event()
    for _ in range(int(HANG / 0.02)):
        if condition():
            return True
        pause.wait(0.02)
    return False
