"""The whole daemon in virtual time, against a world whose time it moves.

The same service, the same table of jobs and the same triggers as in production, one job after the other in
the caller's thread. Demonstrations and long tests run it; hours pass in the time that the work takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.daemon.clock import SteadyClock, VirtualClock
from tuner.daemon.drive import Runner, VirtualDriver
from tuner.daemon.jobs import LEASE_TTL
from tuner.daemon.leader import Leader
from tuner.daemon.opening import opener
from tuner.daemon.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable

    from tuner.config import Config
    from tuner.daemon.logs import Logger
    from tuner.daemon.wiring import Parts


class WorldClock(VirtualClock):
    """A virtual clock that takes a world along: what the daemon scrapes is as old as what it thinks."""

    def __init__(self, now: float, advance: Callable[[float], None]) -> None:
        """Start at ``now``, unix seconds; ``advance`` lets so many seconds of the world pass."""
        super().__init__(now)
        self._world = advance

    def advance(self, seconds: float) -> None:
        """Let time pass, here and in the world."""
        super().advance(seconds)
        if seconds > 0.0:
            self._world(seconds)


class Accelerated:
    """A daemon that lives as long as :meth:`run_for` says."""

    def __init__(
        self,
        config: Config,
        parts: Callable[[SteadyClock], Parts],
        log: Logger,
        *,
        now: float,
        advance: Callable[[float], None],
        holder: str = "accelerated",
    ) -> None:
        """Open the database and wire the parts.

        Args:
            config: settings without fault.
            parts: makes what talks to the world.
            log: where events go.
            now: unix seconds that the world is at.
            advance: lets so many seconds of the world pass.
            holder: name in the lease.

        Raises:
            InputError: a part cannot be made of these settings.
        """
        virtual = WorldClock(now, advance)
        self.clock = SteadyClock(virtual)
        self.leader = Leader(opener(config), holder, LEASE_TTL, self.clock.monotonic, log)
        self._parts = parts(self.clock)
        self.service = Service(config, self._parts, self.clock, self.leader, log, threaded=False)
        runner = Runner(self.service.functions, self.clock, self.service.book, log, self.service.publish)
        self.driver = VirtualDriver(runner.run, self.clock, virtual, self._tick)
        self.service.hasten = self.driver.hasten
        self.driver.start(self.service.cadence, self.clock.now())

    def run_for(self, seconds: float) -> None:
        """Live through so many seconds."""
        self.driver.run_for(seconds)

    def close(self) -> None:
        """Write what waits, give the lease back, and close the database."""
        self.driver.stop()
        self.service.flush()
        self.service.writer.stop(0.0)
        self.leader.release()
        self.service.wiring.scraper.close()
        self._parts.close()
        if self.leader.store is not None:
            self.leader.store.close()

    def _tick(self) -> None:
        step = self.service.tick()
        if step:
            self.driver.shift(step, self.clock.now())
