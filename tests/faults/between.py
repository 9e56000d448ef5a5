"""What stands between the daemon and a server, and spoils its answers on demand."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self

import httpx2

if TYPE_CHECKING:
    from collections.abc import Callable

HANG_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Said:
    """One answer."""

    status: int
    body: bytes
    kind: str = "application/json"


class Between:
    """Passes requests on to ``upstream``, and their answers back through ``spoil`` where that is set."""

    def __init__(self, upstream: str) -> None:
        """Listen on a free port of loopback."""
        self.spoil: Callable[[Said], Said] | None = None
        """Makes another answer of the true one."""
        self.instead: Said | None = None
        """The answer to everything, unasked of upstream."""
        self.asked = 0
        self._client = httpx2.Client(base_url=upstream, timeout=HANG_SECONDS, trust_env=False)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        """Serve."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(HANG_SECONDS)
        self._client.close()

    def answer(self, method: str, path: str, body: bytes, kind: str) -> Said:
        """Return what to say to one request."""
        self.asked += 1
        if self.instead is not None:
            return self.instead
        headers = {"Content-Type": kind} if kind else {}
        reply = self._client.request(method, path, content=body or None, headers=headers)
        said = Said(reply.status_code, reply.content, reply.headers.get("content-type", ""))
        return said if self.spoil is None else self.spoil(said)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        between = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._pass_on()

            def do_POST(self) -> None:
                self._pass_on()

            def _pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                said = between.answer(self.command, self.path, body, self.headers.get("Content-Type", ""))
                try:
                    self.send_response(said.status)
                    self.send_header("Content-Type", said.kind)
                    self.send_header("Content-Length", str(len(said.body)))
                    self.end_headers()
                    self.wfile.write(said.body)
                except OSError:
                    self.close_connection = True  # whoever asked has gone

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        return Handler
