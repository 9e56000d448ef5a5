"""Load over time: how many requests each engine is meant to hold, and the arrivals that do it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tuner.simulate.truth import PoolTruth

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.simulate.cost import Floats
    from tuner.simulate.spec import LoadSpec, PoolSpec

CURVE_POINTS = 33
"""Batches at which the arrivals that hold a batch are computed; between them they are interpolated."""


class PoolLoad:
    """The load of one pool's engines."""

    def __init__(self, pool: PoolSpec, rng: np.random.Generator) -> None:
        """Draw each engine's phase."""
        load = pool.load
        n = pool.engines
        self.load = load
        self.levels = np.array(load.levels or _ladder(load))
        spread = load.phase_spread
        self.phase = spread * rng.random(n) + (1 - spread) * rng.random()
        self.walk = np.where(spread > 0, rng.random(n), rng.random()) * 2.0
        self.batches = np.geomspace(
            max(load.batch[0] / 2, 0.05), max(load.batch[1], *self.levels) + 1, CURVE_POINTS
        )
        truth = PoolTruth(pool)
        self.rates = np.array([held_by(truth, b) for b in self.batches])
        if load.rate:
            self.rates *= load.rate / np.interp(load.batch[1], self.batches, self.rates)

    def advance(self, seconds: float, rng: np.random.Generator) -> None:
        """Move the random walk; one ``period`` takes it from end to end about once."""
        if self.load.profile != "walk":
            return
        steps = rng.standard_normal(len(self.walk))
        if self.load.phase_spread == 0:
            steps[:] = steps[0]
        self.walk += steps * math.sqrt(seconds / self.load.period)

    def batch(self, now: float) -> Floats:
        """Return the running requests to aim at, (engines,), at unix second ``now``."""
        load = self.load
        low, high = load.batch
        if load.profile == "constant":
            return np.full(len(self.phase), high)
        turn = now / load.period + self.phase
        if load.profile == "steps":
            return np.asarray(self.levels[turn.astype(np.int64) % len(self.levels)])
        if load.profile == "day":
            height = (1 - np.cos(2 * np.pi * turn)) / 2
        else:
            # A walk between two mirrors: folded onto 0..1.
            height = 1 - np.abs(np.mod(self.walk, 2.0) - 1)
        return np.asarray(low * (high / low) ** height)

    def arrivals(self, now: float) -> tuple[Floats, Floats]:
        """Return arrivals per second of open load and clients of closed load, each (engines,)."""
        batch = self.batch(now)
        if self.load.arrivals == "closed":
            return np.zeros(len(batch)), np.maximum(np.round(batch), 1.0)
        return np.interp(batch, self.batches, self.rates), np.zeros(len(batch))


def held_by(truth: PoolTruth, batch: float) -> float:
    """Return the requests per second at which an engine holds a batch under its table at start-up.

    Little's law: as many requests begin as end, a step long.
    """
    draft_len = truth.pool.max_draft_len
    for first, _, k in truth.pool.schedule:
        if first <= max(batch, 1):
            draft_len = k
    return truth.prompts_per_step(batch, draft_len) / truth.step_seconds(batch, draft_len)


def _ladder(load: LoadSpec) -> Sequence[float]:
    """Return four levels from low to high and back down, evenly spaced in the logarithm."""
    low, high = load.batch
    up = [low * (high / low) ** (i / 3) for i in range(4)]
    return [*up, *up[2:0:-1]]
