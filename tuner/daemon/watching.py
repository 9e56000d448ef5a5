"""One pool as the daemon watches it: its engines, how they answer, and their windows as they come."""

from __future__ import annotations

import math
import threading
from itertools import groupby, islice
from typing import TYPE_CHECKING

from tuner._exceptions import InputError
from tuner.daemon.gpus import Gpus
from tuner.fleet import Finding
from tuner.observe.wording import counted
from tuner.serve.snapshot import TargetStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tuner.config import Pool
    from tuner.cycle import PoolSettings
    from tuner.daemon.ports import Directory, Found, Live, Server
    from tuner.fleet import Schedule, Target, Window
    from tuner.observe.exposition import TimedScrape
    from tuner.observe.windows import WindowSet
    from tuner.vocabulary import Vocabulary

ABSENT_SECONDS = 3600.0
"""Series that were not heard of for so long are forgotten: names of pods change with every rollout."""
MOST_ALIKE = 20
"""Findings of one kind that a pool tells of: a fleet with one fault has as many as engines."""
NAMED = 3
"""Engines that a message names; the API names them all."""


class Watched:
    """What stays of a pool from scrape to scrape. Its windows are made under its lock."""

    def __init__(
        self,
        pool: Pool,
        settings: PoolSettings,
        vocabulary: Vocabulary,
        directory: Directory,
        make_live: Callable[[], Live],
        interval: float,
    ) -> None:
        self.pool = pool
        self.settings = settings
        self.vocabulary = vocabulary
        self.gpus = Gpus(pool, interval)
        self.wanted = vocabulary.sample_names | self.gpus.wanted
        self.directory = directory
        self.server: Server | None = None
        """The metrics server that it is found or read by, if there is one."""
        self._make_live = make_live
        self._lock = threading.Lock()
        self._live = make_live()
        self._known: set[Target] = set()
        self.interval = interval
        """Seconds between two scrapes that its windows are made for."""
        self.found: Found | None = None
        """What discovery said last; ``None`` before the first time."""
        self.statuses: dict[Target, TargetStatus] = {}
        self.read: dict[str, Schedule | None] = {}
        """Engine -> table that it said it runs."""

    @property
    def targets(self) -> tuple[Target, ...]:
        """The engines there are now."""
        return () if self.found is None else self.found.targets

    @property
    def answers(self) -> list[TargetStatus]:
        """How each engine answered last, as of now: other threads go on noting."""
        return list(self.statuses.values())

    @property
    def series_state(self) -> int:
        """Series that state is held for."""
        with self._lock:
            return self._live.series_state

    def refresh(self, now: float) -> tuple[Window, ...]:
        """Look for engines, and return the last windows of those that went."""
        before = set(self.targets)
        found = self.directory.refresh(now)
        self.found = found
        here = set(found.targets)
        named = {target.engine for target in here}
        gone = [target for target in before - here if target.engine not in named]
        windows = self.flush(gone)
        self.statuses = {target: status for target, status in self.statuses.items() if target in here}
        return windows

    def flush(self, targets: Iterable[Target]) -> tuple[Window, ...]:
        """Return the windows of engines that are still open: nothing follows them."""
        with self._lock:
            return tuple(window for target in targets for window in self._live.flush(target).windows)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is noticed now of its engines, at most :data:`MOST_ALIKE` of a kind, the first by name."""
        with self._lock:
            noticed = sorted(
                (*self._live.findings, *self.gpus.findings),
                key=lambda f: (f.code, f.subject.get("engine", "")),
            )
        return tuple(
            each for _, alike in groupby(noticed, lambda f: f.code) for each in islice(alike, MOST_ALIKE)
        )

    def take(self, target: Target, scrapes: Sequence[TimedScrape]) -> WindowSet:
        """Return the windows that became final by these scrapes, and what was not noticed before."""
        with self._lock:
            if target not in self._known:
                self._tell(target, self.pool.startup, -math.inf)
            self.gpus.estimate(target, scrapes)
            return self._live.add(target, scrapes)

    def runs(self, target: Target, schedule: Schedule | None, since: float) -> None:
        """Note which table an engine runs, as it was read back, each time: a restart drops what was told."""
        self.read = {**self.read, target.engine: schedule}
        with self._lock:
            self._tell(target, schedule, since)

    def running(self, told: Schedule | None) -> Schedule | None:
        """Return the table that engines run, ``None`` where that is not known or they differ.

        What all engines that were read back say, else what was put in force (``told``), else the table that
        they are started with.
        """
        said = set(self.read.values())
        if len(said) == 1 and None not in said:
            return said.pop()
        return told or (None if said else self.pool.startup)

    def forget(self, now: float) -> None:
        """Drop what was not heard of for an hour."""
        with self._lock:
            self._live.forget(now - ABSENT_SECONDS)
            here = set(self.targets)
            self._known &= here
        named = {target.engine for target in here}
        self.read = {engine: schedule for engine, schedule in self.read.items() if engine in named}

    def begin_anew(self) -> None:
        """Forget the last scrapes: times before and after a step of the clock are no distance."""
        with self._lock:
            self._live = self._make_live()
            self._known.clear()

    def answered(self, target: Target, now: float, seconds: float, error: str) -> None:
        """Note how an engine answered."""
        self.statuses[target] = TargetStatus(target, not error, now, seconds, error)

    def _tell(self, target: Target, schedule: Schedule | None, since: float) -> None:
        self._known.add(target)
        self._live.set_schedule(target, schedule, since)

    def unreachable(self) -> Finding | None:
        """Return a finding about engines that do not answer, if there are any."""
        statuses = self.answers
        down = [status for status in statuses if not status.up]
        if not down:
            return None
        give = "gives" if len(statuses) == 1 else "give"
        named = "; ".join(f"{s.target.engine}: {s.error}" for s in down[:NAMED])
        more = f" and {len(down) - NAMED} more" if len(down) > NAMED else ""
        stop = "" if f"{named}{more}".endswith("?") else "."
        return Finding(
            "engines_unreachable",
            "critical" if len(down) == len(statuses) else "warning",
            f"{len(down)} of {counted(len(statuses), 'engine')} {give} no metrics that can be used: "
            f"{named}{more}{stop} "
            "Check that they run, and the addresses that discovery gives.",
            {"pool": self.pool.name},
            {"down": len(down), "engines": len(statuses)},
        )


def error_of(scrape: TimedScrape) -> str:
    """Return what was wrong with a scrape; empty if nothing."""
    return str(scrape.result) if isinstance(scrape.result, InputError) else ""


def statuses_of(watched: Mapping[str, Watched]) -> tuple[TargetStatus, ...]:
    """Return how every engine answered last, by pool and engine; one that was just found has not yet."""
    return tuple(
        pool.statuses.get(target, TargetStatus(target, up=False, last_scrape=None, seconds=0.0, error=""))
        for _, pool in sorted(watched.items())
        for target in sorted(pool.targets, key=lambda each: (each.engine, each.url))
    )
