"""One address as it is watched: its last scrapes, and the ranks that they tell about."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from tuner._exceptions import InputError
from tuner.fleet import Finding, WindowState
from tuner.observe.draft_notices import of_drafts
from tuner.observe.engine_notices import SURE_WINDOWS, of_engine
from tuner.observe.evidence import LONGEST_GAP, follow_group, usual_interval
from tuner.observe.exposition import Scrape, TimedScrape
from tuner.observe.layouts import MOST_RANKS
from tuner.observe.live_group import RING, Entry, LiveGroup, Watch
from tuner.observe.notices import of_scrapes, of_strangers
from tuner.observe.plugin import (
    OTHER_ROUTES,
    PluginCounts,
    counts_between,
    differs,
    exposures,
    lens_told,
    route_window,
)
from tuner.observe.snapshots import assemble

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tuner.fleet import Target, Window
    from tuner.observe.layouts import GroupKey, Layouts
    from tuner.observe.live_group import Final
    from tuner.observe.plugin import Routes

JITTER = 0.05
"""Part of an interval by which a scrape may be late: three that failed make 60.1 s at 15 s, not 60."""
LONGEST_SECONDS = 600.0
"""Longest window where the interval is not known: it is then taken from the scrapes, which may all be far
apart at first."""
TICK = 0.001
"""Seconds that are added to times after the clock was set back, so that an interval that divides the step
gives no window the start of an earlier one."""
PLAIN = Scrape()
"""What is remembered of a scrape that has nothing odd about it."""


@dataclass(slots=True, eq=False)
class LiveTarget:
    """What is remembered of one address."""

    target: Target
    watch: Watch
    layouts: Layouts
    routes: Routes
    interval: float | None
    ring: deque[Entry] = field(default_factory=lambda: deque(maxlen=RING))
    groups: dict[GroupKey, LiveGroup] = field(default_factory=dict)
    outcomes: deque[TimedScrape] = field(default_factory=lambda: deque(maxlen=RING))
    odd: int = 0
    """Scrapes until the last odd outcome is out of sight."""
    shift: float = 0.0
    """Seconds added to the clock, see ``TICK``."""
    seen: float = -math.inf
    """Time of the last scrape, good or bad, by the clock of the scraper."""
    moved: int = 0
    """Scrapes until the last change of address is out of sight."""
    faults: deque[str] = field(default_factory=lambda: deque(maxlen=RING))
    """Why the plugin's counters were not used, window by window; empty where they were."""
    strangers: int = 0
    """Scrapes in a row in which none of the engine's metrics was found."""

    @property
    def longest(self) -> float:
        """Seconds that a window may span."""
        if self.interval is not None:
            return self.interval * (LONGEST_GAP + JITTER)
        return min(LONGEST_GAP * usual_interval([entry.time for entry in self.ring]), LONGEST_SECONDS)

    @property
    def series(self) -> int:
        """Series that state is held for."""
        return len(self.ring[-1].layout.keys) if self.ring else 0

    def take(self, scrapes: Iterable[TimedScrape]) -> list[Window]:
        """Take scrapes in the order of time, and return the windows that became final."""
        ordered = sorted(scrapes, key=lambda scrape: scrape.time)
        if not ordered:
            return []
        out: list[Window] = []
        if self.ring and ordered[-1].time + self.shift < self.ring[-1].time - self._patience():
            out += self.begin_anew()
            self.shift += TICK
        told = -math.inf
        for time, result in ordered:
            again, told = time == told, time
            self.seen = time
            if isinstance(result, InputError):
                self._note(TimedScrape(time, result))
                if self.ring and time + self.shift > self.ring[-1].time + self.longest:
                    out += self._advance(flush=True)
            elif not self.ring or time + self.shift > self.ring[-1].time:
                odd = result.repeated or result.contradicted
                self._note(TimedScrape(time, result if odd else PLAIN))
                self._push(time + self.shift, result)
                out += self._advance()
            elif again:
                self._note(TimedScrape(time, PLAIN))
        return out

    def _patience(self) -> float:
        """Return by how much a scrape may be older than the last one for it to be merely told again."""
        return self.interval or usual_interval([entry.time for entry in self.ring])

    def _note(self, outcome: TimedScrape) -> None:
        """Remember what came of a scrape."""
        repeated = bool(self.outcomes) and self.outcomes[-1].time == outcome.time
        self.outcomes.append(outcome)
        self.moved = max(0, self.moved - 1)
        self.odd = RING if repeated or outcome.result is not PLAIN else max(0, self.odd - 1)

    def begin_anew(self) -> list[Window]:
        """End what is open, and take the next scrape for a new baseline."""
        out = self._advance(flush=True)
        self.ring.clear()
        for group in self.groups.values():
            group.rebase()
        return out

    def move(self, target: Target) -> list[Window]:
        """Go on with another process in the place of the one before."""
        out = self.begin_anew()
        self.target = target
        self.watch.tables.moved()
        self.moved = RING
        for group in self.groups.values():
            group.restarts += 1
        return out

    def flush(self) -> list[Window]:
        """Return the windows that are still open: nothing follows them."""
        return self._advance(flush=True)

    def _push(self, time: float, scrape: Scrape) -> None:
        """Hold one more scrape and follow the counters to it."""
        before = self.ring[-1] if self.ring else None
        layout = self.layouts.of(scrape, before.layout if before is not None else None)
        values = list(scrape.samples.values())
        now = Entry(time, layout, np.array(values, dtype=np.float64))
        self.ring.append(now)
        self.strangers = 0 if layout.groups else self.strangers + 1
        if len(self.groups.keys() | layout.groups.keys()) > 2 * MOST_RANKS:
            # Ranks come and go with each scrape: those of the newest are all that can be followed.
            self.groups = {key: group for key, group in self.groups.items() if key in layout.groups}
        for key in layout.groups:
            if key not in self.groups:
                self.groups[key] = LiveGroup(key, self.watch)
        first = self.ring[0].time
        held = [
            live for key, live in self.groups.items() if key in layout.groups or first <= live.seen <= time
        ]
        if before is None or not all(live.step(before, now, values) for live in held):
            self._follow_all(now)

    def _follow_all(self, now: Entry) -> None:
        """Judge all scrapes that are held anew: something other than counting happened."""
        entries = [(entry.layout, entry.values.tolist()) for entry in self.ring]
        times = [entry.time for entry in self.ring]
        told = {group.key: group for group in assemble(entries, self.watch.vocabulary)}
        for key, live in self.groups.items():
            group = told.get(key)
            if group is None:
                live.rebase()
                continue
            followed = follow_group(times, group, self.watch.vocabulary, since=live.until)
            live.follow(times, group, followed, (now.layout.groups.get(key), entries[-1][1]))

    def _advance(self, *, flush: bool = False) -> list[Window]:
        """Return the windows that are final, with those of their routes."""
        if not self.ring:
            return []
        newest, longest = self.ring[-1].time, self.longest
        out: list[Window] = []
        for group in self.groups.values():
            for final in group.advance(newest, longest, flush=flush):
                if not final.gap and group.first_time(final.window.start):
                    out += self._with_routes(group, final)
        return out

    def _with_routes(self, group: LiveGroup, final: Final) -> list[Window]:
        """Add what the plugin counted to a window, and a window for each route."""
        window = final.window
        told = self._plugin_counts(group, final)
        if told is None:
            group.exact = group.exact and final.judged.state is not WindowState.GOOD
            return [window]
        fault = told.fault or differs(told.joint, window.counts)
        self.faults.append(fault)
        group.exact = not fault
        if fault or not told.joint:
            return [window]
        exposed, _ = exposures(told.joint)
        asked = window.draft_lens
        window = replace(
            window,
            counts=replace(window.counts, joint=told.joint, exposed_by_position=exposed),
            draft_lens=lens_told(asked, told.joint),
        )
        merged = self.routes.merge(told.routes, window.end)
        return [window, *(route_window(window, name, merged[name], asked) for name in sorted(merged))]

    def _plugin_counts(self, group: LiveGroup, final: Final) -> PluginCounts | None:
        """Return what the plugin counted in a window, ``None`` where it is not there or nothing is sure."""
        interval = final.judged.raw.interval
        now = next((entry for entry in reversed(self.ring) if entry.time == final.window.end), None)
        if now is None or now.layout.plugin is None or interval.event != "none" or interval.bad:
            return None
        before = next((entry for entry in reversed(self.ring) if entry.time == final.window.start), None)
        if before is None or before.layout.plugin is None or final.window.counts.drafts is None:
            return None
        owner = now.layout.plugin.owner(group.key, alone=len(now.layout.groups) == 1)
        if owner is None:
            return PluginCounts(fault="series that name no rank where there are several")
        return counts_between(
            (before.layout.plugin, before.values.tolist()), (now.layout.plugin, now.values.tolist()), owner
        )

    @property
    def running(self) -> tuple[str, str] | None:
        """Version and source of the schedule that the plugin says is running."""
        plugin = self.ring[-1].layout.plugin if self.ring else None
        return plugin.running if plugin is not None else None

    def findings(self) -> Iterator[Finding]:
        """Report what the last scrapes and windows showed."""
        subject = {"pool": self.watch.pool, "engine": self.watch.engine}
        if self.odd:
            for finding in of_scrapes(self.outcomes):
                yield replace(finding, subject=subject)
        if self.strangers >= SURE_WINDOWS:
            stranger = self.ring[-1].layout
            names = tuple(dict.fromkeys(key.name for key in stranger.keys))
            finding = of_strangers([Scrape(names=names)] * self.strangers, self.watch.vocabulary)
            yield replace(finding, subject=subject)
        if self.moved:
            yield Finding(
                "engine_moved",
                "info",
                "the engine answers at another address: counted anew, as after a restart; a table that was "
                "set while it ran is lost",
                subject,
                {"address": self.target.url},
            )
        if self.ring and (left_out := self.ring[-1].layout.left_out):
            yield Finding(
                "ranks_capped",
                "warning",
                f"tells of {MOST_RANKS + left_out} ranks: the first {MOST_RANKS} are followed; drop the "
                "label that tells them apart if it is none of the engine's, else give each rank an address",
                subject,
                {"followed": MOST_RANKS, "left_out": left_out},
            )
        placed = self.ring[-1].layout.groups if self.ring else {}
        for group in self.groups.values():
            if group.history:
                view, table = group.view(placed.get(group.key))
                yield from of_engine(view)
                refuted = table is None or table.of(group.key).held.refuted
                if not group.exact:
                    yield from of_drafts(view, None if refuted or table is None else table.schedule)
        yield from self._plugin_findings(subject)

    def _plugin_findings(self, subject: dict[str, str]) -> Iterator[Finding]:
        """Report counters of the plugin that are not used, and routes beyond the bound."""
        faults = [fault for fault in self.faults if fault]
        if len(faults) >= SURE_WINDOWS:
            yield Finding(
                "plugin_counts_unused",
                "warning",
                f"the plugin's counters are not those of the engine ({faults[-1]}): acceptance is read from "
                "the engine's own, without routes; load one plugin in every process of the engine",
                subject,
                {"windows": len(faults), "last": faults[-1]},
            )
        if self.seen - self.routes.turned_away < RING * (self.interval or self._patience()):
            yield Finding(
                "routes_capped",
                "warning",
                f"more than {self.routes.most} routes: the rest is counted as {OTHER_ROUTES!r}; use a label "
                "with few values, such as the kind of traffic",
                subject,
                {"most": self.routes.most},
            )
