"""Load over time, and a machine's speed over time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.simulate.helper import one_pool
from tuner.simulate import Fleet, FleetSpec, LoadSpec, NoiseSpec, PoolSpec, preset
from tuner.simulate.load import PoolLoad

if TYPE_CHECKING:
    from tuner.simulate.cost import Floats
    from tuner.simulate.spec import Profile


def aimed(load: LoadSpec, seconds: float = 4000.0, every: float = 5.0) -> Floats:
    """Return the batches that a load aims at, (times, engines)."""
    rng = np.random.default_rng(2)
    pool = PoolLoad(PoolSpec(engines=8, load=load), rng)
    rows = []
    for i in range(int(seconds / every)):
        pool.advance(every, rng)
        rows.append(pool.batch(1.8e9 + i * every))
    return np.array(rows)


def test_a_constant_load_is_constant() -> None:
    """The aim stays at the upper end."""
    assert (aimed(LoadSpec(profile="constant", batch=(4, 20))) == 20).all()


def test_a_walk_spans_its_bounds_and_stays_inside() -> None:
    """A random walk visits both ends and moves by little at a time; engines walk on their own."""
    batches = aimed(LoadSpec(profile="walk", batch=(8, 32), period=300))
    assert 8 <= batches.min() < 9
    assert 30 < batches.max() <= 32
    assert np.abs(np.diff(np.log(batches), axis=0)).max() < 1.0
    assert np.asarray(np.corrcoef(batches.T))[0, 1:].max() < 0.9


def test_a_day_returns_after_its_period() -> None:
    """A sine over the day: the same load a period later, both ends within one."""
    batches = aimed(LoadSpec(profile="day", batch=(8, 32), period=1000))
    assert batches[0] == pytest.approx(batches[200])
    assert batches[:200].min(axis=0) == pytest.approx(8, rel=0.01)
    assert batches[:200].max(axis=0) == pytest.approx(32, rel=0.01)


def test_steps_go_through_their_levels() -> None:
    """Levels are held for a period each, in order."""
    batches = aimed(LoadSpec(profile="steps", levels=(5, 10, 20), period=100), seconds=600)
    assert set(np.unique(batches)) == {5, 10, 20}
    assert (np.diff(batches[:, 0]) != 0).sum() in (5, 6)


def test_engines_move_together_without_phases() -> None:
    """With no spread of phases all engines of the pool have one load."""
    profiles: tuple[Profile, ...] = ("walk", "day")
    for profile in profiles:
        batches = aimed(LoadSpec(profile=profile, batch=(8, 32), phase_spread=0.0), seconds=500)
        assert batches == pytest.approx(batches[:, :1].repeat(8, axis=1))


@pytest.mark.parametrize("batch", [8.0, 30.0])
def test_open_arrivals_hold_the_batch_that_was_aimed_at(batch: float) -> None:
    """Arrivals are computed from the engine's own costs, so that the mean batch is the one asked for."""
    load = LoadSpec(profile="constant", batch=(batch, batch))
    fleet = Fleet(one_pool(engines=24, load=load), seed=8)
    fleet.advance(60)
    counters = fleet.engines.state.counters
    before = counters.joint.sum(), counters.steps.sum()
    fleet.advance(120)
    mean = (counters.joint.sum() - before[0]) / (counters.steps.sum() - before[1])
    assert float(mean) == pytest.approx(batch, rel=0.15)


def test_speed_drifts_and_windows_differ() -> None:
    """Over an hour speed moves by 5-18 % from end to end; a window's factor has the deviation asked for."""
    drift = Fleet(one_pool(engines=40, noise=NoiseSpec(window=0.0)), seed=1).engines
    seen = []
    for minute in range(61):
        drift.beat(1.8e9 + 60 * minute, 60.0)
        seen.append(drift.state.speed.copy())
    spans = np.ptp(np.array(seen), axis=0)
    assert spans.min() > 0.045
    assert spans.max() < 0.19
    noise = Fleet(one_pool(engines=400, noise=NoiseSpec(window=0.05, drift_low=0.0, drift_high=0.0))).engines
    noise.beat(1.8e9 + 100, 100.0)
    assert np.log(noise.state.speed).std() == pytest.approx(0.05, rel=0.15)


def test_the_demo_visits_all_its_draft_lengths_with_short_steps() -> None:
    """Within its day each engine runs three draft lengths, and makes no fewer than 190 steps in 15 s."""
    spec = FleetSpec(pools=tuple(replace(pool, engines=1) for pool in preset("demo").pools))
    fleet = Fleet(spec, seed=1)
    counters = fleet.engines.state.counters
    made = []
    for _ in range(32):
        before = counters.steps.copy()
        fleet.advance(15)
        made.append(counters.steps - before)
    assert min(steps.min() for steps in made[1:]) > 190
    joint = counters.joint.sum(axis=(1, 3))
    assert [set(np.flatnonzero(row > 2000).tolist()) for row in joint] == [{1, 2, 4}, {1, 3, 4}, {1, 2, 4}]
