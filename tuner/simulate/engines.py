"""All engines of a fleet: state, steps, and what moves slowly (load, speed) every few seconds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tuner.simulate.load import PoolLoad
from tuner.simulate.state import Fixed, State, dense_table
from tuner.simulate.step import Stepper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.simulate.spec import PoolSpec

BEAT = 5.0
"""Seconds between looks at load and speed. Engines wait for each other at each: at 1 s, 50 engines of 21
steps a second take 30 rounds of steps a second, at 5 s 25."""
GPU_SECONDS = 10.0
"""Memory of GPU activity: an exporter shows means over several seconds."""


class Engines:
    """The engines of all pools, one after the other in the order of the pools."""

    def __init__(self, pools: Sequence[PoolSpec], seed: int, start: float) -> None:
        """Start every engine, empty, at unix second ``start``."""
        self.pools = tuple(pools)
        # SFC64 is the fastest of numpy's generators; two streams, so that more steps do not change the load.
        self.rng = np.random.Generator(np.random.SFC64([seed, 0]))
        self.slow_rng = np.random.Generator(np.random.SFC64([seed, 1]))
        self.fixed = Fixed(self.pools)
        self.state = State(self.fixed, start)
        self.stepper = Stepper(self.state, self.rng)
        self.loads = [PoolLoad(pool, self.slow_rng) for pool in self.pools]
        n = self.fixed.engines
        self.fault_speed = np.ones(n)
        """Factor on step seconds that a fault sets."""
        noise = [pool.noise for pool in self.pools for _ in range(pool.engines)]
        self._noise_sd = np.array([one.window for one in noise])
        self._noise_seconds = np.array([one.window_seconds for one in noise])
        self._noise = np.ones(n)
        self._noise_until = start + self._noise_seconds * self.slow_rng.random(n)
        low, high = np.array([one.drift_low for one in noise]), np.array([one.drift_high for one in noise])
        # A sine of amplitude a moves speed by a share of 2a between its ends.
        self._drift = (low + np.maximum(high - low, 0) * self.slow_rng.random(n)) / 2
        self._drift_turn = 2 * np.pi / np.array([one.drift_seconds for one in noise])
        self._drift_phase = 2 * np.pi * self.slow_rng.random(n)
        self._gpu_last = np.zeros((3, n))
        self.gpu = np.zeros((3, n))
        """Share of the time that kernels ran, memory was read, tensor pipes computed; (3, engines)."""
        self.state.burst[:] = [pool.load.burst for pool in self.pools for _ in range(pool.engines)]
        for engine in range(n):
            self.reset_table(engine)
        self.beat(start, 0.0)

    def startup(self, engine: int) -> list[list[int]]:
        """Return the table that an engine was started with; one fixed K where it has none."""
        pool = self.pools[self.fixed.pool_of[engine]]
        return [list(row) for row in pool.schedule] or [[1, pool.max_batch, pool.max_draft_len]]

    def reset_table(self, engine: int) -> None:
        """Run the table at start-up again."""
        self.set_table(engine, self.startup(engine))

    def set_table(self, engine: int, rows: Sequence[Sequence[int]]) -> None:
        """Run another table from the next step on."""
        fixed = self.fixed
        batch, width, highest = int(fixed.max_batch[engine]), fixed.slots + 1, int(fixed.highest[engine])
        self.state.table[engine] = dense_table(rows, batch, width, highest)

    def restart(self, engine: int, now: float) -> None:
        """Begin anew: requests lost, counters zero, table of the start-up."""
        self.state.clear(engine)
        self.state.counters.clear(engine)
        self.state.started[engine] = now
        self.state.clock[engine] = now
        self._gpu_last[:, engine] = 0
        self.reset_table(engine)

    def beat(self, now: float, seconds: float) -> None:
        """Bring load, speed and GPU activity up to ``now``, ``seconds`` after the last time."""
        state = self.state
        first = 0
        for pool, load in zip(self.pools, self.loads, strict=True):
            load.advance(seconds, self.slow_rng)
            rows = slice(first, first + pool.engines)
            state.rate[rows], state.clients[rows] = load.arrivals(now)
            first += pool.engines
        due = now >= self._noise_until
        if due.any():
            draws = self.slow_rng.standard_normal(int(due.sum()))
            self._noise[due] = np.exp(self._noise_sd[due] * draws)
            self._noise_until[due] = now + self._noise_seconds[due]
        drift = np.exp(self._drift * np.sin(self._drift_turn * now + self._drift_phase))
        state.speed[:] = self._noise * drift * self.fault_speed
        self._look_at_gpus(seconds)

    def _look_at_gpus(self, seconds: float) -> None:
        """Move the GPU gauges towards what the last seconds showed."""
        if seconds <= 0:
            return
        counters = self.state.counters
        seen = np.stack([counters.busy_seconds, counters.memory_seconds, counters.compute_seconds])
        share = np.clip((seen - self._gpu_last) / seconds, 0.0, 1.0)
        self._gpu_last = seen
        self.gpu += (share - self.gpu) * -math.expm1(-seconds / GPU_SECONDS)

    def run(self, until: float) -> None:
        """Step until every engine has reached ``until``."""
        self.stepper.run(until)
