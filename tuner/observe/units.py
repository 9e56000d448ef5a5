"""What a build means by a step: the unit of its inter-token latency, the truth of its step count.

Two series of vLLM change their meaning without changing their name. ``inter_token_latency`` has one
event per output (a request step) in released builds and one per token in others; the step count is
inflated where several API servers share one engine, since each counts the steps it delivered for.
Both are told from the data of all windows of one engine together, never from a version.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field, replace
from statistics import median, quantiles
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

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

    @property
    def as_counted(self) -> bool:
        """Tell whether counts mean what they say, so that nothing is to be rewritten."""
        return self.latency == "output" and self.steps_inflated_by <= 1.0


ONE_PROCESS: dict[LatencyUnit, StepUnits] = {
    "output": StepUnits("output"),
    "token": StepUnits("token"),
    "unknown": StepUnits("unknown"),
}


def detect_units(windows: Iterable[RawWindow], *, single_process: bool = False) -> StepUnits:
    """Tell the units of one group from all of its windows.

    Args:
        windows: all windows of one engine.
        single_process: the server told a start or creation time, which it does not while several of
            its processes share the metrics; then no step can be counted twice.
    """
    evidence = UnitEvidence()
    for window in windows:
        evidence.add(window)
    return evidence.units(single_process=single_process)


@dataclass(slots=True)
class UnitEvidence:
    """What windows say about the units of one engine, added up window by window.

    With E tokens emitted after the first ones, A of them accepted drafts and C latency events, a
    build with one event per output has C = E - A, one with an event per token C = E.
    """

    most: int | None = None
    """Windows after which what was seen before weighs half; ``None`` remembers all."""
    seen: int = 0
    accepted: float = 0.0
    events: float = 0.0
    later: float = 0.0
    paces: array[float] = field(default_factory=lambda: array("d"))
    near: array[float] = field(default_factory=lambda: array("d"))
    variation: array[float] = field(default_factory=lambda: array("d"))

    def add(self, window: RawWindow, *, paces: bool = True) -> None:
        """Take one more window, as it was counted; ``paces`` are of no use where one process counts."""
        counts = window.counts
        if None not in (counts.accepted, counts.emitted, counts.first_tokens, counts.request_steps):
            self.accepted += counts.accepted or 0.0
            self.events += counts.request_steps or 0.0
            self.later += (counts.emitted or 0.0) - (counts.first_tokens or 0.0)
        steps, requests, waited = counts.steps, counts.request_steps, counts.request_step_seconds
        if paces and steps and requests and waited and window.seconds > 0:
            pace = waited / requests * steps / window.seconds
            self.paces.append(pace)
            if _gauges_agree(window) or pace < CLEARLY_INFLATED:
                self.near.append(pace)
            self.variation.extend(_squared_distances(window))
        self.seen += 1
        if self.most is not None and self.seen >= self.most:
            self._halve(self.most // 2)

    def _halve(self, keep: int) -> None:
        """Let the older half go."""
        self.seen = keep
        self.accepted, self.events, self.later = self.accepted / 2, self.events / 2, self.later / 2
        self.paces, self.near = self.paces[-keep:], self.near[-keep:]
        self.variation = self.variation[-2 * keep :]

    def units(self, *, single_process: bool) -> StepUnits:
        """Return what the step counters of this engine mean."""
        unit: LatencyUnit = "output"
        if self.accepted >= ENOUGH_ACCEPTED and self.later > 0:
            share = (self.later - self.events) / self.accepted
            unit = "output" if share > 1 - SURE else "token" if share < SURE else "unknown"
        if single_process or unit != "output":
            return ONE_PROCESS[unit]
        pace, proven = self._inflation()
        return StepUnits(unit, pace if proven else 1.0, 1.0 if proven else pace)

    def _inflation(self) -> tuple[float, bool]:
        """Return how often a step seems to have been counted, 1 if once, and whether the gauges prove it.

        With steps counted n times, wall time per step reads 1/n of what requests waited. So it does in
        bursts, by 1 plus the squared variation of the batch within a window at most (step time grows no
        faster than the batch). The running gauge counts nothing twice and tells the two apart: its mean is
        seconds waited per wall second either way, but at the ends of windows it scatters as the batch does.
        """
        if len(self.near) >= ENOUGH_WINDOWS and (clear := median(self.near)) > CLEARLY_INFLATED:
            return clear, True
        if len(self.paces) < ENOUGH_WINDOWS or (pace := median(self.paces)) <= INFLATED:
            return 1.0, False
        told = len(self.variation) >= 2 * ENOUGH_WINDOWS
        return pace, told and quantiles(self.variation)[-1] < STEADY_SHARE * (pace - 1.0)


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
