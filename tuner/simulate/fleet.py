"""A simulated fleet in one process: advance its time, read its pages, talk to its plugins, break it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tuner._exceptions import InputError
from tuner.simulate.body import Pages
from tuner.simulate.engines import BEAT, Engines
from tuner.simulate.faults import Faults, check, spoil
from tuner.simulate.gpu import gpu_page
from tuner.simulate.plugin import Plugins
from tuner.simulate.truth import PoolTruth

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tuner.simulate.faults import Fault
    from tuner.simulate.plugin import Answer
    from tuner.simulate.spec import FleetSpec, PoolSpec

START = 1_800_000_000.0
"""Unix second that a fleet starts at, where nothing else is said: 2027-01-15."""
NO_API: Answer = 404, {"detail": "Not Found"}
"""What a stock engine answers on the plugin's paths."""


class Fleet:
    """Engines of all pools, by pool and number. Equal seeds and equal calls give equal pages."""

    def __init__(
        self, spec: FleetSpec, seed: int = 0, *, start: float = START, token: str | None = None
    ) -> None:
        """Start all engines, empty.

        Args:
            spec: what the fleet consists of.
            seed: of everything random.
            start: unix second that it starts at.
            token: bearer token that the plugins ask for; ``None``: none is configured, nothing is taken.
        """
        self.spec = spec
        self.pools: Mapping[str, PoolSpec] = {pool.name: pool for pool in spec.pools}
        self.engines = Engines(spec.pools, seed, start)
        self.now = start
        self.plugins = Plugins(self.engines, seed, token, start)
        self.faults = Faults(self.engines, self.plugins)
        self._beat = start
        self._pages = Pages(self.engines, pad=spec.pad_bodies)
        self._stale: dict[int, str] = {}
        self._truths: dict[str, PoolTruth] = {}

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` of the fleet's time pass; 0 and less do nothing.

        A step that begins before the end is done to its end: counters run ahead by up to one step.
        """
        end = self.now + seconds
        while self.now < end:
            target = min(end, self._beat + BEAT, self.plugins.next_expiry, self.faults.next_end)
            target = max(target, self.now)
            self.engines.run(target)
            self.now = target
            self.plugins.expire(target)
            self.faults.end(target)
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
        """Return an engine's metrics page, with what faults do to its numbers.

        Faults of the way to it (down, slow, html, ...) are the server's.
        """
        engine = self.index(pool, n)
        faults = self.faults.of(engine)
        if "stale" in faults:
            return self._stale.setdefault(engine, self._page(engine))
        self._stale.pop(engine, None)
        page = self._page(engine)
        return spoil(page, faults) if faults else page

    def gpu_body(self, pool: str, n: int) -> str:
        """Return the DCGM page of an engine's GPU."""
        return gpu_page(self.engines, self.index(pool, n), f"{pool}-{n}")

    def get_schedule(self, pool: str, n: int) -> Answer:
        """Return what the plugin answers to ``GET /tuner/v1/schedule``."""
        engine = self.index(pool, n)
        return self.plugins.get(engine) if self.pools[pool].plugin else NO_API

    def put_schedule(
        self, pool: str, n: int, body: bytes | Mapping[str, Any], authorization: str | None = None
    ) -> Answer:
        """Return what the plugin answers to ``PUT /tuner/v1/schedule``, having done it."""
        engine = self.index(pool, n)
        if not self.pools[pool].plugin:
            return NO_API
        raw = body if isinstance(body, bytes) else json.dumps(dict(body)).encode()
        return self.plugins.put(engine, raw, authorization, self.now)

    def fault(
        self,
        kind: str,
        pool: str | None = None,
        engine: int | None = None,
        *,
        seconds: float | None = None,
        **parameters: float | str,
    ) -> int:
        """Begin a fault, or end some by the kind ``clear``; return the number of engines concerned.

        Args:
            kind: a key of :data:`tuner.simulate.faults.KINDS`, or ``clear``.
            pool: pool of the engines; all pools if ``None``.
            engine: number of the engine in its pool; all of them if ``None``.
            seconds: how long it lasts; until it is cleared if ``None``.
            parameters: of this kind; ``fault="..."`` names the one that ``clear`` ends.

        Raises:
            InputError: no such kind, parameter, pool or engine.
        """
        if engine is not None and pool is None:
            raise InputError("a fault of one engine needs its pool: give pool and engine")
        names = list(self.pools) if pool is None else [pool]
        numbers = [
            self.index(name, n)
            for name in names
            for n in (range(self._size(name)) if engine is None else [engine])
        ]
        if kind == "clear":
            which = parameters.pop("fault", None)
            if parameters or (which is not None and not isinstance(which, str)):
                raise InputError("clear takes no parameter but fault, the kind to end")
            for number in numbers:
                self.faults.clear(number, self.now, which)
            return len(numbers)
        check(kind, parameters)
        for number in numbers:
            self.faults.begin(kind, number, self.now, seconds, parameters)
        return len(numbers)

    def faults_of(self, pool: str, n: int) -> Mapping[str, Fault]:
        """Return the faults that an engine has now, by kind."""
        return self.faults.of(self.index(pool, n))

    def truth(self, pool: str) -> PoolTruth:
        """Return what is true of a pool; for tests only."""
        if pool not in self._truths:
            self._size(pool)
            self._truths[pool] = PoolTruth(self.pools[pool])
        return self._truths[pool]

    def truths(self) -> dict[str, Any]:
        """Return the truth of all pools in JSON's types."""
        return {name: self.truth(name).as_dict() for name in self.pools}

    def _page(self, engine: int) -> str:
        pool = self.engines.pools[self.engines.fixed.pool_of[engine]]
        model = self.faults.model.get(engine, pool.model)
        version = self.plugins.version(engine)
        return self._pages.render(engine, model, version, self.plugins.offset[engine])

    def _size(self, pool: str) -> int:
        if pool not in self.pools:
            raise InputError(f"no pool {pool!r}: pools are {', '.join(self.pools)}")
        return self.pools[pool].engines
