"""A real HTTP exporter for real servers to scrape: an engine that works on from scrape to scrape."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from tests.observe.bodies import Server, body

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Exporter:
    """Serves one engine at ``address``; keeps every body that it served, newest last."""

    def __init__(self) -> None:
        self.engine = Server()
        self.engine.running = 8
        self.bodies: list[str] = []
        self.status = 200
        self.extra = ""
        self.lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"127.0.0.1:{self._server.server_port}"

    def answer(self) -> str:
        """Let the engine work for a second; return its metrics, numbered by a gauge of ours."""
        with self.lock:
            self.engine.run(1, 8, 2)
            text = body(self.engine.lines()) + f"test_body_number {len(self.bodies)}\n" + self.extra
            self.bodies.append(text)
            return text

    def restart_engine(self) -> None:
        """Let the engine begin again from zero."""
        with self.lock:
            self.engine.restart()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                content = exporter.answer().encode() if exporter.status == 200 else b"<html>starting</html>"
                self.send_response(exporter.status)
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
