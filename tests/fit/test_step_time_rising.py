"""Draft lengths that rise with the batch, the wrong way round, as a first table may have them."""

from __future__ import annotations

import numpy as np
import pytest

from bench.recovery.step_time_world import World, make_windows, noise
from tuner.fit.crossover import Crossover
from tuner.fit.step_time import StepTimeFit, fit_step_time


def _fit(seed: int) -> StepTimeFit:
    """Fit 140 windows of 1, 2 and 4 draft tokens at small, middle and large batches."""
    rng = np.random.default_rng(seed)
    batch = np.exp(rng.uniform(np.log(4), np.log(60), 140))
    draft_len = np.select([batch < 11, batch < 23], [1.0, 2.0], 4.0)
    prompt = batch * (1 + 0.6 * draft_len) * 0.45
    world = World(crossover=80.0, sharpness=2.0, floor=0.012, draft_base=0.11, draft_slope=0.0)
    seconds = world.seconds(batch, draft_len, prompt) * noise(rng, 140, 0.05, 0.0)
    fit = fit_step_time(make_windows(batch, draft_len, seconds, prompt=prompt))
    assert isinstance(fit, StepTimeFit)
    return fit


@pytest.mark.parametrize("seed", range(12))
def test_a_drafter_is_never_read_as_dearer_than_its_target(seed: int) -> None:
    """Draft tokens and tokens in flight rise as one: what they cost is the target's."""
    fit = _fit(seed)
    assert fit.draft.batched_seconds <= 0.5 * fit.seconds_per_token
    assert isinstance(fit.crossover, Crossover)
    assert fit.crossover.tokens == pytest.approx(80.0, rel=0.25)
    assert fit.crossover.low <= 80.0 <= fit.crossover.high
    assert fit.crossover.high < 1.6 * fit.crossover.low, "no drafter that costs what the target does is in it"
