"""The crossover: recovered where it is known, refused where windows cannot tell it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from bench.recovery.crossover import FEW_CELLS, UNBRACKETED
from bench.recovery.step_time_world import Traffic, World
from tuner.fit.cells import build_cells
from tuner.fit.crossover import Crossover, reach
from tuner.fit.curve import CROSSOVER, quantities_of
from tuner.fit.step_time import StepTimeFit, fit_step_time
from tuner.fit.step_time_resample import resample
from tuner.fit.step_time_solve import solve_cells
from tuner.fleet import NotEnoughData


def _fit(world: World, traffic: Traffic, seed: int = 0) -> StepTimeFit:
    fit = fit_step_time(traffic.run(world, np.random.default_rng(seed)))
    assert isinstance(fit, StepTimeFit)
    return fit


def _crossover(world: World, traffic: Traffic = Traffic(), seed: int = 0) -> Crossover:  # noqa: B008 - frozen
    found = _fit(world, traffic, seed).crossover
    assert isinstance(found, Crossover)
    return found


@pytest.mark.parametrize("tokens", [20.0, 295.0, 3000.0])
@pytest.mark.parametrize("sharpness", [1.0, 2.0, 4.0, math.inf])
@pytest.mark.parametrize("overhead", [0.0, 0.2])
def test_a_known_crossover_is_found(tokens: float, sharpness: float, overhead: float) -> None:
    """From a near-linear engine to a sharp roofline, (o + m)/c comes back within 10 % and is covered."""
    world = World(crossover=tokens, sharpness=sharpness, overhead_ratio=overhead)
    found = _crossover(world)
    assert found.tokens == pytest.approx(tokens, rel=0.10)
    assert found.low <= tokens <= found.high
    assert found.high / found.low < 1.25


@pytest.mark.parametrize("name", UNBRACKETED)
@pytest.mark.parametrize("sharpness", [1.0, 2.0, math.inf])
def test_windows_that_do_not_bracket_it_cannot_say(name: str, sharpness: float) -> None:
    """One asymptote only, or one draft length: no number, a reason with what there is and what it takes."""
    fit = _fit(World(sharpness=sharpness), UNBRACKETED[name])
    why = fit.crossover
    assert isinstance(why, NotEnoughData)
    assert why.have is not None
    assert why.need is not None
    assert why.have < why.need


def test_a_curve_without_a_crossover_still_predicts_where_it_was_measured() -> None:
    """Cells on one side of the knee predict their own kind within 3 %."""
    world = World()
    fit = _fit(world, Traffic(high=1.0))
    assert isinstance(fit.crossover, NotEnoughData)
    for batch, draft_len in ((20.0, 0), (30.0, 2), (40.0, 4)):
        truth = float(world.seconds(np.array(batch), np.array(draft_len)))
        assert fit.predict(batch, draft_len).value == pytest.approx(truth, rel=0.03)


def test_overhead_is_excluded_only_where_the_knee_is_sharp_enough_to_tell() -> None:
    """On a sharp knee m / c is given, and on a line it is not enough data, never a guess."""
    sharp = _crossover(World(sharpness=4.0, overhead_ratio=0.2))
    assert isinstance(sharp.excluding_overhead, float)
    assert sharp.excluding_overhead == pytest.approx(295 / 1.2, rel=0.1)
    blunt = _crossover(World(sharpness=1.0, overhead_ratio=0.2))
    assert isinstance(blunt.excluding_overhead, NotEnoughData)
    assert blunt.as_dict()["excluding_overhead"] is None


def test_without_a_window_that_did_not_draft_the_interval_reaches_lower() -> None:
    """At K of 2 and 4 only, a drafter's base is part of the fixed time: the low end allows for it."""
    world = World(draft_base=0.15)
    found = _crossover(world, Traffic(draft_lens=(2, 4)))
    assert found.low < world.crossover
    assert found.low < found.tokens / 1.18


def test_a_hardware_sheet_is_outvoted_by_windows() -> None:
    """A prior of 1 500 tokens moves a crossover of 295 that windows show by less than 1 %."""
    windows = Traffic().run(World(), np.random.default_rng(1))
    plain, told = fit_step_time(windows), fit_step_time(windows, prior_crossover=1500.0)
    assert isinstance(plain, StepTimeFit)
    assert isinstance(told, StepTimeFit)
    assert isinstance(plain.crossover, Crossover)
    assert isinstance(told.crossover, Crossover)
    assert told.crossover.tokens == pytest.approx(plain.crossover.tokens, rel=0.01)


def test_prompt_tokens_are_part_of_the_crossover() -> None:
    """With prefill up to 0.8 of a step the crossover is found as without; leaving it out would read low."""
    found = _crossover(World(), Traffic(prompts=0.8))
    assert found.tokens == pytest.approx(295, rel=0.06)


@pytest.mark.parametrize(
    ("world", "traffic"),
    [
        (World(), Traffic(drift=0.08)),
        (World(draft_batched=0.1), Traffic()),
        (World(), Traffic(scheduled=True)),
        (World(), Traffic(per_cell=5, noise=0.02, cell_noise=0.04)),
    ],
    ids=["drifting machine", "drafter costs per request", "K follows the batch", "noisy cells"],
)
def test_intervals_hold_under_harder_traffic(world: World, traffic: Traffic) -> None:
    """Over 16 runs of each kind of traffic at least 13 intervals contain the truth (90 % would give 14)."""
    held = 0
    for seed in range(16):
        found = _crossover(world, traffic, seed)
        held += found.low <= world.crossover <= found.high
    assert held >= 13


@pytest.mark.parametrize(
    "drafter",
    [{"draft_base": 0.0, "draft_root": 0.05}, {"draft_base": 0.08}],
    ids=["concave", "flat"],
)
def test_the_interval_spans_every_drafter_shape_that_cells_do_not_rule_out(
    drafter: dict[str, float],
) -> None:
    """Few cells of a line leave shapes open: the crossover of each is inside, and some widen the hull."""
    world = World(crossover=60.0, sharpness=1.0, overhead_ratio=0.1, draft_slope=0.0, **drafter)
    gains = []
    for seed in range(12):
        cells = build_cells(FEW_CELLS.run(world, np.random.default_rng(seed)))
        problem, pair = solve_cells(cells, None)
        drawn = resample(problem, pair, 32, seed)
        assert drawn.rivals.shape[1] > 1
        alone = replace(drawn, rivals=drawn.rivals[:, :0])
        low, value, high = reach(pair.theta, drawn, CROSSOVER, 0.01)
        low_alone, value_alone, high_alone = reach(pair.theta, alone, CROSSOVER, 0.01)
        assert value == value_alone
        rivals = quantities_of(drawn.rivals)[..., CROSSOVER]
        assert low <= min(low_alone, float(rivals.min()) - 0.02)
        assert high >= max(high_alone, float(rivals.max()) + 0.02)
        gains.append((high - low) - (high_alone - low_alone))
    assert max(gains) > 0.01
