"""Engines on real sockets that answer as they are told: whole, late, too much, broken or not at all."""

from __future__ import annotations

import gzip
import socket
import threading
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from tuner.fleet import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Behaviour = Callable[["Wire"], None]

PAGE = b'# TYPE a counter\na{x="1"} 5\n' + b"".join(b'b{i="%d"} 1\n' % i for i in range(200))
LONGEST = 20.0
"""Seconds after which a socket of a test gives up; only a hang takes so long."""


class Wire:
    """One accepted connection with one request read from it."""

    def __init__(self, connection: socket.socket, head: bytes, stop: threading.Event) -> None:
        self.head = head
        self._connection = connection
        self._stop = stop

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self._connection.sendall(data)

    def trickle(self, data: Iterator[bytes], pause: float) -> None:
        """Send piece after piece until the server stops or the other side leaves."""
        for piece in data:
            self.send(piece)
            if self._stop.wait(pause):
                return

    def hang(self) -> None:
        """Say nothing until the server stops."""
        self._stop.wait(LONGEST)

    def reset(self) -> None:
        """End the connection without a goodbye."""
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self._connection.close()


class Server:
    """A listener on loopback; each request is answered by ``behaviour``."""

    def __init__(self, behaviour: Behaviour, *, requests_per_connection: int = 1_000_000) -> None:
        self.behaviour = behaviour
        self.heads: list[bytes] = []
        """Every request's head."""
        self.connections = 0
        self.ended = threading.Semaphore(0)
        """Released once for every connection that has ended."""
        self._most = requests_per_connection
        self._stop = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def target(self, engine: str = "") -> Target:
        """Return the target of this server."""
        return Target("pool", engine or self.address, f"http://{self.address}/metrics")

    def stop(self) -> None:
        """End every connection and the listener."""
        self._stop.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(LONGEST)

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with closing(connection), suppress(OSError):
                for _ in range(self._most):
                    head = self._head(connection)
                    if not head:
                        return
                    self.heads.append(head)
                    self.behaviour(Wire(connection, head, self._stop))
        finally:
            self.ended.release()

    def _head(self, connection: socket.socket) -> bytes:
        """Return the head of the next request; empty once there is none to come."""
        connection.settimeout(0.05)
        head = b""
        while b"\r\n\r\n" not in head:
            try:
                received = connection.recv(65536)
            except TimeoutError:
                if self._stop.is_set():
                    return b""
                continue
            if not received:
                return b""
            head += received
        connection.settimeout(LONGEST)
        return head


def answer(
    body: bytes = PAGE, *, status: str = "200 OK", kind: str = "text/plain; version=0.0.4", more: str = ""
) -> bytes:
    """Return a whole answer."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def page(wire: Wire) -> None:
    """Serve metrics."""
    wire.send(answer())


def chunks_without_end(wire: Wire) -> None:
    """Serve 100 MB in chunks, as fast as they are taken."""
    wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    piece = b"a" * 99 + b"\n"
    block = piece * 10_000
    for _ in range(100):
        wire.send(b"%x\r\n%s\r\n" % (len(block), block))


def byte_by_byte(wire: Wire) -> None:
    """Serve a page a byte at a time, each well within any time-out for silence."""
    wire.trickle((bytes([byte]) for byte in answer() * 100), 0.02)


def header_by_header(wire: Wire) -> None:
    """Begin an answer and never come to its body."""
    wire.send(b"HTTP/1.1 200 OK\r\n")
    wire.trickle((b"X-%d: 1\r\n" % i for i in range(100_000)), 0.02)


def headers_without_end(wire: Wire) -> None:
    """Send headers as fast as they are taken, and never a body."""
    wire.send(b"HTTP/1.1 200 OK\r\n")
    while True:
        wire.send(b"X: " + b"y" * 8000 + b"\r\n")


def gzip_bomb(wire: Wire) -> None:
    """Serve 100 MB of zeros in 100 KB."""
    wire.send(answer(gzip.compress(bytes(100_000_000), 9), more="Content-Encoding: gzip\r\n"))


def empty_members(wire: Wire) -> None:
    """Serve gzip without end that unpacks to nothing."""
    wire.send(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n")
    members = gzip.compress(b"") * 3000
    while True:
        wire.send(members)


def cut_off(wire: Wire) -> None:
    """End the connection within the body."""
    wire.send(answer()[:-50])
    wire.reset()
