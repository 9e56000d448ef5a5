"""HTTP connections that end when a request takes too long to arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

HEAD_SECONDS: Final = 10.0
"""Time for the head of a request to come. Clients on a bad line take a second; one that sends a byte every
few seconds would keep one of 512 connections for ever."""


class PatientOnlySoLong(H11Protocol):
    """Closes a connection whose request head has not come within :data:`HEAD_SECONDS`.

    uvicorn has a time-out between requests, and none from the first byte of one to the end of its head.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Wait for the first request."""
        super().connection_made(transport)
        self._arm()

    def data_received(self, data: bytes) -> None:
        """Take bytes; those of an unfinished head do not move the deadline."""
        if self._deadline is None and not self._answering:
            self._arm()
        super().data_received(data)
        if self._answering:
            self._disarm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self._disarm()
        super().connection_lost(exc)

    @property
    def _answering(self) -> bool:
        """Whether a request came whole, and its answer has not."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is not None and not cycle.response_complete

    def _arm(self) -> None:
        self._deadline = self.loop.call_later(HEAD_SECONDS, self._expire)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        self._deadline = None
        self.transport.abort()
