"""A server on loopback that answers queries as a test tells it to, badly for the most part."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator


class Request:
    """One request as it came in."""

    def __init__(self, text: str) -> None:
        head, _, body = text.partition("\r\n\r\n")
        first, *headers = head.split("\r\n")
        self.method, self.path, _ = first.split(" ", 2)
        self.headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in headers)}
        given = parse_qs(body) | parse_qs(urlsplit(self.path).query)
        self.form = {name: values[-1] for name, values in given.items()}


class Stub:
    """Answers each request with ``answers`` in turn, the last one for ever."""

    def __init__(
        self,
        *answers: Callable[[socket.socket, threading.Event], None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.answers = list(answers)
        self._tls = tls
        self.requests: list[Request] = []
        self.ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []

    @property
    def url(self) -> str:
        """Base address."""
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self._listener.getsockname()[1]}"

    @contextmanager
    def serve(self) -> Iterator[Stub]:
        """Answer until the end of the block; what hangs is let go then."""
        acceptor = threading.Thread(target=self._accept, daemon=True)
        acceptor.start()
        try:
            yield self
        finally:
            self.ended.set()
            with suppress(OSError):
                socket.create_connection(self._listener.getsockname()).close()
            acceptor.join(10)
            self._listener.close()
            for thread in self._threads:
                thread.join(10)

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            if self.ended.is_set():
                connection.close()
                return
            thread = threading.Thread(target=self._answer, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _answer(self, accepted: socket.socket) -> None:
        connection = accepted
        with suppress(OSError):
            connection = self._tls.wrap_socket(accepted, server_side=True) if self._tls else accepted
        with connection, suppress(OSError):
            text = b""
            while b"\r\n\r\n" not in text:
                text += connection.recv(65536)
            head, _, body = text.partition(b"\r\n\r\n")
            length = next(
                (int(h[15:]) for h in head.lower().split(b"\r\n") if h.startswith(b"content-length:")), 0
            )
            while len(body) < length:
                body += connection.recv(65536)
            self.requests.append(Request((head + b"\r\n\r\n" + body).decode()))
            place = min(len(self.requests), len(self.answers)) - 1
            self.answers[place](connection, self.ended)


def reply(
    body: str | dict[str, Any], status: int = 200, *, content_type: str = "application/json", **headers: str
) -> Callable[[socket.socket, threading.Event], None]:
    """Answer with a whole body; underscores in header names become dashes."""
    content = (json.dumps(body) if isinstance(body, dict) else body).encode()
    lines = [f"HTTP/1.1 {status} Status", f"Content-Type: {content_type}", f"Content-Length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]

    def send(connection: socket.socket, _ended: threading.Event) -> None:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + content)

    return send


def matrix(*series: tuple[dict[str, str], list[tuple[float, str]]], **beside: Any) -> dict[str, Any]:
    """Return the document of an answer with raw samples."""
    result = [{"metric": labels, "values": [list(pair) for pair in values]} for labels, values in series]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}, **beside}


def hang(_connection: socket.socket, ended: threading.Event) -> None:
    """Answer nothing."""
    ended.wait(60)


def cut(connection: socket.socket, _ended: threading.Event) -> None:
    """Promise more than is sent."""
    connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"status":')


def trickle(connection: socket.socket, ended: threading.Event) -> None:
    """Send a byte now and then, so that no single wait is long."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while not ended.wait(0.05):
        connection.sendall(b" ")


def trickle_headers(connection: socket.socket, ended: threading.Event) -> None:
    """Never finish the headers."""
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while not ended.wait(0.05):
        connection.sendall(b"X-A: b\r\n")
