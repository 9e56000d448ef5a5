"""What calls the jobs: APScheduler in production, virtual time in accelerated runs.

Both read the same table and ask the same triggers.
"""

from __future__ import annotations

import math
import traceback
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from tuner._exceptions import TunerError
from tuner.daemon.jobs import JOBS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tuner.daemon.book import JobBook
    from tuner.daemon.clock import SteadyClock, VirtualClock
    from tuner.daemon.jobs import Cadence, Every
    from tuner.daemon.logs import Logger


class Driver(Protocol):
    """What starts jobs when they are due."""

    def start(self, cadence: Cadence, now: float) -> None:
        """Begin, with first runs counted from ``now``."""

    def reschedule(self, cadence: Cadence, now: float) -> None:
        """Take changed intervals; a job whose interval stays keeps its next run."""

    def shift(self, step: float, now: float) -> None:
        """Move every next run with the wall clock, which was stepped and says ``now``."""

    def hasten(self, name: str, due: float) -> None:
        """Run a job at ``due``, unix seconds, if it would run later; its interval counts from there."""

    def stop(self) -> None:
        """Start no more jobs; those that are going are not waited for."""


class Runner:
    """Calls one job: dates it, counts it, and lets no exception out."""

    def __init__(
        self,
        functions: Mapping[str, Callable[[float], None]],
        clock: SteadyClock,
        book: JobBook,
        log: Logger,
        after: Callable[[], None],
    ) -> None:
        self._functions = functions
        self._clock = clock
        self._book = book
        self._log = log
        self._after = after

    def run(self, name: str) -> None:
        """Run one job now; what it raises is written down as text and dropped, with its frames."""
        now = self._clock.now()
        self._book.started(name, now)
        error = ""
        try:
            self._functions[name](now)
        except Exception as raised:  # noqa: BLE001 - a job that fails must stay scheduled, whatever it raised
            error = describe(raised)
        if error:
            self._log.error("job failed", job=name, error=error)
        self._book.finished(name, self._clock.now(), error)
        self._after()


def describe(error: Exception) -> str:
    """Return an error as one line; with the place it came from if it was not raised on purpose."""
    text = " ".join(str(error).split())
    if isinstance(error, TunerError):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {text}{place}"


def moved(due: float, step: float, now: float, interval: float) -> float:
    """Return when a job is due after a step of the clock: as many seconds from now as it was before.

    Never in the past and never more than an interval away, so that a scheduler that already went on by
    the stepped clock is not moved a second time.
    """
    return min(max(due + step, now), now + interval)


class VirtualDriver:
    """Runs due jobs one after the other in the caller's thread, moving a virtual clock to each."""

    def __init__(
        self,
        run: Callable[[str], None],
        clock: SteadyClock,
        virtual: VirtualClock,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        """Take what runs a job by name, and what looks at the clock before each, as the main loop does."""
        self._run = run
        self._clock = clock
        self._virtual = virtual
        self._tick = tick
        self._triggers: dict[str, Every] = {}
        self._due: dict[str, float] = {}

    def start(self, cadence: Cadence, now: float) -> None:
        """Begin, with first runs counted from ``now``."""
        for spec in JOBS:
            self._triggers[spec.name] = spec.trigger(cadence, now)
            self._due[spec.name] = now + spec.first(cadence)

    def reschedule(self, cadence: Cadence, now: float) -> None:
        """Take changed intervals."""
        for spec in JOBS:
            if spec.interval(cadence) == self._triggers[spec.name].interval_length:
                continue
            self._triggers[spec.name] = trigger = _renewed(spec.trigger(cadence, now), now)
            self._due[spec.name] = _next(trigger, None, now)

    def shift(self, step: float, now: float) -> None:
        """Move every next run with the wall clock."""
        for name, trigger in self._triggers.items():
            self._due[name] = moved(self._due[name], step, now, trigger.interval_length)

    def hasten(self, name: str, due: float) -> None:
        """Run a job earlier."""
        if name in self._due:
            self._due[name] = min(self._due[name], due)

    def stop(self) -> None:
        """Start no more jobs."""
        self._due.clear()

    def run_for(self, seconds: float) -> None:
        """Run everything that is due in the next so many seconds, in order of time, then of the table."""
        end = self._clock.monotonic() + seconds
        while self._due:
            self._tick()
            name = min(self._due, key=self._due.__getitem__)
            wait = max(self._due[name] - self._clock.now(), 0.0)
            if self._clock.monotonic() + wait > end:
                break
            self._virtual.advance(wait)
            self._run(name)
            if name in self._due:
                # A virtual job takes no time: the next one lies after both its own due time and the clock's.
                now = max(self._clock.now(), self._due[name])
                self._due[name] = _next(self._triggers[name], self._due[name], now)
        self._virtual.advance(max(end - self._clock.monotonic(), 0.0))


def _next(trigger: Every, previous: float | None, now: float) -> float:
    """Return when a trigger fires next, unix seconds."""
    before = None if previous is None else datetime.fromtimestamp(previous, tz=UTC)
    following = trigger.get_next_fire_time(before, datetime.fromtimestamp(now, tz=UTC))
    assert following is not None  # these triggers have no end
    return following.timestamp()


def _renewed(trigger: Every, now: float) -> Every:
    """Return a trigger whose first run is an interval away, as for a job that is already going."""
    trigger.start_date = datetime.fromtimestamp(now + trigger.interval_length, tz=UTC)
    return trigger


class ApschedulerDriver:
    """Runs jobs in threads of their own, when APScheduler's triggers say so."""

    def __init__(self, run: Callable[[str], None], book: JobBook) -> None:
        """Take what runs a job by name, and where missed and skipped runs are counted."""
        from apscheduler.executors.pool import ThreadPoolExecutor  # type: ignore[import-untyped]  # noqa: PLC0415
        from apscheduler.jobstores.memory import MemoryJobStore  # type: ignore[import-untyped]  # noqa: PLC0415
        from apscheduler.schedulers.background import BackgroundScheduler  # type: ignore[import-untyped]  # noqa: PLC0415

        self._run = run
        self._book = book
        self._scheduler: Any = BackgroundScheduler(
            timezone=UTC,
            jobstores={"default": MemoryJobStore()},
            executors={spec.name: ThreadPoolExecutor(spec.workers) for spec in JOBS},
        )
        self._scheduler.add_listener(self._heard)

    def start(self, cadence: Cadence, now: float) -> None:
        """Begin, with first runs counted from ``now``."""
        for spec in JOBS:
            self._scheduler.add_job(
                self._run,
                spec.trigger(cadence, now),
                args=(spec.name,),
                id=spec.name,
                # A trigger takes a first run that is due now for one that was missed.
                next_run_time=datetime.fromtimestamp(now + spec.first(cadence), tz=UTC),
                executor=spec.name,
                misfire_grace_time=math.ceil(spec.grace(cadence)),
                coalesce=spec.coalesce,
                max_instances=spec.max_instances,
                replace_existing=True,
            )
        self._scheduler.start()

    def reschedule(self, cadence: Cadence, now: float) -> None:
        """Take changed intervals."""
        for spec in JOBS:
            if spec.interval(cadence) == self._scheduler.get_job(spec.name).trigger.interval_length:
                continue
            self._scheduler.reschedule_job(spec.name, trigger=_renewed(spec.trigger(cadence, now), now))
            self._scheduler.modify_job(spec.name, misfire_grace_time=math.ceil(spec.grace(cadence)))

    def shift(self, step: float, now: float) -> None:
        """Move every next run with the wall clock, and wake the scheduler, which sleeps by the old one."""
        for each in self._scheduler.get_jobs():
            due = moved(each.next_run_time.timestamp(), step, now, each.trigger.interval_length)
            self._scheduler.modify_job(each.id, next_run_time=datetime.fromtimestamp(due, tz=UTC))

    def hasten(self, name: str, due: float) -> None:
        """Run a job earlier; nothing where no more are started."""
        job = self._scheduler.get_job(name) if self._scheduler.running else None
        if job is not None and job.next_run_time is not None and job.next_run_time.timestamp() > due:
            self._scheduler.modify_job(name, next_run_time=datetime.fromtimestamp(due, tz=UTC))

    def stop(self) -> None:
        """Start no more jobs; those that are going are not waited for."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    def _heard(self, event: Any) -> None:  # noqa: ANN401 - APScheduler ships no types
        from apscheduler import events  # type: ignore[import-untyped]  # noqa: PLC0415

        if event.code == events.EVENT_JOB_MISSED:
            self._book.missed(event.job_id)
        elif event.code == events.EVENT_JOB_MAX_INSTANCES:
            self._book.skipped(event.job_id)
        elif event.code == events.EVENT_JOB_ERROR:
            # The runner lets no Exception out: this is a SystemExit or the like of a job.
            self._book.finished(event.job_id, event.scheduled_run_time.timestamp(), "was aborted")
