"""The real simulated fleet behind real sockets in this process, its time moved by whoever asks."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tuner.simulate.server import FleetServer

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tuner.simulate import Fleet

T = TypeVar("T")
HANG_SECONDS = 60.0
"""Bound that only catches a server that hangs."""


class ServedFleet:
    """A fleet and its server, in a thread with an event loop of its own; a block stops it."""

    def __init__(self, fleet: Fleet) -> None:
        """Listen on a free port of loopback; time passes by :meth:`advance` alone."""
        self.fleet = fleet
        self._server = FleetServer(fleet, speed=0.0)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fleet", daemon=True)
        self._thread.start()
        self.url: str = self._do(self._server.start("127.0.0.1", 0))

    def __enter__(self) -> Self:
        """Serve."""
        return self

    def __exit__(self, *_: object) -> None:
        """Drop all connections and end the thread."""
        self._do(self._server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(HANG_SECONDS)
        self._loop.close()

    def advance(self, seconds: float) -> None:
        """Let time of the fleet pass, in the server's thread."""
        self._do(self._server.advance(seconds))

    def fault(self, kind: str, pool: str | None = None, engine: int | None = None, **more: Any) -> None:
        """Begin a fault, or end all by the kind ``clear``, in the server's thread."""

        async def begin() -> None:
            self.fleet.fault(kind, pool, engine, **more)

        self._do(begin())

    def body(self, pool: str, n: int) -> str:
        """Return the page of an engine as it is now."""

        async def read() -> str:
            return self.fleet.body(pool, n)

        return self._do(read())

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(HANG_SECONDS)
