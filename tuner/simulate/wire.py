"""As much HTTP/1.1 as a simulated fleet needs, over asyncio's streams: requests in, answers out.

Plain streams instead of a framework, because faults act on bytes: one a second, half a page, a closed
connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LARGEST_HEAD = 16 * 1024
"""Bytes of a request line and headers."""
LARGEST_BODY = 1024 * 1024
"""Bytes of a request body that are read; a longer one is refused unread."""
IDLE_SECONDS = 75.0
"""How long a kept connection waits for its next request."""
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BLOCK = b"# " + b"x" * 65_534 + b"\n"
"""What huge answers are filled with: comment lines of 64 KB."""


class RequestError(Exception):
    """A request that cannot be read; the connection is closed after ``status``."""

    def __init__(self, status: int) -> None:
        """Keep the status."""
        super().__init__(str(status))
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    """By lower-case name."""
    body: bytes = b""
    keep: bool = True
    """Whether the client keeps the connection."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer, and how it misbehaves."""

    status: int = 200
    body: bytes = b""
    kind: str = METRICS_TYPE
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    """Seconds before the first byte."""
    drip: float = 0.0
    """Seconds between bytes; 0: all at once."""
    fill: int = 0
    """Bytes to fill the body up to."""
    close: bool = False
    """Close the connection without an answer."""


class Listener:
    """Serves requests on one address until it is stopped."""

    def __init__(self, handle: Callable[[Request], Awaitable[Reply]]) -> None:
        """Answer each request by ``handle``."""
        self._handle = handle
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; return the address, its port chosen where 0 was asked for."""
        self._server = await asyncio.start_server(self._accept, host, port, limit=LARGEST_HEAD)
        bound = self._server.sockets[0].getsockname()
        return bound[0], bound[1]

    async def stop(self) -> None:
        """Stop listening and drop all connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the requests of one connection."""
        try:
            while await self._serve_one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            pass
        finally:
            writer.transport.abort() if writer.is_closing() else writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; tell whether the connection stays."""
        try:
            request = await asyncio.wait_for(read_request(reader), IDLE_SECONDS)
        except RequestError as error:
            await write_reply(writer, Reply(error.status, b"", "text/plain"), keep=False, head=False)
            return False
        if request is None:
            return False
        reply = await self._handle(request)
        if reply.close:
            writer.transport.abort()
            return False
        await write_reply(writer, reply, keep=request.keep, head=request.method == "HEAD")
        return request.keep


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """Return the next request, ``None`` where the client has closed.

    Raises:
        RequestError: it is malformed, or too large.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise RequestError(400) from None
        return None
    except asyncio.LimitOverrunError:
        raise RequestError(431) from None
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != len(("method", "target", "version")) or not words[2].startswith("HTTP/1."):
        raise RequestError(400)
    headers: dict[str, str] = {}
    for line in filter(None, lines[1:]):
        name, colon, value = line.partition(":")
        if not colon:
            raise RequestError(400)
        headers[name.strip().lower()] = value.strip()
    if "transfer-encoding" in headers:
        raise RequestError(411)
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit():
        raise RequestError(400)
    if int(length) > LARGEST_BODY:
        raise RequestError(413)
    body = await reader.readexactly(int(length)) if int(length) else b""
    keep = words[2] != "HTTP/1.0" and headers.get("connection", "").lower() != "close"
    return Request(words[0], unquote(urlsplit(words[1]).path), headers, body, keep)


async def write_reply(writer: asyncio.StreamWriter, reply: Reply, *, keep: bool, head: bool) -> None:
    """Write one answer, as slowly and as long as it says."""
    if reply.delay:
        await asyncio.sleep(reply.delay)
    length = max(len(reply.body), reply.fill)
    try:
        phrase = HTTPStatus(reply.status).phrase
    except ValueError:
        phrase = "Unknown"
    lines = [f"HTTP/1.1 {reply.status} {phrase}", f"Content-Type: {reply.kind}", f"Content-Length: {length}"]
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    if not keep:
        lines.append("Connection: close")
    start = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    if head:
        writer.write(start)
    elif reply.drip:
        for i in range(len(reply.body)):
            writer.write(start + reply.body[:1] if i == 0 else reply.body[i : i + 1])
            await writer.drain()
            await asyncio.sleep(reply.drip)
    else:
        writer.write(start + reply.body)
        left = reply.fill - len(reply.body)
        while left > 0:
            writer.write(BLOCK[-min(left, len(BLOCK)) :])
            await writer.drain()
            left -= len(BLOCK)
    await writer.drain()
