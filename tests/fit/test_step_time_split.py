"""How a step's time divides: intervals that hold, and "cannot say" where the load never changed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bench.recovery.step_time_world import Traffic, World, make_windows
from tuner.fit.crossover import Crossover
from tuner.fit.step_time import StepTimeFit, fit_step_time
from tuner.fit.step_time_split import Split
from tuner.fleet import NotEnoughData, Window

WORLD = World(sharpness=3.0)
FIXED, PER_TOKEN = WORLD.floor, WORLD.floor / WORLD.crossover


def _fit(windows: list[Window]) -> StepTimeFit:
    fit = fit_step_time(windows)
    assert isinstance(fit, StepTimeFit)
    return fit


def _split(windows: list[Window]) -> Split:
    told = _fit(windows).split
    assert isinstance(told, Split)
    return told


def test_intervals_hold_the_truth() -> None:
    """Over 30 runs the fixed time and the time per token lie in their intervals at least 9 times in 10."""
    traffic = Traffic(windows=120, per_cell=3, noise=0.02, cell_noise=0.02)
    held = []
    for seed in range(30):
        told = _split(traffic.run(WORLD, np.random.default_rng(seed)))
        for estimate, truth in ((told.fixed, FIXED), (told.per_token, PER_TOKEN)):
            held.append(estimate.low <= truth <= estimate.high)
            assert estimate.high < 3 * estimate.low
    assert np.mean(held) >= 0.9


def test_more_windows_narrow_the_intervals() -> None:
    """Ten times the windows say more about the time per token."""
    few, many = (
        _split(Traffic(windows=count, noise=0.03).run(WORLD, np.random.default_rng(1))).per_token
        for count in (30, 300)
    )
    assert many.high / many.low < few.high / few.low


@pytest.mark.parametrize("count", [3, 9, 200])
def test_one_load_does_not_tell_fixed_time_from_time_per_token(count: int) -> None:
    """Three windows at one batch and K, or two hundred: the step is known, what makes it up is not."""
    rng = np.random.default_rng(0)
    batch = 12 * np.exp(0.05 * rng.standard_normal(count))
    fit = _fit(make_windows(batch, np.full(count, 2.0), 0.15 * np.exp(0.02 * rng.standard_normal(count))))
    assert isinstance(fit.split, NotEnoughData)
    assert "tokens in flight" in fit.split.reason
    assert fit.split.have is not None
    assert fit.split.need == 2.0
    document = json.loads(json.dumps(fit.as_dict(), allow_nan=False))
    assert document["floor_seconds"] is document["seconds_per_token"] is document["sharpness"] is None
    assert "a part per token" in document["split_unknown"]
    assert fit.predict(12, 2).value == pytest.approx(0.15, rel=0.03)
    assert not isinstance(fit.crossover, Crossover)


def test_json_gives_each_parameter_its_ends() -> None:
    """Floor, time per token and sharpness come with low and high around them."""
    document = _fit(Traffic(windows=120).run(WORLD, np.random.default_rng(2))).as_dict()
    for name in ("fixed_seconds", "floor_seconds", "overhead_seconds", "seconds_per_token", "sharpness"):
        assert document[f"{name}_low"] <= document[name] <= document[f"{name}_high"]
    total = document["floor_seconds"] + document["overhead_seconds"]
    assert document["fixed_seconds"] == pytest.approx(total, rel=1e-6)


def test_a_line_does_not_tell_overhead_from_floor() -> None:
    """Where every token costs from the first one on, a third of the fixed time may be overhead."""
    told = _split(Traffic(windows=300).run(World(sharpness=1.0), np.random.default_rng(3)))
    assert told.overhead.low == 0.0
    assert told.overhead.high > 0.3 * told.fixed.value
    assert told.floor.low < 0.7 * told.fixed.value < told.fixed.low
