"""A simulated fleet in one process: advance its time, read its pages, talk to its plugins, break it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tuner._exceptions import InputError
from tuner.simulate.body import Pages
from tuner.simulate.engines import BEAT, Engines
from tuner.simulate.gpu import gpu_page
from tuner.simulate.truth import PoolTruth

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tuner.simulate.spec import FleetSpec, PoolSpec

START = 1_800_000_000.0
"""Unix second that a fleet starts at, where nothing else is said: 2027-01-15."""


class Fleet:
    """Engines of all pools, by pool and number. Equal seeds and equal calls give equal pages."""

    def __init__(self, spec: FleetSpec, seed: int = 0, *, start: float = START) -> None:
        """Start all engines, empty, at unix second ``start``."""
        self.spec = spec
        self.pools: Mapping[str, PoolSpec] = {pool.name: pool for pool in spec.pools}
        self.engines = Engines(spec.pools, seed, start)
        self.now = start
        self._beat = start
        self._pages = Pages(self.engines, pad=spec.pad_bodies)

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` of the fleet's time pass; 0 and less do nothing."""
        end = self.now + seconds
        while self.now < end:
            target = min(end, self._beat + BEAT)
            self.engines.run(target)
            self.now = target
            if target >= self._beat + BEAT:
                self.engines.beat(target, target - self._beat)
                self._beat = target

    def index(self, pool: str, n: int) -> int:
        """Return the number of an engine among all.

        Raises:
            InputError: there is no such engine.
        """
        spec = self.pools.get(pool)
        if spec is None or not 0 <= n < spec.engines:
            raise InputError(f"no engine {n} in pool {pool!r}: pools are {', '.join(self.pools)}")
        return self.engines.fixed.first_engine[pool] + n

    def body(self, pool: str, n: int) -> str:
        """Return an engine's metrics page."""
        engine = self.index(pool, n)
        return self._pages.render(engine, self.pools[pool].model, ("startup", "startup"))

    def gpu_body(self, pool: str, n: int) -> str:
        """Return the DCGM page of an engine's GPU."""
        return gpu_page(self.engines, self.index(pool, n), f"{pool}-{n}")

    def truth(self, pool: str) -> PoolTruth:
        """Return what is true of a pool; for tests only."""
        return PoolTruth(self.pools[pool])

    def truths(self) -> dict[str, Any]:
        """Return the truth of all pools in JSON's types."""
        return {name: self.truth(name).as_dict() for name in self.pools}
