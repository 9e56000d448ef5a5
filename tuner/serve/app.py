"""The ASGI app: metrics, health, the API and the landing page, all answered from the newest snapshot."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tuner._exceptions import TunerError
from tuner.serve.api import NotFoundError
from tuner.serve.bounds import Bounded
from tuner.serve.exposition import Exposition
from tuner.serve.gate import HEADERS, Gate, Guarded, error_response
from tuner.serve.openapi import API, DOCUMENT_PATH, ENDPOINTS, openapi_document
from tuner.serve.pages import Pages
from tuner.serve.params import QueryError, read_query

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from starlette.requests import Request

    from tuner.serve.api import History
    from tuner.serve.live import LiveWebConfig
    from tuner.serve.openapi import Endpoint
    from tuner.serve.snapshot import Snapshot
    from tuner.serve.webconfig import WebConfig

    Handler = Callable[[Request], Awaitable[Response]]

READERS: Final = 2
"""Requests that ask the database at once: SQLite answers one in milliseconds, and its writer is never kept
waiting by a crowd."""
QUEUE: Final = 32
"""Requests that wait for one of them; more are answered 503 at once."""
MOST_RUNNING: Final = 8
"""Threads that may hang in a database that does not answer; what asks then is told so at once."""
NOT_FOUND: Final = 404
ANSWER_SECONDS: Final = 10.0
"""Time that the database gets; the default time-out of a scrape too."""


class DatabaseBusyError(TunerError):
    """The database is missing, slow, or asked by too many."""


def build_app(
    view: Callable[[], Snapshot],
    *,
    auth: WebConfig | LiveWebConfig | None = None,
    token_file: Path | None = None,
    reload: Callable[[], str | None] | None = None,
    history: History | None = None,
) -> Starlette:
    """Return the app, to be served by :class:`tuner.serve.server.WebServer`.

    Args:
        view: returns the newest snapshot and never waits.
        auth: users and headers; ``None`` leaves reads open, for a loopback listener.
        token_file: holds the bearer token of whatever changes anything; read at each use.
        reload: reads the settings again and returns why it could not, ``None`` if it could; ``None`` where
            ``POST /-/reload`` is not enabled. May take seconds; it runs in a thread.
        history: the database; its methods may block.
    """
    site = _Site(view, reload, history)
    routes = [
        Route("/", site.landing),
        Route("/metrics", site.metrics),
        Route("/-/healthy", site.healthy),
        Route("/-/ready", site.ready),
        Route("/-/reload", site.reload, methods=["POST"]),
        Route(DOCUMENT_PATH, site.document),
        Route(API, site.index),
        *(Route(f"{API}{end.path}", site.endpoint(end)) for end in ENDPOINTS),
    ]
    gate = Gate(auth, token_file)
    app = Starlette(
        routes=routes,
        exception_handlers={HTTPException: _refused, Exception: _failed},
    )
    app.add_middleware(Guarded, gate=gate, routes=lambda: routes)
    app.add_middleware(Bounded)
    app.state.gate = gate
    app.router.redirect_slashes = False
    return app


class _Site:
    """The handlers, with what they answer from."""

    def __init__(
        self, view: Callable[[], Snapshot], reload: Callable[[], str | None] | None, history: History | None
    ) -> None:
        self._view, self._reload, self._history = view, reload, history
        self._exposition = Exposition(view)
        self._pages = Pages()
        self._readers = anyio.CapacityLimiter(READERS)
        self._renderers = anyio.CapacityLimiter(READERS)
        self._running = _Counter()
        self._reloading = threading.Lock()

    async def healthy(self, _request: Request) -> Response:
        """Answer from memory, in the server's own thread: nothing can be in the way."""
        return _health("healthy", self._view().unhealthy)

    async def ready(self, _request: Request) -> Response:
        """Answer from memory too."""
        return _health("ready", self._view().not_ready)

    async def metrics(self, request: Request) -> Response:
        """Render in a thread: 4000 engines take longer than a health answer may wait."""
        headers = request.headers
        scrape = await anyio.to_thread.run_sync(
            self._exposition.scrape,
            headers.get("accept", ""),
            headers.get("accept-encoding", ""),
            limiter=self._renderers,
        )
        return Response(scrape.body, headers=dict(scrape.headers))

    async def landing(self, _request: Request) -> Response:
        """Show the state of each pool to a person."""
        body = await anyio.to_thread.run_sync(self._pages.landing, self._view(), limiter=self._renderers)
        return HTMLResponse(body, headers={"content-security-policy": self._pages.policy})

    async def document(self, request: Request) -> Response:
        """Return the OpenAPI document."""
        try:
            read_query(request.query_params, ())
        except QueryError as error:
            return error_response(request.url.path, 422, str(error))
        return JSONResponse(openapi_document(self._view().version))

    async def index(self, _request: Request) -> Response:
        """Say where the API is described, to whoever looks at its root."""
        return JSONResponse({"openapi": DOCUMENT_PATH, "paths": [f"{API}{end.path}" for end in ENDPOINTS]})

    async def reload(self, _request: Request) -> Response:
        """Read the settings again; the gate has seen the token."""
        if self._reload is None:
            return PlainTextResponse("reload by HTTP is off: set web.enable_lifecycle, or send SIGHUP\n", 403)
        why = await anyio.to_thread.run_sync(self._reload_one_at_a_time, self._reload)
        if why is not None:
            return PlainTextResponse(f"the settings were refused, the old ones stay: {why}\n", 422)
        return PlainTextResponse("the settings were read again\n")

    def _reload_one_at_a_time(self, reload: Callable[[], str | None]) -> str | None:
        with self._reloading:
            return reload()

    def endpoint(self, end: Endpoint) -> Handler:
        """Return the handler of one answer of the API."""

        async def handle(request: Request) -> Response:
            path = request.url.path
            try:
                query = {**read_query(request.query_params, end.params), **request.path_params}
                answer = await self._answer(end, query)
            except QueryError as error:
                return error_response(path, 422, str(error))
            except NotFoundError as error:
                return error_response(path, 404, str(error))
            except TunerError as error:
                return error_response(path, 503, str(error), {"retry-after": "10"})
            return JSONResponse(answer)

        return handle

    async def _answer(self, end: Endpoint, query: dict[str, Any]) -> dict[str, Any]:
        snapshot = self._view()
        if end.needs == "snapshot":
            return await anyio.to_thread.run_sync(end.answer, snapshot, query)
        return await self._ask(end, snapshot, query)

    async def _ask(self, end: Endpoint, snapshot: Snapshot, query: dict[str, Any]) -> dict[str, Any]:
        """Ask the database, and do not wait for ever.

        Raises:
            DatabaseBusyError: there is none, it is too slow, or too many ask.
        """
        history = self._history
        if history is None:
            raise DatabaseBusyError("no database is attached: the daemon has not opened its store")
        waiting = self._readers.statistics().tasks_waiting
        if waiting >= QUEUE or self._running.value >= MOST_RUNNING:
            raise DatabaseBusyError("too many requests wait for the database: try again later")

        def work() -> dict[str, Any]:
            with self._running:
                return end.answer(history, snapshot, query)

        try:
            with anyio.fail_after(ANSWER_SECONDS):
                return await anyio.to_thread.run_sync(work, limiter=self._readers, abandon_on_cancel=True)
        except TimeoutError:
            raise DatabaseBusyError(f"the database did not answer within {ANSWER_SECONDS:g} s") from None


class _Counter:
    """Counts how many threads are inside of it."""

    def __init__(self) -> None:
        self.value = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.value += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.value -= 1


def _health(what: str, reasons: tuple[str, ...]) -> Response:
    """Answer 200, or 503 with one reason a line."""
    if not reasons:
        return PlainTextResponse(f"tuner is {what}\n")
    return PlainTextResponse("".join(f"{' '.join(reason.split())}\n" for reason in reasons), 503)


def _refused(request: Request, error: Exception) -> Response:
    """Answer what no route takes."""
    assert isinstance(error, HTTPException)
    path, detail = request.url.path, error.detail.lower()
    if error.status_code == NOT_FOUND and path.startswith("/api"):
        detail = f"{detail}: {DOCUMENT_PATH} describes what there is"
    return error_response(path, error.status_code, detail, dict(error.headers or {}) or None)


def _failed(request: Request, _error: Exception) -> Response:
    """Answer a fault of ours; the log has it, the answer tells nothing of it."""
    return error_response(request.url.path, 500, "internal error: see the log of the daemon", HEADERS)
