"""The tables that one engine is said to run, from when on, and what its windows say against them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tuner.observe.draft_notices import misses_tokens
from tuner.observe.engine_notices import SURE_WINDOWS
from tuner.observe.tables import Held, contradiction

if TYPE_CHECKING:
    from tuner.fleet import Schedule
    from tuner.observe.evidence import RawWindow
    from tuner.observe.layouts import GroupKey
    from tuner.observe.states import Judged

SWAP_STEPS = 2.0
"""Engine steps from a change of table to the first that it decides throughout: a draft length chosen in
one step is drafted there and verified in the next (vLLM 0.32.0 ``v1/core/sched/scheduler.py:1486``)."""
KEPT = 4
"""Tables kept of one engine: windows are final a scrape after they end, and no more change in that time."""
REMEMBERED = 16
"""Contradictions that are counted; two refute a table."""


@dataclass(slots=True)
class Against:
    """What the windows of one group say against a table."""

    held: Held = field(default_factory=Held)
    short: int = 0
    """Windows whose drafts were shorter than the one row they ran in."""


@dataclass(slots=True, eq=False)
class Table:
    """A table, or the knowledge that none is known, and what speaks against it."""

    schedule: Schedule | None
    since: float
    against: dict[GroupKey, Against] = field(default_factory=dict)

    @property
    def refuted(self) -> bool:
        """Tell whether any group contradicts it often enough."""
        return any(one.held.refuted for one in self.against.values())

    def of(self, group: GroupKey) -> Against:
        """Return what one group says."""
        return self.against.setdefault(group, Against())

    def weigh(self, group: GroupKey, one: Judged, *, optional: bool) -> bool:
        """Note whether a concluded window speaks against the table; return whether it does."""
        if self.schedule is None:
            return False
        said = self.of(group)
        against = contradiction(0, one, self.schedule, optional=optional)
        if against is not None:
            held = said.held.with_one(against)
            said.held = Held(held.other[-REMEMBERED:], held.nothing[-REMEMBERED:])
        elif misses_tokens(one, self.schedule):
            said.short = min(said.short + 1, REMEMBERED)
        return against is not None

    def cuts(self, group: GroupKey) -> bool:
        """Tell whether drafts miss tokens where the batch stays in one row."""
        return self.of(group).short >= SURE_WINDOWS


class Tables:
    """The tables of one engine in the order of time."""

    def __init__(self) -> None:
        self._tables: list[Table] = []

    def set(self, schedule: Schedule | None, since: float) -> None:
        """Note that a table runs from a moment on; saying so again changes nothing."""
        newest = self._tables[-1] if self._tables else None
        if newest is not None and newest.schedule == schedule and not newest.refuted:
            newest.since = min(newest.since, since)
            return
        kept = [table for table in self._tables if table.since < since]
        self._tables = [*kept, Table(schedule, since)][-KEPT:]

    def restarted(self, at: float) -> None:
        """End what was set while the engine ran; what it is always started with runs again."""
        newest = self._tables[-1] if self._tables else None
        if newest is None or newest.since == -math.inf or newest.since >= at:
            return
        first = self._tables[0]
        again = first.schedule if first.since == -math.inf else None
        self._tables = [*self._tables, Table(again, at)][-KEPT:]
        if first.since == -math.inf and self._tables[0] is not first:
            self._tables[0] = first

    def moved(self) -> None:
        """Keep of another process' tables only what every process is started with."""
        self._tables = [
            Table(table.schedule, table.since) for table in self._tables if table.since == -math.inf
        ]

    def over(self, window: RawWindow) -> Table | None:
        """Return the table that ran throughout a window, ``None`` where none is known to."""
        steps = window.counts.steps
        delay = SWAP_STEPS * window.seconds / steps if steps else 0.0
        until = math.inf
        for table in reversed(self._tables):
            if table.since + delay <= window.start:
                return table if window.end <= until and table.schedule is not None else None
            until = table.since
        return None
