"""GPUs agree with a fit, contradict it, or say nothing: seed 004's four cases of acceptance and compute."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.plan.engine_windows import engine_windows
from tuner.fit.corroborate import MEANINGS, Side, corroborate
from tuner.fit.crossover import Crossover
from tuner.fit.step_time import StepTimeFit, fit_step_time
from tuner.fleet import NotEnoughData, Window

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CROSSOVER = 100.0
FLOOR = 0.02
BATCHES = [1, 4, 10, 30, 100, 300]


def step_seconds(tokens: float, _draft_len: int) -> float:
    """A near-linear engine: the floor, and the floor again at the crossover."""
    return FLOOR * (1 + tokens / CROSSOVER)


def engine(hazard: float = 0.8, prompts: float = 0.0) -> list[Window]:
    return engine_windows([0, 1, 3], BATCHES, [hazard] * 3, step_seconds, prompt_per_output=prompts)


def with_gpu(
    windows: Sequence[Window],
    tensor: Callable[[float], float | None],
    dram: Callable[[float], float | None] = lambda _tokens: None,
) -> list[Window]:
    """Give windows GPU activity as functions of tokens in flight."""
    return [
        replace(
            one,
            gauges=replace(
                one.gauges,
                gpu_utilisation=1.0,
                tensor_active=tensor(one.tokens_in_flight or 0.0),
                dram_active=dram(one.tokens_in_flight or 0.0),
            ),
        )
        for one in windows
    ]


def roofline_tensor(tokens: float) -> float:
    """Tensor pipes of the same engine: 0.8 of the time that it computes."""
    return 0.8 * tokens / (CROSSOVER + tokens)


def roofline_dram(tokens: float) -> float:
    return 0.8 * CROSSOVER / (CROSSOVER + tokens)


@pytest.fixture(scope="module")
def fit() -> StepTimeFit:
    """The fit of the engine; its crossover is 100."""
    found = fit_step_time(engine())
    assert isinstance(found, StepTimeFit)
    assert isinstance(found.crossover, Crossover)
    assert found.crossover.tokens == pytest.approx(CROSSOVER, rel=0.1)
    return found


def test_gpus_that_agree(fit: StepTimeFit) -> None:
    """Below the crossover pipes wait for memory, above they are busy: nothing to find."""
    got = corroborate(fit, with_gpu(engine(), roofline_tensor, roofline_dram))
    assert got.findings == ()
    assert got.agrees is True
    assert isinstance(got.below, Side)
    assert isinstance(got.above, Side)
    assert (got.below.bound, got.above.bound) == ("memory", "compute")


@pytest.mark.parametrize(
    ("tensor", "dram", "side", "words"),
    [
        (0.8, 0.3, "below", "compute-bound"),
        (0.1, 0.75, "above", "memory-bound"),
        (0.1, 0.1, "above", "the host sets the pace"),
    ],
)
def test_contradictions_are_found_with_numbers(
    fit: StepTimeFit, tensor: float, dram: float, side: str, words: str
) -> None:
    """GPUs that do the same on both sides contradict the fit on one of them."""
    got = corroborate(fit, with_gpu(engine(), lambda _: tensor, lambda _: dram))
    (finding,) = got.findings
    assert finding.code == "gpu_contradicts_fit"
    assert words in finding.message
    evidence = finding.evidence
    assert (evidence["side"], evidence["tensor_active"], evidence["dram_active"]) == (side, tensor, dram)
    assert (evidence["tokens_in_flight"] < CROSSOVER) is (side == "below")
    assert got.agrees is False


def test_idle_pipes_and_idle_memory_below_are_a_fixed_time(fit: StepTimeFit) -> None:
    """Small batches may wait for launches: that is the floor of a step, whatever it is made of."""

    def both(tokens: float) -> float:
        return 0.1 if tokens < CROSSOVER else 0.7

    got = corroborate(fit, with_gpu(engine(), both, both))
    assert got.findings == ()
    assert got.agrees is True


def test_utilisation_alone_is_no_evidence(fit: StepTimeFit) -> None:
    """It is 100 % memory-bound and compute-bound alike: the answer says what to switch on."""
    got = corroborate(fit, with_gpu(engine(), lambda _: None))
    assert isinstance(got.agrees, NotEnoughData)
    assert "100 % in both" in got.agrees.reason
    assert "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE" in got.agrees.reason
    assert got.findings == ()


def test_without_gpu_metrics_it_abstains(fit: StepTimeFit) -> None:
    """No evidence is a reason, not agreement."""
    got = corroborate(fit, engine())
    assert isinstance(got.agrees, NotEnoughData)
    assert got.agrees.reason == "no GPU metrics are joined to these windows"


def test_without_a_crossover_it_abstains() -> None:
    """There is nothing to hold the GPUs against; the reason is the fit's own."""
    windows = with_gpu(engine(), roofline_tensor, roofline_dram)
    got = corroborate(NotEnoughData("one draft length only", 1, 2), windows)
    assert isinstance(got.agrees, NotEnoughData)
    assert got.agrees.reason == "the fit tells no crossover: one draft length only"
    assert got.findings == ()


def test_prefill_is_no_evidence(fit: StepTimeFit) -> None:
    """Prompts keep the pipes busy at any batch: such windows are left out."""
    windows = with_gpu(engine(prompts=2.0), lambda _: 0.9, lambda _: 0.3)
    got = corroborate(fit, windows)
    assert got.findings == ()
    assert isinstance(got.agrees, NotEnoughData)
    assert "decodes for the most part" in got.agrees.reason


def test_few_windows_of_one_side_say_nothing_about_it(fit: StepTimeFit) -> None:
    """Three windows are chance; the other side is judged all the same."""
    windows = with_gpu(engine(), lambda _: 0.8, lambda _: 0.3)
    below = [one for one in windows if (one.tokens_in_flight or 0.0) < 0.4 * CROSSOVER][:3]
    above = [one for one in windows if (one.tokens_in_flight or 0.0) > 3 * CROSSOVER]
    got = corroborate(fit, [*below, *above])
    assert isinstance(got.below, NotEnoughData)
    assert (got.below.have, got.below.need) == (3, 4)
    assert got.findings == ()
    assert got.agrees is True


def test_without_memory_activity_only_saturation_is_told(fit: StepTimeFit) -> None:
    """MIG slices tell the pipes alone: idle pipes could wait for anything."""
    got = corroborate(fit, with_gpu(engine(), lambda _: 0.1))
    assert got.findings == ()
    assert isinstance(got.agrees, NotEnoughData)
    busy = corroborate(fit, with_gpu(engine(), lambda _: 0.8))
    assert [finding.evidence["side"] for finding in busy.findings] == ["below"]
    assert busy.findings[0].evidence["dram_active"] is None


@pytest.mark.parametrize("hazard", [0.8, 0.25])
@pytest.mark.parametrize("tensor", [0.1, 0.8])
def test_the_four_cases(fit: StepTimeFit, hazard: float, tensor: float) -> None:
    """Acceptance high or low, compute idle or saturated: each case has its meaning."""
    got = corroborate(fit, with_gpu(engine(hazard), lambda _: tensor, lambda _: 0.3))
    largest = got.cases[0]
    assert (largest.acceptance_high, largest.compute_saturated) == (hazard > 0.5, tensor > 0.5)
    assert largest.meaning == MEANINGS[hazard > 0.5, tensor > 0.5]
    drafted = sum(1 for one in engine(hazard) if one.counts.draft_tokens)
    assert sum(case.windows for case in got.cases) == drafted
