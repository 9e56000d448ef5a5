"""What a build means by a step: the unit of its inter-token latency, the truth of its step count.

Two series of vLLM change their meaning without changing their name. ``inter_token_latency`` has one
event per output (a request step) in released builds and one per token in others; the step count is
inflated where several API servers share one engine, since each counts the steps it delivered for.
Both are told from the data of all windows of one engine together, never from a version.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import median, quantiles
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
INFLATED = 1.12
"""Inter-token time over wall time per counted step from which steps may have been counted more than once:
one server at a steady batch reads 1.00, with bursts 1 plus the squared variation of the batch within a
window; two read 2 when both are busy, less when often only one has an output to deliver (1.5 at two
requests, 1.3 if one takes most of them). Below this, windows pass as they are."""
CLEARLY_INFLATED = 1.5
"""From here the gauges need only stand near the batch that this implies, below they must stand close: a
batch that varies by 0.7 of itself within every window stands near nothing."""
STEADY_SHARE = 0.25
"""Share of the excess pace that the batch's squared variation may reach, by the gauges, for the excess to
be no doing of the batch, which needs all of it. Read off at the upper quartile, which is 1.3 times the mean
of normal scatter and not moved by the few windows in which the load was changed. Gauges of a steady load
show under a tenth at pace 1.3."""
ENOUGH_WINDOWS = 3
"""Windows that must agree, by their median."""
GAUGE_SIGMAS = 3.0
"""Arrivals at random spread a gauge by the square root of the batch; a burst within the window, which
also leaves inter-token and wall time apart, spreads it further."""


@dataclass(frozen=True, slots=True)
class StepUnits:
    """What the step counters of one engine mean."""

    latency: LatencyUnit
    steps_inflated_by: float = 1.0
    steps_look_inflated_by: float = 1.0
    """The same where the gauges are not told or too restless to prove it: nothing is set right."""


def detect_units(windows: Sequence[RawWindow], *, single_process: bool = False) -> StepUnits:
    """Tell the units of one group from all of its windows.

    With E tokens emitted after the first ones, A of them accepted drafts and C latency events, a
    build with one event per output has C = E - A, one with an event per token C = E.

    Args:
        windows: all windows of one engine.
        single_process: the server told a start or creation time, which it does not while several of
            its processes share the metrics; then no step can be counted twice.
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
    if single_process or unit != "output":
        return StepUnits(unit)
    pace, proven = _inflation(windows)
    return StepUnits(unit, pace if proven else 1.0, 1.0 if proven else pace)


def _inflation(windows: Sequence[RawWindow]) -> tuple[float, bool]:
    """Return how often a step seems to have been counted, 1 if once, and whether the gauges prove it.

    With steps counted n times, wall time per step reads 1/n of what requests waited. So it does in
    bursts, by 1 plus the squared variation of the batch within a window at most (step time grows no
    faster than the batch). The running gauge counts nothing twice and tells the two apart: its mean is
    seconds waited per wall second either way, but at the ends of windows it scatters as the batch does.
    """
    paces, near, variation = [], [], []
    for window in windows:
        counts = window.counts
        if counts.steps and counts.request_steps and counts.request_step_seconds and window.seconds > 0:
            paces.append(counts.request_step_seconds / counts.request_steps * counts.steps / window.seconds)
            if _gauges_agree(window) or paces[-1] < CLEARLY_INFLATED:
                near.append(paces[-1])
            variation += _squared_distances(window)
    if len(near) >= ENOUGH_WINDOWS and (clear := median(near)) > CLEARLY_INFLATED:
        return clear, True
    if len(paces) < ENOUGH_WINDOWS or (pace := median(paces)) <= INFLATED:
        return 1.0, False
    told = len(variation) >= 2 * ENOUGH_WINDOWS
    return pace, told and quantiles(variation)[-1] < STEADY_SHARE * (pace - 1.0)


def _squared_distances(window: RawWindow) -> list[float]:
    """Return the squared relative distances of both running gauges from seconds waited per wall second."""
    batch = (window.counts.request_step_seconds or 0.0) / window.seconds
    return [(gauge / batch - 1.0) ** 2 for gauge in window.running if gauge is not None]


def _gauges_agree(window: RawWindow) -> bool:
    """Tell whether both running gauges are what Little's law says: seconds waited per wall second."""
    batch = (window.counts.request_step_seconds or 0.0) / window.seconds
    return all(
        gauge is not None and gauge > 0 and abs(gauge - batch) <= GAUGE_SIGMAS * math.sqrt(max(batch, 1.0))
        for gauge in window.running
    )


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

    Holds while the engine is never idle and its batch stands still, which the gauges must say.
    """
    counts = window.counts
    if not counts.request_step_seconds or not counts.request_steps or window.seconds <= 0:
        usable = False
    else:
        usable = _gauges_agree(window)
    if not usable:
        window.counts = replace(counts, steps=None)
        window.missing = (*window.missing, "steps")
        return
    batch = (counts.request_step_seconds or 0.0) / window.seconds
    window.counts = replace(counts, steps=(counts.request_steps or 0.0) / batch)
    window.steps_estimated = True
