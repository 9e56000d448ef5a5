"""What a build means by a step: the unit of its inter-token latency, the truth of its step count.

Two series of vLLM change their meaning without changing their name. ``inter_token_latency`` has one
event per output (a request step) in released builds and one per token in others; the step count is
inflated where several API servers share one engine, since each counts the steps it delivered for.
Both are told from the data of all windows of one engine together, never from a version.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.observe.evidence import RawWindow

LatencyUnit = Literal["output", "token", "unknown"]

ENOUGH_ACCEPTED = 30.0
"""Accepted tokens that must be there to tell the units apart. The two differ by exactly these; cut
off after a stop or not yet delivered are a few percent, so 30 leave no doubt at the quarter marks."""
SURE = 0.25
"""Share of the accepted tokens by which the event count may miss either reading."""
INFLATED = 1.5
"""Reported over counted batch from which steps were counted more than once: one server reads 0.9 to
1.1 on recordings (the gauge is taken after finished requests left), two read 2."""
ENOUGH_BATCH = 1.5
"""At a batch near one a step has one owner and is counted once by any number of servers."""
ENOUGH_WINDOWS = 3
"""Windows over which gauge and count are compared; one gauge reading may be half off."""


@dataclass(frozen=True, slots=True)
class StepUnits:
    """What the step counters of one engine mean."""

    latency: LatencyUnit
    steps_inflated_by: float = 1.0


def detect_units(windows: Sequence[RawWindow]) -> StepUnits:
    """Tell the units of one group from all of its windows.

    With E tokens emitted after the first ones, A of them accepted drafts and C latency events, a
    build with one event per output has C = E - A, one with an event per token C = E.
    """
    accepted = events = later = 0.0
    for window in windows:
        counts = window.counts
        if None in (counts.accepted, counts.emitted, counts.first_tokens, counts.request_steps):
            continue
        accepted += counts.accepted or 0.0
        events += counts.request_steps or 0.0
        later += (counts.emitted or 0.0) - (counts.first_tokens or 0.0)
    unit: LatencyUnit = "output"
    if accepted >= ENOUGH_ACCEPTED and later > 0:
        share = (later - events) / accepted
        unit = "output" if share > 1 - SURE else "token" if share < SURE else "unknown"
    return StepUnits(unit, _inflation(windows) if unit == "output" else 1.0)


def _inflation(windows: Sequence[RawWindow]) -> float:
    """Return reported over counted batch where it proves that steps were counted repeatedly."""
    reported, counted = [], []
    for window in windows:
        (first, last), occupancy = window.running, window.occupancy
        if window.flat or occupancy is None or first is None or last is None:
            continue
        if min(first, last) >= ENOUGH_BATCH:
            reported.append((first + last) / 2)
            counted.append(occupancy)
    if len(reported) < ENOUGH_WINDOWS:
        return 1.0
    ratio = sum(reported) / sum(counted)
    return ratio if ratio > INFLATED else 1.0


def apply_units(window: RawWindow, units: StepUnits) -> None:
    """Rewrite the counts of one window into request steps and engine steps."""
    if units.latency == "token":
        _from_tokens(window)
    elif units.latency == "unknown":
        window.counts = replace(window.counts, request_steps=None)
        window.missing = (*window.missing, "request_steps")
    if units.steps_inflated_by > 1.0:
        _estimate_steps(window)


def _from_tokens(window: RawWindow) -> None:
    """Request steps of a build that counts an event per token.

    Every request step emits its accepted tokens and one more, so there are ``emitted - first -
    accepted`` of them, less what was cut off after a stop (1-7 % of steps); where drafts were
    verified, the drafts are a lower bound without that bias. The larger one is exact at one K.
    """
    counts = window.counts
    if counts.emitted is None or counts.first_tokens is None or counts.accepted is None:
        window.counts = replace(counts, request_steps=None)
        return
    implied = counts.emitted - counts.first_tokens - counts.accepted
    window.counts = replace(counts, request_steps=max(implied, counts.drafts or 0.0, 0.0))


def _estimate_steps(window: RawWindow) -> None:
    """Engine steps by Little's law: the mean decode batch is latency seconds per wall second.

    Holds while the engine is never idle, which the gauge at both ends must say.
    """
    counts = window.counts
    busy = window.running[0] and window.running[1]
    if not busy or not counts.request_step_seconds or not counts.request_steps or window.seconds <= 0:
        window.counts = replace(counts, steps=None)
        window.missing = (*window.missing, "steps")
        return
    batch = counts.request_step_seconds / window.seconds
    window.counts = replace(counts, steps=counts.request_steps / batch)
    window.steps_estimated = True
