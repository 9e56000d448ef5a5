"""Do the GPUs agree with the fit? Tensor pipes and memory against memory-bound and compute-bound.

Well below the crossover a step waits for memory, or for its own overhead, and the tensor pipes are idle;
well above it they are busy. The utilisation that every tool shows is the share of time in which any kernel
ran, about 100 % on both sides, and no evidence of either.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal

from tuner.fit.step_time import StepTimeFit
from tuner.fleet import Finding, NotEnoughData, WindowState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.fit.crossover import Crossover
    from tuner.fleet import Window

BELOW = 0.5
ABOVE = 2.0
"""Windows up to half of the crossover's lower end and from twice its upper end are judged. Between them a
step at p = 1 spends a third to two thirds of its time on compute: either reading would be right."""
BUSY = 0.5
"""Share of cycles from which tensor pipes count as saturated. Large matrix products reach 0.7 to 0.9, so at
twice the crossover of the least sharp curve, two thirds of the time on compute, they show 0.5 to 0.6; at
half of it, a third of the time, 0.25 to 0.3."""
IDLE = 0.25
"""Share below which tensor pipes or memory do not set the pace: three quarters of the time they wait."""
DRAM_BUSY = 0.5
"""Share from which memory sets the pace. Its practical ceiling is about 0.8 of the cycles."""
FEW_PROMPTS = 0.25
"""Largest share of prompt tokens in a window's tokens: prefill fills tensor pipes whatever decoding does."""
MIN_WINDOWS = 4
"""Windows of a side for its median to be told; exporters sample every 30 s, so some repeat a neighbour's."""
ACCEPTS_WELL = 0.5
"""Accepted share of the draft tokens from which acceptance is called high. A name for the four cases only:
whether drafting pays is the plan's to say."""

NO_DRAM = NotEnoughData("the activity of GPU memory is not told")
NO_FIT = "the fit tells no crossover: {}"
Bound = Literal["compute", "memory", "neither"]


@dataclass(frozen=True, slots=True)
class Side:
    """What the GPUs did on one side of the crossover."""

    windows: int
    tokens_in_flight: float
    tensor_active: float
    """Median share of cycles with the tensor pipes active."""
    dram_active: float | NotEnoughData
    bound: Bound | NotEnoughData
    """What set the pace, by the GPUs alone."""


@dataclass(frozen=True, slots=True)
class Case:
    """One of the four cases of acceptance against compute, in windows that drafted."""

    acceptance_high: bool
    compute_saturated: bool
    windows: int
    meaning: str


@dataclass(frozen=True, slots=True)
class Corroboration:
    """Agreement of the GPUs with the fitted crossover."""

    below: Side | NotEnoughData
    above: Side | NotEnoughData
    cases: tuple[Case, ...]
    """Those that occurred, the largest first."""
    findings: tuple[Finding, ...]

    @property
    def agrees(self) -> bool | NotEnoughData:
        """Whether nothing contradicts the fit; not enough data where neither side was seen."""
        if self.findings:
            return False
        sides = [side for side in (self.below, self.above) if not isinstance(side, NotEnoughData)]
        if any(not isinstance(side.bound, NotEnoughData) for side in sides):
            return True
        return next((side for side in (self.below, self.above) if isinstance(side, NotEnoughData)), NO_DRAM)


MEANINGS = {
    (True, False): "drafts are accepted and compute is unused: speculation shortens answers",
    (True, True): "drafts are accepted and compute is full: verification takes time from other requests, a "
    "shorter draft length may serve more",
    (False, False): "drafts are rejected and compute is unused: they cost little and bring little",
    (False, True): "drafts are rejected and compute is full: verification is added work on the bottleneck, "
    "speculation reduces capacity",
}
"""(acceptance high, compute saturated) -> what it means."""


def corroborate(fit: StepTimeFit | NotEnoughData, windows: Sequence[Window]) -> Corroboration:
    """Hold the fitted crossover against what the GPUs did.

    Args:
        fit: the step time of a pool.
        windows: its windows, with the activity of GPUs in their gauges; others are not looked at.
    """
    crossover = fit.crossover if isinstance(fit, StepTimeFit) else fit
    judged = [window for window in windows if _tells(window)]
    cases = _cases(judged)
    if isinstance(crossover, NotEnoughData):
        unknown = NotEnoughData(NO_FIT.format(crossover.reason), crossover.have, crossover.need)
        return Corroboration(unknown, unknown, cases, ())
    if not judged:
        nothing = NotEnoughData(_nothing(windows))
        return Corroboration(nothing, nothing, cases, ())
    below = _side([w for w in judged if (w.tokens_in_flight or 0.0) <= BELOW * crossover.low])
    above = _side([w for w in judged if (w.tokens_in_flight or 0.0) >= ABOVE * crossover.high])
    findings = tuple(_contradictions(crossover, below, above))
    return Corroboration(below, above, cases, findings)


def _tells(window: Window) -> bool:
    """Tell whether a window is evidence: decoding, measured, with tensor pipes told."""
    if window.state is not WindowState.GOOD or window.gauges.tensor_active is None:
        return False
    counts, tokens, steps = window.counts, window.tokens_in_flight, window.counts.steps
    if tokens is None or not steps or counts.prompt_tokens is None:
        return False
    return counts.prompt_tokens <= FEW_PROMPTS * tokens * steps


def _nothing(windows: Sequence[Window]) -> str:
    """Say why no window is evidence."""
    if any(window.gauges.tensor_active is not None for window in windows):
        return "no good window with tensor pipe activity decodes for the most part"
    if any(window.gauges.gpu_utilisation is not None for window in windows):
        return (
            "GPU utilisation alone cannot tell memory-bound from compute-bound: it is 100 % in both. Let the "
            "exporter tell DCGM_FI_PROF_PIPE_TENSOR_ACTIVE and DCGM_FI_PROF_DRAM_ACTIVE"
        )
    return "no GPU metrics are joined to these windows"


def _side(windows: Sequence[Window]) -> Side | NotEnoughData:
    """Sum up the windows of one side."""
    if len(windows) < MIN_WINDOWS:
        return NotEnoughData("too few windows with GPU metrics on this side", len(windows), MIN_WINDOWS)
    tensor = median(window.gauges.tensor_active or 0.0 for window in windows)
    known = [window.gauges.dram_active for window in windows if window.gauges.dram_active is not None]
    dram = median(known) if len(known) >= MIN_WINDOWS else NO_DRAM
    tokens = median(window.tokens_in_flight or 0.0 for window in windows)
    return Side(len(windows), tokens, tensor, dram, _bound(tensor, dram))


def _bound(tensor: float, dram: float | NotEnoughData) -> Bound | NotEnoughData:
    """Say what set the pace, where the two leave no doubt."""
    if tensor >= BUSY:
        return "compute"
    if isinstance(dram, NotEnoughData):
        return dram
    if tensor <= IDLE:
        return (
            "memory"
            if dram >= DRAM_BUSY
            else "neither"
            if dram <= IDLE
            else NotEnoughData("memory is neither busy nor idle")
        )
    return NotEnoughData("tensor pipes are neither saturated nor idle")


def _contradictions(
    crossover: Crossover, below: Side | NotEnoughData, above: Side | NotEnoughData
) -> list[Finding]:
    """Return a finding for each side that the GPUs see otherwise.

    Below, pipes and memory both idle agree with the fit: a fixed time of launches is a fixed time.
    """
    found = []
    if isinstance(below, Side) and below.bound == "compute":
        found.append(_contradiction(crossover, below, "below", "tensor pipes are saturated: compute-bound"))
    if isinstance(above, Side) and above.bound == "memory":
        found.append(_contradiction(crossover, above, "above", "tensor pipes wait for memory: memory-bound"))
    if isinstance(above, Side) and above.bound == "neither":
        why = "neither tensor pipes nor memory are busy: the host sets the pace"
        found.append(_contradiction(crossover, above, "above", why))
    return found


def _contradiction(crossover: Crossover, side: Side, where: Literal["below", "above"], why: str) -> Finding:
    """Say what the fit says, what the GPUs say, with the numbers of both."""
    dram = "untold" if isinstance(side.dram_active, NotEnoughData) else f"{side.dram_active:.0%}"
    fitted = "memory-bound" if where == "below" else "compute-bound"
    return Finding(
        "gpu_contradicts_fit",
        "warning",
        f"at {side.tokens_in_flight:.0f} tokens in flight, {where} the crossover of {crossover.tokens:.0f}, "
        f"steps should be {fitted}, but {why} (tensor {side.tensor_active:.0%}, memory {dram} of cycles in "
        f"{side.windows} windows). Check gpu.join, and what else runs on these GPUs, before trusting either.",
        evidence={
            "side": where,
            "crossover": crossover.tokens,
            "crossover_low": crossover.low,
            "crossover_high": crossover.high,
            "tokens_in_flight": side.tokens_in_flight,
            "tensor_active": side.tensor_active,
            "dram_active": None if isinstance(side.dram_active, NotEnoughData) else side.dram_active,
            "windows": side.windows,
        },
    )


def _cases(windows: Sequence[Window]) -> tuple[Case, ...]:
    """Count the windows that drafted by acceptance and compute; those neither busy nor idle are left out."""
    counts: dict[tuple[bool, bool], int] = {}
    for window in windows:
        drafted, accepted = window.counts.draft_tokens, window.counts.accepted
        tensor = window.gauges.tensor_active or 0.0
        if drafted and accepted is not None and not IDLE < tensor < BUSY:
            case = accepted >= ACCEPTS_WELL * drafted, tensor >= BUSY
            counts[case] = counts.get(case, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Case(*case, number, MEANINGS[case]) for case, number in ordered)
