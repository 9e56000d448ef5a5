"""HTTP connections that end when a request takes too long to arrive, or when newer ones need their place."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

MAX_CONNECTIONS: Final = 512
"""Connections at once, 8 KB each while idle. For one more, that which has been idle longest is closed."""
HEAD_SECONDS: Final = 10.0
"""Time for the head of a request to come. Clients on a bad line take a second; one that sends a byte every
few seconds would keep one of 512 connections for ever."""

_LOG = logging.getLogger("uvicorn.error.connections")
_LOG.setLevel(logging.ERROR)  # uvicorn warns of each malformed request: strangers would write the log


class PatientOnlySoLong(H11Protocol):
    """Closes a connection whose request head has not come within :data:`HEAD_SECONDS`.

    uvicorn has a time-out between requests, and none from the first byte of one to the end of its head. Its
    own limit counts idle connections, and once they are too many answers 503 to everybody, health included.
    """

    _deadline: asyncio.TimerHandle | None = None
    heard = 0.0
    """When something last came, by the clock of the loop."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Wait for the first request."""
        super().connection_made(transport)
        self.logger = _LOG
        self.heard = self.loop.time()
        self._arm()
        if len(self.connections) > MAX_CONNECTIONS:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """Take bytes; those of an unfinished head do not move the deadline."""
        self.heard = self.loop.time()
        if self._deadline is None and not self.answering:
            self._arm()
        super().data_received(data)
        if self.answering:
            self._disarm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self._disarm()
        super().connection_lost(exc)

    @property
    def answering(self) -> bool:
        """Whether a request came whole, and its answer has not."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is not None and not cycle.response_complete

    def _make_room(self) -> None:
        """Close the connection that has been idle longest; this one, if all others are being answered."""
        others = cast("set[PatientOnlySoLong]", self.connections)
        idle = min((one for one in others if not one.answering), key=lambda one: one.heard)
        self.connections.discard(idle)  # at once: more may come before the loop hears of its end
        idle.transport.abort()

    def _arm(self) -> None:
        self._deadline = self.loop.call_later(HEAD_SECONDS, self._expire)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        self._deadline = None
        self.transport.abort()
