"""How many requests are answered at a time, and how long the head of one may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tuner.serve.gate import HEADERS, HEALTH, error_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

MAX_REQUESTS: Final = 256
"""Requests in progress at once, half of the connections there may be: the others are idle, and make room."""
MAX_HEAD_BYTES: Final = 16 * 2**10
"""Longest head of a request, what h11 takes of one that is not whole yet. Browsers send about 1 KB."""


class Bounded:
    """Refuses what is too much before anything looks at it; health is answered whatever else goes on."""

    def __init__(self, app: ASGIApp) -> None:
        """Stand before ``app``."""
        self._app = app
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 431 or 503, or let the request through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if _head_bytes(scope) > MAX_HEAD_BYTES:
            told = f"the head of the request is longer than {MAX_HEAD_BYTES} bytes"
            refusal = error_response(scope["path"], 431, told, {**HEADERS, "connection": "close"})
            await refusal(scope, receive, send)
            return
        if self._running >= MAX_REQUESTS and scope["path"] not in HEALTH:
            told = "too many requests are in progress: try again later"
            refusal = error_response(scope["path"], 503, told, {**HEADERS, "retry-after": "10"})
            await refusal(scope, receive, send)
            return
        self._running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running -= 1


def _head_bytes(scope: Scope) -> int:
    """Return the length that a head had on the wire, within a few blanks."""
    line = len(scope["method"]) + len(scope.get("raw_path") or b"") + len(scope["query_string"])
    return line + sum(len(name) + len(value) + len(": \r\n") for name, value in scope["headers"])
