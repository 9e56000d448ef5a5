"""Scrapes as they come -> windows, each once: what ``build_windows`` says of a recording, while it grows.

A window goes out as soon as it is final, one scrape after it ended: its state takes the window after it
into account. It takes two where that scrape shows a counter that fell, which may be a restart or an older
reading in between. What ``build_windows`` would say of the scrapes so far is what is said, with these
differences:

- nothing is taken back: what later scrapes teach (the usual change of the batch, the unit of a counter, that
  a table is not the one that runs) holds from there on;
- a fall is judged by the last 16 scrapes and one more, not by all; units and usual changes by 240 windows;
- a window longer than four scrape intervals does not go out at all: a gap, a pause of the tuner or a step of
  the clock begins anew;
- a clock that was set back begins anew as well, and so does an engine at another address;
- where the plugin counts, its joint counts are in the window, and each route has a window beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.observe.layouts import Layouts
from tuner.observe.live_group import Watch
from tuner.observe.live_tables import Tables
from tuner.observe.live_target import LiveTarget
from tuner.observe.plugin import MAX_ROUTES, Routes
from tuner.observe.windows import WindowSet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tuner.fleet import Finding, Fingerprint, Schedule, Target, Window
    from tuner.observe.exposition import TimedScrape
    from tuner.vocabulary import Vocabulary


class LiveWindows:
    """Watches the engines of one pool. Not to be called from two threads at a time."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        pool: str,
        fingerprint: Fingerprint,
        interval: float | None = None,
        max_routes: int = MAX_ROUTES,
    ) -> None:
        """Watch no engine yet.

        Args:
            vocabulary: the engine's names.
            pool: pool of every window.
            fingerprint: what is known about the engines beyond their metrics.
            interval: seconds between scrapes; taken from the scrapes where not given.
            max_routes: routes told apart by name.
        """
        self._vocabulary = vocabulary
        self._pool = pool
        self._fingerprint = fingerprint
        self._interval = interval
        self._layouts = Layouts(vocabulary)
        self._routes = Routes(max_routes)
        self._tables: dict[str, Tables] = {}
        self._targets: dict[str, LiveTarget] = {}
        self._active: dict[str, dict[tuple[str, str, str], Finding]] = {}

    def add(self, target: Target, scrapes: Sequence[TimedScrape]) -> WindowSet:
        """Take what came of scrapes of one engine since the last time.

        Args:
            target: the engine; its name is what is remembered, another address is another process.
            scrapes: in any order; those no newer than the last one are known already and left out.

        Returns:
            The windows that became final, and the findings that were not active before. Never raises for
            what a scrape holds.
        """
        live = self._targets.get(target.engine)
        windows: list[Window] = []
        if live is None:
            live = self._targets[target.engine] = self._watch(target)
        elif live.target.url != target.url:
            windows += live.move(target)
        windows += live.take(scrapes)
        return WindowSet(tuple(windows), self._note(target.engine, live))

    def flush(self, target: Target) -> WindowSet:
        """Return the windows of an engine that are still open; nothing follows them."""
        live = self._targets.get(target.engine)
        if live is None:
            return WindowSet((), ())
        return WindowSet(tuple(live.flush()), self._note(target.engine, live))

    def forget(self, before: float) -> int:
        """Drop what was not heard of since a moment (unix seconds); return how many engines."""
        gone = [name for name, live in self._targets.items() if live.seen < before]
        for name in gone:
            del self._targets[name]
            self._active.pop(name, None)
        for live in self._targets.values():
            live.groups = {key: group for key, group in live.groups.items() if group.seen >= before}
        self._tables = {name: tables for name, tables in self._tables.items() if name not in gone}
        self._routes.forget(before)
        return len(gone)

    def set_schedule(self, target: Target, schedule: Schedule | None, since: float) -> None:
        """Say which table an engine runs from a moment on; saying so again changes nothing.

        A table pins the draft lengths of windows that lie wholly after the swap, until the engine restarts;
        one that is said to run since minus infinity is what the engine is started with. A table that what is
        drafted contradicts is not used.

        Args:
            target: the engine.
            schedule: the table, ``None`` where it is not known any more.
            since: unix seconds.
        """
        self._tables_of(target.engine).set(schedule, since)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything that is noticed now, of all engines."""
        return tuple(finding for active in self._active.values() for finding in active.values())

    @property
    def series_state(self) -> int:
        """Number of series that state is held for."""
        return sum(live.series for live in self._targets.values())

    @property
    def running(self) -> Mapping[str, tuple[str, str]]:
        """Engine -> version and source of the schedule that runs, where the plugin tells."""
        return {name: told for name, live in self._targets.items() if (told := live.running) is not None}

    def _watch(self, target: Target) -> LiveTarget:
        """Begin to watch an engine."""
        tables = self._tables_of(target.engine)
        watch = Watch(self._vocabulary, self._pool, target.engine, self._fingerprint, tables)
        return LiveTarget(target, watch, self._layouts, self._routes, self._interval)

    def _tables_of(self, engine: str) -> Tables:
        return self._tables.setdefault(engine, Tables())

    def _note(self, engine: str, live: LiveTarget) -> tuple[Finding, ...]:
        """Take over what is noticed of one engine now, and return what was not before."""
        before = self._active.get(engine, {})
        now = {
            (f.code, f.subject.get("engine", ""), str(f.evidence.get("metric", ""))): f
            for f in live.findings()
        }
        if now:
            self._active[engine] = now
        else:
            self._active.pop(engine, None)
        return tuple(finding for key, finding in now.items() if key not in before)
