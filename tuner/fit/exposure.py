"""Windows to exposure: how often each draft position was reached *and* proposed, how often accepted.

Dividing the acceptances of a late position by all drafts makes acceptance look collapsed as soon as
the draft length varies, because steps with a shorter draft never asked. So every source is turned
into pairs (exposed, accepted) per position, or says what it cannot identify:

==================================  ==================================================================
what the window tells               what it identifies
==================================  ==================================================================
``joint`` counts n[d][a]            every position, exactly
``exposed_by_position``             every position, exactly
one draft length K                  position i < K: exposed are the drafts that accepted position i-1
two draft lengths k1 < k2           position k1 by the share ``w = (T/D - k1)/(k2 - k1)`` of drafts that
                                    went beyond it; the other positions as above
three or more                       positions equal to none of them; the others are censored
one K, drafts cut short             position 0, low by (K - T/D)/K of itself at most; the others are censored
a mix that nobody knows             position 0; the others are censored
==================================  ==================================================================

Counter semantics: vLLM 0.32.0 ``v1/core/sched/scheduler.py:2110-2149`` and ``v1/spec_decode/metrics.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tuner.fit.plausibility import impossible
from tuner.fleet import SHORT_DRAFT_TOKENS, Window, WindowState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.fit.arrays import FloatArray, IntArray
    from tuner.fleet import Counts

OPTIONAL_METHODS = ("ngram", "suffix", "prompt_lookup", "lookahead")
"""Drafters that stay silent when nothing matches; their draft-token counters may hold padding."""

SILENT_SHARE = 0.9
"""Fewer drafts than this share of request steps is a drafter that proposes when it pleases, if nothing else
explains them. Drafters that always propose read 1.00 (0.99 with a preemption)."""

ALWAYS_SILENT = 0.9
"""Share of windows that must show silent steps where a table that switches between K and 0 would too: it
leaves windows that lie in one row, and those draft in every step or in none."""

TWO = 2
"""Draft lengths that two totals, drafts and draft tokens, can pin."""


class Basis(IntEnum):
    """How a window identifies a position."""

    NONE = 0
    """Not proposed in this window."""
    DIRECT = 1
    SOLVED = 2
    """By the share of the longer of two draft lengths."""
    CENSORED = 3
    """Proposed, but the number of times is not known."""


@dataclass(frozen=True, eq=False)
class ExposureTable:
    """Exposure of n windows at P positions, ordered by engine and time.

    All arrays are float unless said otherwise; ``(n,)`` per window, ``(n, P)`` per window and position.
    """

    windows: tuple[Window, ...]
    engine: IntArray
    """(n,) number of the engine."""
    seconds: FloatArray
    drafts: FloatArray
    exposed: FloatArray
    """(n, P) drafts that reached and proposed the position; 0 where not identified."""
    accepted: FloatArray
    basis: IntArray
    """(n, P) a :class:`Basis`."""
    share: FloatArray
    """(n, P) share of the window's drafts that were long enough to propose the position; NaN if unknown."""
    draft_len: IntArray
    """(n,) the one draft length of the window, 0 where it is a mix or many drafts were cut short."""
    asked: IntArray
    """(n,) the one draft length that was asked for, whatever was cut off; 0 where not one or not known."""
    cut: FloatArray
    """(n,) draft tokens per draft that are missing at the draft length asked for, 0 where not known."""
    quarantined: tuple[tuple[Window, str], ...]
    """Windows with impossible numbers, and which."""

    @property
    def positions(self) -> int:
        """Number of draft positions in the table."""
        return int(self.exposed.shape[1])

    def keep(self, mask: np.ndarray) -> ExposureTable:
        """Return the table of the windows where ``mask`` (n,) holds."""
        if mask.all():
            return self
        return ExposureTable(
            windows=tuple(window for window, kept in zip(self.windows, mask, strict=True) if kept),
            engine=self.engine[mask],
            seconds=self.seconds[mask],
            drafts=self.drafts[mask],
            exposed=self.exposed[mask],
            accepted=self.accepted[mask],
            basis=self.basis[mask],
            share=self.share[mask],
            draft_len=self.draft_len[mask],
            asked=self.asked[mask],
            cut=self.cut[mask],
            quarantined=self.quarantined,
        )


def build_exposure(windows: Sequence[Window]) -> ExposureTable:
    """Turn the good windows that drafted anything into exposure-corrected counts per position.

    Windows with impossible numbers (more accepted than drafted, a position accepted more often than the
    one before it, positions that do not add up to the total, draft tokens outside the draft lengths in
    use) are quarantined, never clamped.
    """
    usable: list[Window] = []
    quarantined: list[tuple[Window, str]] = []
    for window in sorted(windows, key=lambda one: (one.engine, one.start)):
        if window.state is not WindowState.GOOD:
            continue
        fault = impossible(window)
        if fault:
            quarantined.append((window, fault))
        elif drafts_of(window.counts) > 0:
            usable.append(window)
    return _table(usable, tuple(quarantined))


def _table(usable: list[Window], quarantined: tuple[tuple[Window, str], ...]) -> ExposureTable:
    depth = max((_depth(window) for window in usable), default=1)
    numbers: dict[str, int] = {}
    rows = [_from_joint(w, depth) if w.counts.joint else _from_counters(w, depth) for w in usable]
    shape = (len(usable), depth)
    asked = [_asked(w, row.draft_len) for w, row in zip(usable, rows, strict=True)]
    return ExposureTable(
        windows=tuple(usable),
        engine=np.array([numbers.setdefault(w.engine, len(numbers)) for w in usable], dtype=np.int64),
        seconds=np.array([w.end - w.start for w in usable], dtype=np.float64),
        drafts=np.array([drafts_of(w.counts) for w in usable], dtype=np.float64),
        exposed=np.array([row.exposed for row in rows], dtype=np.float64).reshape(shape),
        accepted=np.array([row.accepted for row in rows], dtype=np.float64).reshape(shape),
        basis=np.array([row.basis for row in rows], dtype=np.int64).reshape(shape),
        share=np.array([row.share for row in rows], dtype=np.float64).reshape(shape),
        draft_len=np.array([row.draft_len for row in rows], dtype=np.int64),
        asked=np.array(asked, dtype=np.int64),
        cut=np.array([_cut(w, k) for w, k in zip(usable, asked, strict=True)], dtype=np.float64),
        quarantined=quarantined,
    )


@dataclass(slots=True)
class _Row:
    """One window, positions 0 to depth - 1. Plain lists: numpy costs 1 us an element at this size."""

    exposed: list[float]
    accepted: list[float]
    basis: list[int]
    share: list[float]
    draft_len: int


def _asked(window: Window, ran: int) -> int:
    """The one draft length that was asked for: the one that ran, else the one that was named."""
    named = [length for length in window.draft_lens or () if length > 0]
    return ran or (named[0] if len(named) == 1 else 0)


def _cut(window: Window, asked: int) -> float:
    """Draft tokens per draft that are missing at the draft length asked for."""
    tokens = window.counts.draft_tokens
    if tokens is None or not asked or window.counts.joint:
        return 0.0
    return max(0.0, asked - tokens / drafts_of(window.counts))


def _empty(depth: int) -> _Row:
    return _Row([0.0] * depth, [0.0] * depth, [Basis.NONE] * depth, [0.0] * depth, 0)


def _depth(window: Window) -> int:
    counts = window.counts
    depth = max(1, len(counts.accepted_by_position), len(counts.exposed_by_position))
    if counts.joint:
        depth = max(depth, *(drafted for drafted, _ in counts.joint))
    return max(depth, *window.draft_lens) if window.draft_lens else depth


def _from_joint(window: Window, depth: int) -> _Row:
    """Exact exposure from n[d][a]."""
    row = _empty(depth)
    total = drafts_of(window.counts)
    lengths = set()
    for (drafted, taken), count in window.counts.joint.items():
        if drafted == 0 or count == 0:
            continue
        lengths.add(drafted)
        for position in range(drafted):
            row.share[position] += count / total
            if position <= taken:
                row.exposed[position] += count
                row.basis[position] = Basis.DIRECT
            if position < taken:
                row.accepted[position] += count
    row.draft_len = lengths.pop() if len(lengths) == 1 else 0
    return row


def _from_counters(window: Window, depth: int) -> _Row:
    """Exposure from counters, by the draft lengths in use."""
    counts = window.counts
    drafts = drafts_of(counts)
    lengths = _lengths(window, drafts)
    row = _empty(depth)
    row.share = _shares(lengths, counts, drafts, depth)
    row.draft_len = lengths[0] if len(lengths) == 1 else 0
    taken = counts.accepted_by_position
    if counts.exposed_by_position:
        for position, exposed in enumerate(counts.exposed_by_position):
            if exposed > 0:
                row.exposed[position] = exposed
                row.accepted[position] = taken[position] if position < len(taken) else 0.0
                row.basis[position] = Basis.DIRECT
    elif taken:
        _by_reach(row, drafts, taken, lengths)
    elif lengths == (1,) and counts.accepted is not None:
        row.exposed[0], row.accepted[0], row.basis[0] = drafts, counts.accepted, Basis.DIRECT
    else:  # totals only: the sum over positions and nothing else
        for position in range(max(lengths, default=depth)):
            row.basis[position] = Basis.CENSORED
    return row


def _by_reach(row: _Row, drafts: float, taken: tuple[float, ...], lengths: tuple[int, ...]) -> None:
    """A position is reached by what its predecessor accepted, and exposed if it was proposed as well."""
    reached = drafts
    told = taken[: lengths[-1]] if lengths else taken
    for position, (count, basis) in enumerate(zip(told, _bases(len(told), lengths), strict=True)):
        weight = row.share[position] if basis is Basis.SOLVED else 1.0
        if basis is Basis.CENSORED:
            row.basis[position] = basis
        elif weight > 0:
            row.exposed[position], row.accepted[position] = weight * reached, count
            row.basis[position] = basis
        reached = count


def _lengths(window: Window, drafts: float) -> tuple[int, ...]:
    """Draft lengths in use, ascending; empty where they are not known or the draft tokens contradict them."""
    lengths = tuple(sorted(length for length in window.draft_lens or () if length > 0))
    tokens = window.counts.draft_tokens
    if len(lengths) == 1 and tokens is not None and lengths[0] - tokens / drafts > SHORT_DRAFT_TOKENS:
        return ()  # some drafts were shorter than the one length, and which positions they miss is not told
    if len(lengths) > 1 and tokens is None:
        return ()
    return lengths


@lru_cache(maxsize=1024)
def _bases(positions: int, lengths: tuple[int, ...]) -> tuple[Basis, ...]:
    """How positions are identified; the same few answers for thousands of windows."""
    return tuple(_basis(position, lengths) for position in range(positions))


def _basis(position: int, lengths: tuple[int, ...]) -> Basis:
    """How position i is identified: exactly unless some step proposed exactly i tokens."""
    if position == 0:
        return Basis.DIRECT
    if not lengths:
        return Basis.CENSORED
    if position not in lengths:
        return Basis.DIRECT
    return Basis.SOLVED if len(lengths) == TWO else Basis.CENSORED


def _shares(lengths: tuple[int, ...], counts: Counts, drafts: float, depth: int) -> list[float]:
    """Share of drafts that went beyond each position, NaN where the draft lengths do not tell it."""
    if not lengths:
        return [1.0, *[math.nan] * (depth - 1)]
    if len(lengths) == 1:
        return [1.0] * lengths[0] + [0.0] * (depth - lengths[0])
    between = math.nan
    if len(lengths) == TWO and counts.draft_tokens is not None:
        first, last = lengths
        # Tokens a grammar made invalid may put the mean a little below the shorter length.
        between = min(1.0, max(0.0, (counts.draft_tokens / drafts - first) / (last - first)))
    return [
        1.0 if position < lengths[0] else 0.0 if position >= lengths[-1] else between
        for position in range(depth)
    ]


def drafts_of(counts: Counts) -> float:
    """Return the request steps that verified a draft, 0 where the engine does not tell."""
    if counts.joint:
        return float(sum(count for (drafted, _), count in counts.joint.items() if drafted > 0))
    return counts.drafts or 0.0


def proposals_are_optional(table: ExposureTable, method: str) -> bool:
    """Whether the drafter stays silent at will (n-gram, suffix), so that its rates mean nothing.

    Known by ``method``; else most windows show fewer drafts than request steps and a number of tokens
    per draft that no single draft length gives, though a single one was in use or none is known. At a
    whole number of tokens per draft a table that switches drafting off and on would look alike, so then
    all but a few windows must, and no draft length may be known.
    """
    if any(name in method.lower() for name in OPTIONAL_METHODS):
        return True
    fractional = whole = 0
    for window, drafts in zip(table.windows, table.drafts, strict=True):
        counts = window.counts
        if not counts.request_steps or counts.draft_tokens is None or len(window.draft_lens or ()) > 1:
            continue
        if drafts >= SILENT_SHARE * counts.request_steps:
            continue
        mean = counts.draft_tokens / drafts
        if abs(mean - round(mean)) > SHORT_DRAFT_TOKENS:
            fractional += 1
        elif window.draft_lens is None:
            whole += 1
    return 2 * fractional > len(table.windows) or fractional + whole > ALWAYS_SILENT * len(table.windows)
