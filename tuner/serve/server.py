"""The HTTP server in a thread of its own, so that no fit and no scrape delays a health answer."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Final, cast

import structlog

from tuner._exceptions import InputError
from tuner.serve.listen import bind, format_address, read_listener
from tuner.serve.live import LiveWebConfig, follow_certificate

if TYPE_CHECKING:
    import socket

    import uvicorn
    from starlette.applications import Starlette

    from tuner.serve.gate import Gate
    from tuner.serve.webconfig import WebConfig

KEEP_ALIVE_SECONDS: Final = 75
"""Longer than the usual scrape intervals, so that a scraper keeps its connection."""
START_SECONDS: Final = 10.0
GRACE_SECONDS: Final = 3
"""Time that answers in progress get at a stop, of the 10 s that the daemon has."""

_LOG = structlog.get_logger(__name__)


class WebServer:
    """Serves an app of :func:`tuner.serve.app.build_app`.

    A listener that others can reach refuses to start without authentication.
    """

    def __init__(self, app: Starlette, listen: str, web_config: WebConfig | LiveWebConfig | None) -> None:
        """Look the address up and judge it.

        Raises:
            InputError: the address is none, or others can reach it and nothing keeps strangers out.
        """
        self._app, self._listener = app, read_listener(listen)
        gate: Gate = app.state.gate
        if web_config is not None and gate.live is None:
            gate.live = web_config if isinstance(web_config, LiveWebConfig) else LiveWebConfig(web_config)
        self._live = gate.live
        gate.loopback = self._listener.loopback
        if not gate.loopback:
            self._refuse_strangers()
        self._sockets: list[socket.socket] = []
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._running = threading.Event()
        self._bound = ("", 0)

    @property
    def address(self) -> str:
        """``host:port`` with the port that was taken; empty before the start."""
        return format_address(self._bound) if self._bound[1] else ""

    @property
    def port(self) -> int:
        """Port that was taken; 0 before the start."""
        return self._bound[1]

    @property
    def url(self) -> str:
        """Address with its scheme."""
        secure = self._live is not None and self._live.current().tls is not None
        return f"{'https' if secure else 'http'}://{self.address}"

    def start(self) -> None:
        """Listen, and return once requests are answered.

        Raises:
            InputError: the address cannot be bound.
        """
        self._sockets = bind(self._listener)
        host, port, *_ = self._sockets[0].getsockname()
        self._bound = (host, port)
        self._server = self._make()
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)
        self._thread.start()
        if not self._running.wait(START_SECONDS) or not self._server.started:
            self.stop(0.0)
            raise InputError(f"web.listen {self._listener.text}: the server did not start: see the log")
        _LOG.info("listening", address=self.address)

    def stop(self, timeout: float = 5.0) -> bool:
        """Stop accepting, let answers in progress end, and close; takes ``timeout`` and 1 s at most.

        Returns:
            Whether the thread ended.
        """
        if self._server is None or self._thread is None:
            return True
        self._server.should_exit = True
        self._thread.join(max(0.0, timeout))
        if self._thread.is_alive():
            self._server.force_exit = True
            self._thread.join(1.0)
        for bound in self._sockets:
            bound.close()
        return not self._thread.is_alive()

    def _refuse_strangers(self) -> None:
        where = f"web.listen {self._listener.text} can be reached by others"
        if self._live is None or not self._live.current().authenticates:
            raise InputError(
                f"{where}, and nothing keeps strangers out: name a web.config_file with basic_auth_users or "
                "RequireAndVerifyClientCert, or listen on 127.0.0.1"
            )
        self._live.must_authenticate = True
        if self._live.current().tls is None:
            _LOG.warning("passwords cross the network in clear: add tls_server_config", listen=where)

    def _make(self) -> uvicorn.Server:
        import uvicorn  # noqa: PLC0415  # 60 ms that other commands do not pay

        from tuner.serve.protocol import PatientOnlySoLong  # noqa: PLC0415

        running = self._running

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                running.set()

        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        live = self._live
        secure = live is not None and live.current().tls is not None
        return Server(
            uvicorn.Config(
                self._app,
                http=PatientOnlySoLong,
                ws="none",
                lifespan="off",
                loop="asyncio",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=GRACE_SECONDS,
                ssl_context_factory=(
                    (lambda _config, _default: follow_certificate(cast("LiveWebConfig", live)))
                    if secure
                    else None
                ),
            )
        )

    def _run(self) -> None:
        assert self._server is not None
        try:
            asyncio.run(self._server.serve(self._sockets))
        except (OSError, RuntimeError, SystemExit):  # uvicorn leaves by SystemExit when it cannot start
            _LOG.exception("the web server ended")
        finally:
            self._running.set()
