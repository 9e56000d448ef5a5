"""What stands before every request: the host it was meant for, its size, who asks, and what may be done."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Match

from tuner.serve.credentials import Passwords, read_basic, read_bearer, token_matches
from tuner.serve.listen import is_loopback
from tuner.serve.live import LiveWebConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from tuner.serve.webconfig import WebConfig

HEALTH: Final = frozenset({"/-/healthy", "/-/ready"})
"""Open to all: a load balancer has no password, and they tell nothing but a reason or two."""
READS: Final = frozenset({"GET", "HEAD"})
MAX_BODY: Final = 4096
"""Bytes of a request's body. No call of this release reads one; clients may send an empty document."""

HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Sent with every answer that does not say otherwise."""


class Gate:
    """Judges requests. Reads are open on loopback; elsewhere all but health needs authentication.

    Whatever changes anything needs the bearer token wherever it comes from, which also serves for reads.
    """

    def __init__(self, auth: WebConfig | LiveWebConfig | None, token_file: Path | None) -> None:
        """Take users and certificates, and the file that holds the token."""
        self.live = LiveWebConfig(auth) if auth is not None and not isinstance(auth, LiveWebConfig) else auth
        self.loopback: bool | None = None
        """Whether only this host can connect; ``None`` until a server says so."""
        self._token_file = token_file
        self.passwords = Passwords(time.monotonic)
        self._one = anyio.CapacityLimiter(1)

    async def refuse(self, scope: Scope, headers: Headers, routes: Sequence[BaseRoute]) -> Response | None:
        """Return why a request is not let through, or ``None`` if it is."""
        if self.loopback and not _for_loopback(headers.get("host")):
            return _error(scope, 421, "this address is served to localhost only: ask for it by that name")
        if (too_much := _too_much(scope, headers)) is not None:
            return too_much
        method, reads = scope["method"], scope["method"] in READS
        if reads and scope["path"] in HEALTH:
            return None
        given = headers.get("authorization", "")
        token = read_bearer(given)
        trusted = token is not None and token_matches(token, self._token_file)
        if not trusted and (refusal := await self._stranger(scope, given)) is not None:
            return refusal
        if reads or trusted or _only_of_other_methods(scope, routes):
            return None
        return self._no_token(scope, token, method)

    async def _stranger(self, scope: Scope, given: str) -> Response | None:
        """Return the refusal of a request that does not say who asks, where that is asked for."""
        config = None if self.live is None else self.live.current()
        if config is None or not config.users:
            # Without users only loopback, or a verified client certificate, got this far.
            return None
        basic = read_basic(given)
        if basic is None:
            return _unauthorised(scope, "authentication is needed: give a user and password")
        verdict = self.passwords.remembered(config.users, basic)
        if verdict is None:
            if not self.passwords.admit():
                return _error(scope, 429, "too many wrong passwords: try again later", {"retry-after": "10"})
            verdict = await anyio.to_thread.run_sync(
                self.passwords.check, config.users, basic, limiter=self._one
            )
        return None if verdict else _unauthorised(scope, "user or password is wrong")

    def _no_token(self, scope: Scope, token: str | None, method: str) -> Response:
        if self._token_file is None:
            return _error(scope, 403, "nothing can be changed: no web.token_file is configured")
        if token is None:
            message = f"{method} needs the bearer token of web.token_file"
            return _error(scope, 401, message, {"www-authenticate": 'Bearer realm="tuner"'})
        return _error(scope, 403, "the bearer token is not the one in web.token_file")


class Guarded:
    """The ASGI side of a :class:`Gate`, with the headers of every answer."""

    def __init__(self, app: ASGIApp, gate: Gate, routes: Callable[[], Sequence[BaseRoute]]) -> None:
        """Stand before ``app``."""
        self._app, self._gate, self._routes = app, gate, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a refusal, or let the request through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        live = self._gate.live
        added = HEADERS if live is None else {**HEADERS, **live.current().headers}

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in added.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = await self._gate.refuse(scope, Headers(scope=scope), self._routes())
        await (self._app if refusal is None else refusal)(scope, receive, with_headers)


def _for_loopback(host: str | None) -> bool:
    """Tell whether a Host header names this host. A page of a rebound name shows its own name there."""
    if host is None:  # HTTP/1.0, which no browser speaks
        return True
    if host.startswith("["):
        name, closed, _ = host[1:].partition("]")
        return bool(closed) and is_loopback(name)
    return is_loopback(host.partition(":")[0])


def _too_much(scope: Scope, headers: Headers) -> Response | None:
    if "transfer-encoding" in headers:
        return _error(scope, 411, "give the length of the body by Content-Length")
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:20]) > MAX_BODY:
        return _error(scope, 413, f"the body is larger than {MAX_BODY} bytes", {"connection": "close"})
    return None


def _only_of_other_methods(scope: Scope, routes: Sequence[BaseRoute]) -> bool:
    """Tell whether the path exists and the method does not: the router answers 405 and changes nothing."""
    found = {route.matches(scope)[0] for route in routes}
    return Match.PARTIAL in found and Match.FULL not in found


def _unauthorised(scope: Scope, message: str) -> Response:
    return _error(scope, 401, message, {"www-authenticate": 'Basic realm="tuner", charset="UTF-8"'})


def _error(scope: Scope, status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return error_response(scope["path"], status, message, headers)


def error_response(path: str, status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """Return an error: JSON below ``/api``, one line of text elsewhere."""
    if path.startswith("/api/"):
        return JSONResponse({"error": message}, status, headers)
    return PlainTextResponse(f"{message}\n", status, headers)
