"""Numbers that cannot be: named and left out, never clamped into range."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import TYPE_CHECKING

from tuner.fleet import Finding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.fleet import Counts, Window

MIX_TOLERANCE = 0.02
"""Relative slack of draft tokens per draft. Engines subtract draft tokens that a grammar made invalid, so
a window at K=4 may read 3.95; 2 % lets that pass, while mixing in 3 % of drafts at K=1 (3.91) does not."""

COUNT_SLACK = 0.5
"""Counts are whole numbers, so two that should agree may differ by rounding only: half a token."""

_totals_told = attrgetter(
    "steps",
    "request_steps",
    "drafts",
    "draft_tokens",
    "accepted",
    "emitted",
    "first_tokens",
    "finished",
    "request_seconds",
)
"""Counts that the acceptance fit reads."""


def _totals(counts: Counts) -> list[float]:
    """Return the totals that are told."""
    return [total for total in _totals_told(counts) if total is not None]


def impossible(window: Window) -> str:
    """Name what cannot be in the counts of a window, or return an empty string.

    Numbers are checked as they are; nothing is rounded into the possible.
    """
    counts = window.counts
    numbers = [
        *_totals(counts),
        *counts.accepted_by_position,
        *counts.exposed_by_position,
        *counts.joint.values(),
    ]
    # A sum that is finite, of numbers none of which is below 0: NaN fails either comparison.
    if not (min(numbers, default=0.0) >= 0.0 and sum(numbers) < math.inf):
        return "a count is negative or not finite"
    if any(taken > drafted for (drafted, taken), count in counts.joint.items() if count):
        return "a draft accepted more tokens than it proposed"
    if not counts.drafts:
        return (
            "accepted tokens without a draft"
            if (counts.accepted or 0) > COUNT_SLACK and not counts.joint
            else ""
        )
    return _impossible_totals(window, counts.drafts) or _impossible_positions(window, counts.drafts)


def _impossible_totals(window: Window, drafts: float) -> str:
    counts = window.counts
    if counts.draft_tokens is not None:
        if (counts.accepted or 0.0) > counts.draft_tokens + COUNT_SLACK:
            return f"{counts.accepted:g} tokens accepted of {counts.draft_tokens:g} drafted"
        if counts.joint:  # which lengths ran is told by them, and the totals may be a step ahead
            return ""
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
    longest = max(window.draft_lens) if window.draft_lens and not counts.joint else len(taken)
    if any(count > COUNT_SLACK for count in taken[longest:]):
        return f"tokens accepted beyond the longest draft length in use, {longest}"
    return ""


def quarantine_finding(quarantined: Sequence[tuple[Window, str]], pool: str) -> tuple[Finding, ...]:
    """Return one finding for all quarantined windows, or none."""
    if not quarantined:
        return ()
    window, fault = quarantined[0]
    return (
        Finding(
            code="impossible_counts",
            severity="warning",
            message=f"{len(quarantined)} windows with impossible counts were left out of the "
            f"acceptance fit, the first: {fault}. Check that a scrape reads one engine only.",
            subject={"pool": pool},
            evidence={"windows": len(quarantined), "engine": window.engine, "start": window.start},
        ),
    )
