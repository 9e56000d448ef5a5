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
a mix that nobody knows             position 0; the others are censored
==================================  ==================================================================

Counter semantics: vLLM 0.32.0 ``v1/core/sched/scheduler.py:2110-2149`` and ``v1/spec_decode/metrics.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from tuner.fleet import Finding, Window, WindowState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.fit.arrays import FloatArray, IntArray
    from tuner.fleet import Counts

MIX_TOLERANCE = 0.02
"""Relative slack of draft tokens per draft. Engines subtract draft tokens that a grammar made invalid, so
a window at K=4 may read 3.95; 2 % lets that pass, while mixing in 3 % of drafts at K=1 (3.91) does not."""

COUNT_SLACK = 0.5
"""Counts are whole numbers, so two that should agree may differ by rounding only: half a token."""

OPTIONAL_METHODS = ("ngram", "suffix", "prompt_lookup", "lookahead")
"""Drafters that stay silent when nothing matches; their draft-token counters may hold padding."""

SILENT_SHARE = 0.9
"""Fewer drafts than this share of request steps, with a draft length that is no whole number, is a drafter
that proposes when it pleases. Drafters that always propose read 1.00 (0.99 with a preemption)."""


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
    """(n,) the one draft length of the window, 0 where it is a mix."""
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
    depth = max((_depth(window) for window in usable), default=0)
    shape = (len(usable), depth)
    exposed, accepted, share = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    basis = np.zeros(shape, dtype=np.int64)
    draft_len = np.zeros(len(usable), dtype=np.int64)
    numbers: dict[str, int] = {}
    engine = np.array([numbers.setdefault(window.engine, len(numbers)) for window in usable], dtype=np.int64)
    for row, window in enumerate(usable):
        if window.counts.joint:
            draft_len[row] = _fill_joint(window, exposed[row], accepted[row], basis[row], share[row])
        else:
            draft_len[row] = _fill_counters(window, exposed[row], accepted[row], basis[row], share[row])
    return ExposureTable(
        windows=tuple(usable),
        engine=engine,
        seconds=np.array([window.end - window.start for window in usable]),
        drafts=np.array([drafts_of(window.counts) for window in usable]),
        exposed=exposed,
        accepted=accepted,
        basis=basis,
        share=share,
        draft_len=draft_len,
        quarantined=quarantined,
    )


def drafts_of(counts: Counts) -> float:
    """Return the request steps that verified a draft, 0 where the engine does not tell."""
    if counts.drafts is None and counts.joint:
        return float(sum(counts.joint.values()))
    return counts.drafts or 0.0


def _depth(window: Window) -> int:
    counts = window.counts
    by_joint = max((drafted for drafted, _ in counts.joint), default=0)
    return max(
        by_joint,
        len(counts.accepted_by_position),
        len(counts.exposed_by_position),
        *(window.draft_lens or (0,)),
    )


def _fill_joint(
    window: Window, exposed: FloatArray, accepted: FloatArray, basis: IntArray, share: FloatArray
) -> int:
    """Exact exposure from n[d][a]; returns the draft length if there is one only."""
    joint = window.counts.joint
    total = sum(joint.values())
    for (drafted, taken), count in joint.items():
        share[:drafted] += count / total
        exposed[: min(drafted, taken + 1)] += count
        accepted[:taken] += count
    basis[exposed > 0] = Basis.DIRECT
    lengths = {drafted for (drafted, _), count in joint.items() if count > 0}
    return lengths.pop() if len(lengths) == 1 else 0


def _fill_counters(
    window: Window, exposed: FloatArray, accepted: FloatArray, basis: IntArray, share: FloatArray
) -> int:
    """Exposure from counters by the draft lengths in use; returns the draft length if there is one only."""
    counts = window.counts
    drafts = drafts_of(counts)
    lengths = _lengths(window)
    _fill_share(lengths, counts, share)
    taken = counts.accepted_by_position
    if counts.exposed_by_position:
        width = len(counts.exposed_by_position)
        exposed[:width] = counts.exposed_by_position
        accepted[: len(taken)] = taken
        basis[exposed > 0] = Basis.DIRECT
    elif not taken:
        # Totals only: one position if one was proposed, else the sum over positions and nothing else.
        if lengths == (1,) and counts.accepted is not None:
            exposed[0], accepted[0], basis[0] = drafts, counts.accepted, Basis.DIRECT
        else:
            basis[: max(lengths, default=len(basis))] = Basis.CENSORED
    else:
        reached = np.zeros(len(exposed))
        reached[0] = drafts
        reached[1 : len(taken)] = taken[:-1]
        last = max(lengths) if lengths else len(taken)
        for position in range(min(last, len(taken))):
            here = _basis(position, lengths)
            basis[position] = here
            if here is not Basis.CENSORED:
                weight = share[position] if here is Basis.SOLVED else 1.0
                exposed[position] = weight * reached[position]
                accepted[position] = taken[position]
    return lengths[0] if len(lengths) == 1 else 0


def _lengths(window: Window) -> tuple[int, ...]:
    """Draft lengths in use, ascending; empty where they are not known or the draft tokens contradict them."""
    lengths = tuple(sorted(length for length in window.draft_lens or () if length > 0))
    counts = window.counts
    if len(lengths) == 1 and counts.draft_tokens is not None:
        mean = counts.draft_tokens / drafts_of(counts)
        if mean < lengths[0] * (1 - MIX_TOLERANCE):
            return ()  # shorter drafts than the one length: some steps proposed fewer, how many is not told
    if len(lengths) > 1 and counts.draft_tokens is None:
        return ()
    return lengths


def _basis(position: int, lengths: tuple[int, ...]) -> Basis:
    """How position i is identified: exactly unless some step proposed exactly i tokens."""
    if position == 0:
        return Basis.DIRECT
    if not lengths:
        return Basis.CENSORED
    if position not in lengths:
        return Basis.DIRECT
    return Basis.SOLVED if len(lengths) == 2 else Basis.CENSORED  # noqa: PLR2004 - two totals pin two lengths


def _fill_share(lengths: tuple[int, ...], counts: Counts, share: FloatArray) -> None:
    """Share of drafts that went beyond each position, where the draft lengths tell it."""
    share[:] = math.nan
    share[0] = 1.0
    if not lengths:
        return
    share[: lengths[0]] = 1.0
    share[lengths[-1] :] = 0.0
    if len(lengths) == 2 and counts.draft_tokens is not None:  # noqa: PLR2004 - two totals pin two lengths
        first, last = lengths
        share[first:last] = (counts.draft_tokens / drafts_of(counts) - first) / (last - first)


def impossible(window: Window) -> str:
    """Name what cannot be in the counts of a window, or return an empty string.

    Numbers are checked as they are; nothing is rounded into the possible.
    """
    counts = window.counts
    numbers = (counts.drafts, counts.draft_tokens, counts.accepted, counts.request_steps, counts.emitted)
    by_position = (*counts.accepted_by_position, *counts.exposed_by_position, *counts.joint.values())
    if any(not math.isfinite(x) or x < 0 for x in (*(y for y in numbers if y is not None), *by_position)):
        return "a count is negative or not finite"
    drafts = drafts_of(counts)
    if drafts == 0:
        return "accepted tokens without a draft" if (counts.accepted or 0) > COUNT_SLACK else ""
    return _impossible_totals(window, drafts) or _impossible_positions(window, drafts)


def _impossible_totals(window: Window, drafts: float) -> str:
    counts = window.counts
    if counts.draft_tokens is not None:
        if (counts.accepted or 0.0) > counts.draft_tokens + COUNT_SLACK:
            return f"{counts.accepted:g} tokens accepted of {counts.draft_tokens:g} drafted"
        mean = counts.draft_tokens / drafts
        lengths = [length for length in window.draft_lens or () if length > 0]
        low = min(lengths) if len(lengths) > 1 else 1
        high = max(lengths, default=math.inf)
        if not low * (1 - MIX_TOLERANCE) <= mean <= high * (1 + MIX_TOLERANCE):
            return f"{mean:.3g} draft tokens per draft, outside the draft lengths in use ({low} to {high:g})"
    return ""


def _impossible_positions(window: Window, drafts: float) -> str:
    counts = window.counts
    taken = counts.accepted_by_position
    if not taken:
        return ""
    before = drafts
    for position, count in enumerate(taken):
        if count > before + COUNT_SLACK:
            return f"position {position} accepted {count:g} times, reached {before:g} times"
        before = count
    if counts.accepted is not None and abs(sum(taken) - counts.accepted) > COUNT_SLACK:
        return f"positions add up to {sum(taken):g} accepted tokens, the total says {counts.accepted:g}"
    for position, (count, exposed) in enumerate(zip(taken, counts.exposed_by_position, strict=False)):
        if count > exposed + COUNT_SLACK:
            return f"position {position} accepted {count:g} times, proposed {exposed:g} times"
    longest = max(window.draft_lens, default=0) if window.draft_lens else len(taken)
    if any(count > COUNT_SLACK for count in taken[longest:]):
        return f"tokens accepted beyond the longest draft length in use, {longest}"
    return ""


def proposals_are_optional(table: ExposureTable, method: str) -> bool:
    """Whether the drafter stays silent at will (n-gram, suffix), so that its rates mean nothing.

    Known by ``method``; else most windows show fewer drafts than request steps and a number of tokens
    per draft that no single draft length gives, though a single one was in use or none is known.
    """
    if any(name in method.lower() for name in OPTIONAL_METHODS):
        return True
    silent = 0
    for window, drafts in zip(table.windows, table.drafts, strict=True):
        counts = window.counts
        if not counts.request_steps or counts.draft_tokens is None or len(window.draft_lens or ()) > 1:
            continue
        mean = counts.draft_tokens / drafts
        fractional = abs(mean - round(mean)) > MIX_TOLERANCE
        silent += bool(drafts < SILENT_SHARE * counts.request_steps and fractional)
    return 2 * silent > len(table.windows)


def quarantine_finding(table: ExposureTable, pool: str) -> tuple[Finding, ...]:
    """Return one finding for all quarantined windows, or none."""
    if not table.quarantined:
        return ()
    window, fault = table.quarantined[0]
    return (
        Finding(
            code="impossible_counts",
            severity="warning",
            message=f"{len(table.quarantined)} windows with impossible counts were left out of the "
            f"acceptance fit, the first: {fault}. Check that a scrape reads one engine only.",
            subject={"pool": pool},
            evidence={"windows": len(table.quarantined), "engine": window.engine, "start": window.start},
        ),
    )
