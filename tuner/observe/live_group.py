"""One rank of one engine as it is watched: scrapes come in, windows go out once, when they are final."""

from __future__ import annotations

import math
from array import array
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from tuner.observe.deltas import CLOCK_SLACK, EXACT, MAX_PER_SECOND, ROUNDING, Interval
from tuner.observe.engine_notices import OPTIONAL_PROPOSALS, EngineView
from tuner.observe.evidence import Followed, RawWindow, freeze
from tuner.observe.layouts import label_of
from tuner.observe.snapshots import Group, gauge_value
from tuner.observe.states import Judged, conclude, jump_limit, link, look_at
from tuner.observe.units import ONE_PROCESS, StepUnits, UnitEvidence, apply_units
from tuner.observe.windows import complete, draft_lens_of, freeze_window, subject_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from tuner.fleet import Fingerprint, Window
    from tuner.observe.layouts import GroupKey, GroupLayout, Layout
    from tuner.observe.live_tables import Table, Tables
    from tuner.vocabulary import Vocabulary

RING = 16
"""Scrapes held: what a fall means is judged by the pace of so many (4 min at 15 s), findings are told by
so many windows. Costs 13 KB an engine of vLLM."""
SPARE = 60
"""Numbers by which a list may outgrow its bound before it is cut."""
SETTLED = 3
"""Intervals without an event until the next scrape is taken for a plain difference: windows that are still
open are then judged with what the scrapes since the event taught."""
LEARNED = 240
"""Windows (an hour at 15 s) by which units and the usual change of the batch are told."""
STARTS = 300
"""Starts of windows that are remembered, so that a clock set back by an hour makes none twice (15 s)."""
CALM = Interval()
"""An interval in which nothing happened; shared and never written to."""


@dataclass(slots=True, eq=False)
class Entry:
    """One scrape that is held."""

    time: float
    layout: Layout
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Final:
    """A window that is final, and the evidence that it was made of."""

    window: Window
    judged: Judged
    gap: bool
    """Longer than a window may be: a new baseline, not evidence."""


@dataclass(slots=True, eq=False)
class Watch:
    """What holds for every rank of one engine."""

    vocabulary: Vocabulary
    pool: str
    engine: str
    known: Fingerprint
    tables: Tables

    @property
    def optional(self) -> bool:
        """Tell whether the drafter may propose nothing."""
        return self.known.method in OPTIONAL_PROPOSALS


@dataclass(slots=True, eq=False)
class LiveGroup:
    """What is remembered of one rank, and what is still to be judged."""

    key: GroupKey
    watch: Watch
    subject: dict[str, str] = field(init=False)
    fingerprint: Fingerprint = field(init=False)
    seen: float = -math.inf
    """Time of the last scrape that told about this rank."""
    restarts: int = 0
    calm: bool = False
    """The last interval is decided and nothing happened in it, so that the next may be a plain difference."""
    decided: bool = True
    held: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    gauges: dict[str, float | None] = field(default_factory=dict)
    capacity: float | None = None
    single: bool = False
    pending: list[RawWindow] = field(default_factory=list)
    looked: list[Judged | None] = field(default_factory=list)
    tail: Judged | None = None
    """The last window that went out."""
    until: float = -math.inf
    """End of that window."""
    counted: float = -math.inf
    """End of the last window that units were learned from."""
    evidence: UnitEvidence = field(default_factory=lambda: UnitEvidence(most=LEARNED))
    units: StepUnits = ONE_PROCESS["output"]
    changes: array[float] = field(default_factory=lambda: array("d"))
    joined: float | None = None
    """Time of the scrape between the two windows whose change was noted last."""
    history: deque[tuple[Judged, Table | None]] = field(default_factory=lambda: deque(maxlen=RING))
    bad: deque[tuple[str, ...]] = field(default_factory=lambda: deque(maxlen=RING))
    """Gauges that could not be, scrape by scrape."""
    aliases: dict[str, list[str]] = field(default_factory=dict)
    exact: bool = False
    """The plugin told the draft lengths of the last window."""
    stale: int = 0
    """Scrapes until the aliases before the one in use are out of sight."""
    starts: array[float] = field(default_factory=lambda: array("d"))
    highest: float = -math.inf
    """Latest start of a window that went out."""

    def __post_init__(self) -> None:
        """Name the rank."""
        watch = self.watch
        self.subject = subject_of(self.key, watch.vocabulary, watch.pool, watch.engine)
        self.fingerprint = complete(watch.known, self.subject["model"], "")

    def rebase(self) -> None:
        """Begin anew at the next scrape: no window spans what lies between."""
        self.calm, self.decided = False, True
        self.pending, self.looked = [], []
        self.tail, self.joined = None, None
        self.until = self.counted = -math.inf

    def step(self, before: Entry, now: Entry, values_told: Sequence[float]) -> bool:
        """Take a scrape in which nothing but counting happened; return whether it was one.

        It is the whole of what :func:`tuner.observe.deltas.follow` would do, for all series at once.

        Args:
            before: the scrape before.
            now: the newest scrape.
            values_told: its values.
        """
        placed, placed_before = now.layout.groups.get(self.key), before.layout.groups.get(self.key)
        if placed is None or placed_before is None or not self.calm:
            return False
        if placed is not placed_before and placed.identity != placed_before.identity:
            return False
        values, old = now.values[placed.places], before.values[placed_before.places]
        most = MAX_PER_SECOND * max(1.0, now.time - before.time)
        with np.errstate(invalid="ignore"):
            counted = (values >= self.held * (1 - ROUNDING)) & (values < EXACT) & (values - old <= most)
            created = now.values[placed.created] - before.values[placed_before.created] <= CLOCK_SLACK
        if not (counted.all() and created.all()):
            return False
        start, start_before = placed.start, placed_before.start
        if (start < 0) is not (start_before < 0):
            return False
        if start >= 0 and not abs(now.values[start] - before.values[start_before]) <= CLOCK_SLACK:
            return False
        grown = np.maximum(values - self.held, 0.0).tolist()
        self.held = np.maximum(values, self.held)
        told = self._read_gauges(placed, values_told)
        self._describe(placed)
        totals: dict[str, float | None] = {
            logical: sum(grown[i] for i in placed.members[logical]) if logical in placed.members else None
            for logical in self.watch.vocabulary.counters
        }
        by_position = tuple(grown[i] for i in placed.positions)
        self.pending.append(
            freeze(
                (before.time, now.time),
                totals,
                (by_position, placed.odd),
                (self.gauges, told, self.capacity),
                CALM,
                self.watch.vocabulary.required,
            )
        )
        self.looked.append(None)
        self.gauges, self.seen = told, now.time
        if self.stale:
            self.stale -= 1
        return True

    def follow(
        self,
        times: Sequence[float],
        group: Group,
        followed: Followed,
        newest: tuple[GroupLayout | None, Sequence[float]],
    ) -> None:
        """Take the newest scrape by judging all that are held.

        Args:
            times: of the scrapes that are held.
            group: the rank over these scrapes.
            followed: its windows from ``until`` on.
            newest: where its numbers stand in the newest scrape, ``None`` where it is absent, and its values.
        """
        placed, told = newest
        last = followed.intervals[-1] if followed.intervals else CALM
        self.decided = last.event == "none" and not last.bad
        self.pending = followed.windows
        self.looked = [None] * len(self.pending)
        self.single = self.single or group.single_process
        self.aliases = {name: list(dict.fromkeys(filter(None, used))) for name, used in group.used.items()}
        self.stale = RING
        if placed is None:
            self.calm = False
            return
        vanished = any(
            group.tracks[key].values[-1] is None
            for logical in group.used
            for key in group.members(logical, len(times) - 1)
        )
        held = [followed.held.get(one.key) for one in placed.counters]
        quiet = all(one.event == "none" and not one.bad for one in followed.intervals[-SETTLED:])
        self.calm = quiet and not vanished and None not in held
        self.held = np.array(held, dtype=np.float64)
        if self.seen != times[-1]:
            self.gauges = self._read_gauges(placed, told)
            self.seen = times[-1]
        self._describe(placed)

    def _read_gauges(self, placed: GroupLayout, values: Sequence[float]) -> dict[str, float | None]:
        """Return the gauges of a scrape, and note which of them cannot be."""
        told = {}
        bad: tuple[str, ...] = ()
        for name, places in placed.gauges.items():
            told[name], odd = gauge_value(places, values)
            if odd:
                bad = (*bad, name)
        self.bad.append(bad)
        return told

    def _describe(self, placed: GroupLayout) -> None:
        """Take over what a scrape says of the process and its KV cache."""
        self.single = self.single or placed.start >= 0 or len(placed.created) > 0
        cache = placed.cache
        if cache is not None:
            self.capacity = cache.capacity
            if cache.dtype != self.fingerprint.kv_cache_dtype:
                self.fingerprint = complete(self.watch.known, self.subject["model"], cache.dtype)

    def advance(self, newest: float, longest: float, *, flush: bool = False) -> list[Final]:
        """Return the windows that are final: they and the one after them are decided.

        Args:
            newest: time of the last scrape of the engine.
            longest: seconds that a window may span.
            flush: nothing follows, so that all are.
        """
        if not self.pending:
            return []
        count = len(self.pending)
        if not flush and self.pending[-1].end == newest:
            count -= 1 if self.decided else 2
        self._learn(flush=flush)
        for i, raw in enumerate(self.pending):
            gap = raw.seconds > longest
            if gap is not raw.gap:
                raw.gap, self.looked[i] = gap, None
        finals = [self._finish(i) for i in range(count)]
        if count > 0:
            del self.pending[:count], self.looked[:count]
        return finals

    def _learn(self, *, flush: bool) -> None:
        """Learn what steps mean from windows that are decided."""
        decided = self.pending if self.decided or flush else self.pending[:-1]
        for raw in decided:
            if raw.end > self.counted:
                self.evidence.add(raw, paces=not self.single)
                self.counted = raw.end
        units = self.evidence.units(single_process=self.single)
        if units != self.units:
            self.units = units
            self.looked = [None] * len(self.pending)

    def _look(self, i: int) -> Judged | None:
        """Return a pending window judged by itself and joined to the one that went out before it."""
        if i >= len(self.pending):
            return None
        one = self.looked[i]
        if one is None:
            raw = self.pending[i]
            if not self.units.as_counted:
                raw = replace(raw)
                apply_units(raw, self.units)
            one = self.looked[i] = look_at(raw, optional=self.watch.optional)
            if i == 0 and self.tail is not None:
                self._join(self.tail, one)
        return one

    def _join(self, first: Judged, second: Judged) -> None:
        """Make neighbours of two windows, and learn how far the batch moved between them, once."""
        change = link(first, second)
        if self.joined == first.raw.end and self.changes:
            self.changes.pop()
            self.joined = None
        if change is not None:
            self.changes.append(change)
            self.joined = first.raw.end
        if len(self.changes) >= LEARNED + SPARE:
            del self.changes[:SPARE]

    def _finish(self, i: int) -> Final:
        """Conclude one window by its neighbours and by the table that ran."""
        one, after = self._look(i), self._look(i + 1)
        assert one is not None
        if after is not None:
            self._join(one, after)
        if one.raw.interval.event == "restart":
            self.restarts += 1
            self.watch.tables.restarted(one.raw.start)
        limit = jump_limit(self.changes)
        table = self.watch.tables.over(one.raw)
        looked = one.state, one.reason
        one.state, one.reason = conclude(one, limit, table.schedule if table is not None else None)
        contradicts = table is not None and table.weigh(self.key, one, optional=self.watch.optional)
        refuted = table is not None and table.of(self.key).held.refuted
        if refuted:
            one.state, one.reason = looked
            one.state, one.reason = conclude(one, limit)
        trusted = None if table is None or refuted or contradicts else table.schedule
        cut = trusted is not None and table is not None and table.cuts(self.key)
        lens = draft_lens_of(one, trusted, cut=cut)
        window = freeze_window(one, self.subject, self.fingerprint, lens, restarts=self.restarts)
        one.before = one.after = None
        self.tail, self.until = one, one.raw.end
        self.history.append((one, table))
        return Final(window, one, one.raw.gap)

    def first_time(self, start: float) -> bool:
        """Tell whether no window of this rank went out with this start before, and note it."""
        if start <= self.highest and start in self.starts:
            return False
        self.highest = max(self.highest, start)
        self.starts.append(start)
        if len(self.starts) >= STARTS + SPARE:
            del self.starts[:SPARE]
        return True

    def view(self, placed: GroupLayout | None) -> tuple[EngineView, Table | None]:
        """Return the last windows as the rules that report on an engine look at them, and their table."""
        table = self.history[-1][1] if self.history else None
        used: Mapping[str, list[str]] = self.aliases
        if not self.stale and placed is not None:
            used = {logical: [name] for logical, name in placed.used.items()}
        group = Group(
            self.key, [], used=dict(used), bad_gauges=dict(Counter(n for some in self.bad for n in some))
        )
        view = EngineView(
            group,
            [one for one, its in self.history if its is table or table is None],
            self.units,
            self.subject,
            self.watch.vocabulary,
            self.watch.known,
            table.schedule if table is not None else None,
            table.of(self.key).held if table is not None else None,
        )
        return view, table

    @property
    def rank(self) -> str:
        """Return the label that tells ranks apart."""
        return label_of(self.key, self.watch.vocabulary.rank_label)
