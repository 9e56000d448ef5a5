"""What is counted as windows become final: accepted tokens per step, and goodput of the last minutes.

Kept beside the fits because it must not depend on them: counters may only rise, while the windows behind
a fit come and go.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tuner.fleet import POOLED_ROUTE, WindowState
from tuner.serve.labels import MAX_DRAFT_LENS, MAX_ROUTES, OTHER

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from tuner.fleet import Counts, Window

GOODPUT_SECONDS = 300.0
"""Span that goodput is a mean over: at 15 s windows 20 of them, so that a window with a wave of prefills,
which is 10 to 30 % slower than its neighbours, moves it by 1 %. An engine without a window for so long has no
goodput."""

TRUSTED = frozenset({WindowState.GOOD, WindowState.IDLE, WindowState.TRANSITION})
"""Windows whose tokens are counted; of partial and suspect ones it is not known what they count."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Counts at one moment."""

    accepted_steps: Mapping[tuple[str, str, int], tuple[float, ...]] = field(default_factory=dict)
    """(pool, route, draft length K) -> verify steps by accepted tokens (K + 1,), since the start."""
    goodput: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(pool, engine) -> emitted tokens per second."""
    efficiency: Mapping[str, float] = field(default_factory=dict)
    """Pool -> emitted over verified tokens, 0..1."""


class _Spell(NamedTuple):
    """What one window adds to goodput."""

    end: float
    seconds: float
    emitted: float
    verified: float
    """Request steps and their draft tokens; 0 where the engine does not tell."""
    gained: float
    """Emitted tokens that came of the verified ones: all but first tokens."""


class Totals:
    """Takes every final window once, in any thread but one at a time, and gives :class:`Observed`."""

    def __init__(self) -> None:
        self._steps: dict[tuple[str, str, int], list[float]] = {}
        self._routes: dict[str, set[str]] = {}
        self._spells: dict[tuple[str, str], deque[_Spell]] = {}

    def add(self, windows: Iterable[Window]) -> None:
        """Count windows; each must be given once only."""
        for window in windows:
            if window.state is WindowState.GOOD:
                self._add_steps(window)
            if window.route == POOLED_ROUTE and window.state in TRUSTED:
                spell = _spell(window)
                if spell is not None:
                    self._spells.setdefault((window.pool, window.engine), deque()).append(spell)

    def keep(self, pools: Collection[str]) -> None:
        """Drop the counts of all other pools."""
        self._steps = {key: steps for key, steps in self._steps.items() if key[0] in pools}
        self._routes = {pool: routes for pool, routes in self._routes.items() if pool in pools}
        self._spells = {key: spells for key, spells in self._spells.items() if key[0] in pools}

    def observed(self, now: float) -> Observed:
        """Return the counts; engines without a window in the last :data:`GOODPUT_SECONDS` are forgotten."""
        pools: dict[str, list[float]] = {}
        goodput: dict[tuple[str, str], float] = {}
        for key, spells in list(self._spells.items()):
            while spells and spells[0].end <= now - GOODPUT_SECONDS:
                spells.popleft()
            if not spells:
                del self._spells[key]
                continue
            goodput[key] = sum(s.emitted for s in spells) / sum(s.seconds for s in spells)
            sums = pools.setdefault(key[0], [0.0, 0.0])
            sums[0] += sum(s.gained for s in spells)
            sums[1] += sum(s.verified for s in spells)
        return Observed(
            accepted_steps={key: tuple(steps) for key, steps in self._steps.items()},
            goodput=goodput,
            efficiency={
                pool: min(1.0, max(0.0, gained / verified))
                for pool, (gained, verified) in pools.items()
                if verified > 0
            },
        )

    def _add_steps(self, window: Window) -> None:
        for draft_len, steps in accepted_steps(window).items():
            key = (window.pool, self._route(window.pool, window.route), draft_len)
            held = self._steps.setdefault(key, [0.0] * (draft_len + 1))
            for accepted, count in enumerate(steps):
                held[accepted] += count

    def _route(self, pool: str, route: str) -> str:
        known = self._routes.setdefault(pool, {POOLED_ROUTE})
        if route not in known and len(known) > MAX_ROUTES:
            return OTHER
        known.add(route)
        return route


def accepted_steps(window: Window) -> dict[int, list[float]]:
    """Return draft length K -> verify steps by accepted tokens (K + 1,), as far as the window tells.

    That is exactly where the engine gives joint counts, and where one draft length ran alone.
    """
    counts = window.counts
    if counts.joint:
        out: dict[int, list[float]] = {}
        for (drafted, accepted), count in counts.joint.items():
            if 0 <= accepted <= drafted < MAX_DRAFT_LENS and count > 0:
                out.setdefault(drafted, [0.0] * (drafted + 1))[accepted] += count
        return out
    if window.draft_lens is None or len(window.draft_lens) != 1:
        return {}
    (draft_len,) = window.draft_lens
    return _from_positions(counts, draft_len)


def _from_positions(counts: Counts, draft_len: int) -> dict[int, list[float]]:
    """Return the same of counts by position: steps that accepted i or more, less those with more."""
    if counts.drafts is None or not 0 < draft_len < MAX_DRAFT_LENS:
        return {}
    reached = counts.accepted_by_position[:draft_len]
    if len(reached) < draft_len:
        return {}
    at_least = [counts.drafts, *reached, 0.0]
    steps = [more - fewer for more, fewer in pairwise(at_least)]
    # A counter read between two of its updates may be a step ahead of another: no count goes below 0.
    return {draft_len: [max(0.0, count) for count in steps]}


def _spell(window: Window) -> _Spell | None:
    counts = window.counts
    if counts.emitted is None or window.seconds <= 0:
        return None
    told = counts.request_steps is not None and counts.draft_tokens is not None
    verified = (counts.request_steps or 0.0) + (counts.draft_tokens or 0.0) if told else 0.0
    gained = counts.emitted - (counts.first_tokens or 0.0) if told else 0.0
    return _Spell(window.end, window.seconds, counts.emitted, verified, gained)
