"""A real HTTP exporter for real servers to scrape: an engine that works on from scrape to scrape."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from tests.observe.bodies import Server, body

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

TEXT = "text/plain; version=0.0.4; charset=utf-8"

GPU = 'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0",UUID="GPU-a"} 0.25\n'


class Exporter:
    """Serves one engine at ``address``; keeps every body that it served, newest last.

    ``failing``: bodies after which it answers 500, and how often; ``restarts``: after which it begins anew.
    """

    def __init__(self, *, failing: Mapping[int, int] | None = None, restarts: Collection[int] = ()) -> None:
        self.engine = Server()
        self.engine.running = 8
        self.bodies: list[str] = []
        self.failed = 0
        self._failing = dict(failing or {})
        self._restarts = restarts
        self.lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"127.0.0.1:{self._server.server_port}"

    def answer(self) -> str | None:
        """Let the engine work for a second; return its metrics, numbered by a gauge of ours."""
        with self.lock:
            number = len(self.bodies)
            if self._failing.get(number, 0) > 0:
                self._failing[number] -= 1
                self.failed += 1
                return None
            if number in self._restarts:
                self.engine.restart()
            self.engine.run(1, 8, 2)
            text = body(self.engine.lines()) + f"test_body_number {number}\n" + GPU
            self.bodies.append(text)
            return text

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = exporter.answer()
                content = b"<html>starting</html>" if answer is None else answer.encode()
                self.send_response(500 if answer is None else 200)
                self.send_header("Content-Type", TEXT)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    @contextmanager
    def serve(self) -> Iterator[Exporter]:
        """Answer until the end of the block."""
        thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join(10)
