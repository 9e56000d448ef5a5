"""The planner against the true optimum of random engines: fewer repetitions of the benchmark."""

from __future__ import annotations

import time

import numpy as np
import pytest

from bench.recovery.planner import CASES, run
from bench.recovery.planner_world import DRAFT_LENS, SHAPES, random_world
from tuner.plan.goodput import GoodputTable
from tuner.plan.planner import plan


def test_bounds_hold_in_random_worlds() -> None:
    """Mean regret under 1 %, 95th percentile under 3 %, never worse than none by 1 % at bounded errors."""
    rows = run(15)
    assert len(rows) == len(CASES) * (len(SHAPES) + 1)
    assert [row["broken"] for row in rows] == [""] * len(rows)


@pytest.mark.long
def test_bounds_hold_in_many_worlds() -> None:
    """The same with ten times the worlds of the benchmark's default."""
    assert [row["broken"] for row in run(2000)] == [""] * len(CASES) * (len(SHAPES) + 1)


def test_a_thousand_routes_take_seconds() -> None:
    """256 batch sizes x 8 draft lengths plan at better than 50 a second, a thousand in under 20 s."""
    rng = np.random.default_rng(5)
    batches = np.arange(1, 257)
    lens = np.array(DRAFT_LENS)
    tables = []
    for place in range(24):
        world = random_world(SHAPES[place % len(SHAPES)], rng)
        truth = np.log(world.goodput(batches.astype(float), lens.astype(float)))
        noisy = truth + 0.01 * rng.standard_normal(truth.shape)
        tables.append(GoodputTable.from_moments(batches, lens, noisy, np.full(truth.shape, 0.02)))
    start = time.perf_counter()
    for table in tables:
        plan(table)
    assert (time.perf_counter() - start) / len(tables) < 0.02
