"""Engines of a test world behind HTTP, and a journal of every body they gave out.

A process of its own: ``python -m tests.crash.engine_server JOURNAL --engines 2 --seed 1``. The first line on
stdout is its port. A journal line is written before the body leaves: whatever was told is in it.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TextIO

from tests.replay.vllm_world import VllmWorld, constant, linear

SECTION_SECONDS = 1.5
"""How long a load and a draft length last: several windows of a quarter of a second."""
LOADS = ((2, 4), (12, 2), (6, 4), (12, 0), (2, 2), (6, 2), (24, 2), (24, 4), (2, 0))
"""(clients, draft length) in turn: spans 12x in batch with three draft lengths."""


BEAT_SECONDS = 0.05


class Engine:
    """One engine that has lived as long as the clock says whenever it is asked."""

    def __init__(self, number: int, seed: int, journal: TextIO, lock: threading.Lock) -> None:
        self.number = number
        self.journal = journal
        self.written = lock
        self.lock = threading.Lock()
        self.world = VllmWorld(
            (0.8, 0.72, 0.66, 0.6),
            linear(0.004, 0.00004),
            constant(LOADS[0][1]),
            LOADS[0][0],
            seed * 1000 + number,
            started_at=time.time(),
        )
        self.begun = self.world.now

    def live(self) -> None:
        """Live up to now."""
        until = time.time()
        while self.world.now < until:
            section = int((self.world.now - self.begun) / SECTION_SECONDS) + self.number
            self.world.clients, draft_len = LOADS[section % len(LOADS)]
            self.world.schedule = constant(draft_len)
            self.world.step()

    def go_on(self) -> None:
        """Live on while nobody asks, so that whoever does is answered at once."""
        while True:
            with self.lock:
                self.live()
            time.sleep(BEAT_SECONDS)

    def body(self) -> bytes:
        """Live up to now, journal what is told, and tell it."""
        with self.lock:
            self.live()
            count = self.world.counters
            told = {name: count[name] for name in ("emitted", "drafts", "draft", "accepted", "steps", "itl")}
            with self.written:
                self.journal.write(json.dumps({"engine": self.number, "time": time.time(), **told}) + "\n")
                self.journal.flush()
            return self.world.body().encode()


class Server(ThreadingHTTPServer):
    """A server whose clients are killed now and then."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of connections that were cut."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # the stubs name a socket


def serve(journal: Path, engines: int, seed: int) -> None:
    """Serve ``/e/<number>/metrics`` on a free loopback port until killed."""
    lock = threading.Lock()
    with journal.open("a") as file:
        fleet = [Engine(number, seed, file, lock) for number in range(engines)]

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = fleet[int(self.path.split("/")[2])].body()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
                """Say nothing: the journal is the log."""

        for engine in fleet:
            threading.Thread(target=engine.go_on, daemon=True).start()
        server = Server(("127.0.0.1", 0), Handler)
        print(server.server_address[1], flush=True)  # noqa: T201 - the port is what the caller waits for
        server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    serve(asked.journal, asked.engines, asked.seed)
