"""One bounded HTTP GET after the other for metrics pages, on an event loop.

httpx2 takes 6 ms of CPU a request once 1 000 connections are kept alive, since its pool looks through all
of them; a thousand scrapes took 6 s in threads and 13 s on its event loop. asyncio's streams with h11, the
parser under httpx2, take 0.65 s, as fast as threads with http.client, and one time-out covers all of a
request: name, connection, TLS, headers and body (two cores, 55 KB bodies, ``python -m bench.scrape_round``).
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import h11

import tuner
from tuner._exceptions import ExpositionError, InputError
from tuner.addresses import DEFAULT_PORTS, is_link_local, split_url
from tuner.observe.answers import oversize, unpacker

if TYPE_CHECKING:
    from collections.abc import Callable

ACCEPT = "text/plain;version=0.0.4;q=1,application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1"
"""The format that is read fastest first; whatever else is served is judged by its content type."""
MOST_HEADER_BYTES = 64 * 2**10
"""Status line and headers; real ones have a few hundred bytes."""
CHUNK = 2**16
MOST_LOOKUPS = 256
"""Names looked up at one time: a lookup cannot be ended, so those of a dead name server are counted."""
EYEBALLS_SECONDS = 0.25
"""Head start of one address of a name over the next (RFC 8305 recommends 250 ms)."""

Origin = tuple[str, str, int]
"""Scheme, host, port: what a connection can be used for again."""


class Page(NamedTuple):
    """A body as it came, unpacked."""

    body: bytes
    time: float
    """Unix seconds when it began to arrive: it was written just before, however long it took to come."""


class DaemonLookups(asyncio.SelectorEventLoop):
    """An event loop that looks names up in daemon threads: a lookup that hangs holds up no exit."""

    lookups = 0

    async def getaddrinfo(self, host: Any, port: Any, **hints: Any) -> list[Any]:  # noqa: ANN401 - asyncio passes family, type, proto, flags by name
        """Look a name up without the loop's pool of threads."""
        if self.lookups >= MOST_LOOKUPS:
            raise socket.gaierror(socket.EAI_AGAIN, "too many names are being looked up")
        answer: asyncio.Future[list[Any]] = self.create_future()
        self.lookups += 1

        def tell(addresses: list[Any], error: Exception | None) -> None:
            self.lookups -= 1
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(addresses)

        def look_up() -> None:
            addresses: list[Any] = []
            failure: Exception | None = None
            try:
                addresses = socket.getaddrinfo(host, port, **hints)
            except (OSError, UnicodeError) as error:
                failure = error
            with suppress(RuntimeError):  # the loop was closed meanwhile
                self.call_soon_threadsafe(tell, addresses, failure)

        threading.Thread(target=look_up, name="lookup", daemon=True).start()
        return await answer


class Fetcher:
    """Connections to engines, kept open from round to round; used inside one event loop only."""

    def __init__(self, clock: Callable[[], float], max_bytes: int, most_idle: int) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._most_idle = most_idle
        self._idle: dict[Origin, list[_Connection]] = {}
        self._count = 0
        self._tls: ssl.SSLContext | None = None
        self._agent = f"tuner/{tuner.__version__}"

    async def get(self, url: str) -> Page:
        """Return what is served at ``url``.

        Raises:
            ExpositionError: there is no connection, no answer, or not one to use; the message has no
                address, the reason is one word.
        """
        try:
            return await self._get(url)
        except InputError:
            raise
        except (OSError, EOFError, UnicodeError, ValueError, h11.ProtocolError) as error:
            raise _explained(error) from None

    async def _get(self, url: str) -> Page:
        parts = split_url(url)
        host = parts.hostname or ""
        origin = (parts.scheme, host, parts.port or DEFAULT_PORTS[parts.scheme])
        target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~") + (
            f"?{parts.query}" if parts.query else ""
        )
        headers = [
            ("Host", parts.netloc.encode("idna").decode() if not parts.netloc.isascii() else parts.netloc),
            ("User-Agent", self._agent),
            ("Accept", ACCEPT),
            # a packed page would save 0.5 ms of network and cost 1-2 ms in the engine's API server
            ("Accept-Encoding", "identity"),
        ]
        request = h11.Request(method="GET", target=target, headers=headers)
        kept = self._take(origin)
        if kept is not None:
            try:
                return await self._over(kept, request)
            except (EOFError, ConnectionError):
                if kept.heard:
                    raise
        return await self._over(await self._connect(origin), request)

    async def _connect(self, origin: Origin) -> _Connection:
        scheme, host, port = origin
        if scheme == "https" and self._tls is None:
            self._tls = ssl.create_default_context()
        reader, writer = await asyncio.open_connection(host, port, happy_eyeballs_delay=EYEBALLS_SECONDS)
        try:
            _judge(writer)
            if scheme == "https":
                assert self._tls is not None
                await writer.start_tls(self._tls, server_hostname=host)
        except BaseException:  # a time-out too: nobody else knows of this connection yet
            writer.transport.abort()
            raise
        return _Connection(origin, reader, writer)

    async def _over(self, connection: _Connection, request: h11.Request) -> Page:
        """Ask over one connection and keep it if it can be used again."""
        whole = False
        try:
            answer = await connection.ask(request)
            began = self._clock()
            body = await connection.body(unpacker(answer, self._max_bytes), self._max_bytes)
            whole = True
        finally:
            if whole and connection.reusable() and self._count < self._most_idle:
                self._count += 1
                self._idle.setdefault(connection.origin, []).append(connection)
            else:
                connection.abort()
        return Page(body, began)

    def _take(self, origin: Origin) -> _Connection | None:
        """Return a kept connection that the other side has not closed."""
        kept = self._idle.get(origin, [])
        while kept:
            connection = kept.pop()
            self._count -= 1
            if connection.open():
                connection.heard = False
                return connection
            connection.abort()
        self._idle.pop(origin, None)
        return None

    def forget_closed(self) -> None:
        """Drop kept connections that the other side has closed, and with them their descriptors."""
        for origin, kept in list(self._idle.items()):
            still = [connection for connection in kept if connection.open()]
            for connection in kept:
                if connection not in still:
                    connection.abort()
            self._count -= len(kept) - len(still)
            self._idle[origin] = still
            if not still:
                del self._idle[origin]

    def keep_only(self, origins: set[Origin]) -> None:
        """Drop connections to engines that are gone."""
        for origin in self._idle.keys() - origins:
            for connection in self._idle.pop(origin):
                self._count -= 1
                connection.abort()

    def close(self) -> None:
        """Drop every connection."""
        self.keep_only(set())


def _judge(writer: asyncio.StreamWriter) -> None:
    """Refuse a link-local peer: a name has become an address by now, and no byte was sent to it."""
    peer = writer.get_extra_info("peername") or ("",)
    if is_link_local(peer[0]):
        raise ExpositionError(
            "is link-local, where clouds keep credentials: name the engine by a routed address",
            reason="link_local",
        )


class _Connection:
    """One connection and where HTTP stands on it."""

    def __init__(self, origin: Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.origin = origin
        self.heard = False
        """Whether anything was received since the last request."""
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MOST_HEADER_BYTES)

    def open(self) -> bool:
        """Whether neither side has closed it."""
        return not self._reader.at_eof() and not self._writer.is_closing()

    def reusable(self) -> bool:
        """Whether another request may follow; gets ready for it."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def ask(self, request: h11.Request) -> h11.Response:
        """Send a request and return the head of its answer."""
        self._writer.write(self._http.send(request) + (self._http.send(h11.EndOfMessage()) or b""))
        event = await self._next()
        while isinstance(event, h11.InformationalResponse):
            event = await self._next()
        if isinstance(event, h11.Response):
            return event
        raise EOFError

    async def body(self, unpack: Callable[[bytes], bytes], most: int) -> bytes:
        """Return the body, unpacked, of at most ``most`` bytes; packed bytes that give nothing count too."""
        chunks: list[bytes] = []
        size = packed = 0
        while isinstance(event := await self._next(), h11.Data):
            chunk = unpack(bytes(event.data))
            size += len(chunk)
            packed += len(event.data)
            if max(size, packed) > most:
                raise oversize(most)
            chunks.append(chunk)
        unpack(b"")
        return b"".join(chunks)

    async def _next(self) -> h11.Event:
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError:
                if self._reader.at_eof():
                    raise EOFError from None
                raise
            if event is h11.NEED_DATA:
                received = await self._reader.read(CHUNK)
                self.heard = self.heard or bool(received)
                self._http.receive_data(received)
            elif event is h11.PAUSED:
                raise EOFError
            else:
                assert not isinstance(event, type)
                return event

    def abort(self) -> None:
        """Close at once, without waiting for what is in flight."""
        self._writer.transport.abort()


_EXPLAINED: tuple[tuple[tuple[type[Exception], ...], str, str], ...] = (
    (
        (ConnectionRefusedError,),
        "refused",
        "refuses connections: is the engine running, and is this its port?",
    ),
    (
        (socket.gaierror, UnicodeError),
        "dns",
        "has a name that cannot be resolved: check it and the name server",
    ),
    (
        (ssl.SSLError,),
        "tls",
        "fails at TLS ({detail}): trust its authority on this host, or use http",
    ),
    (
        (ConnectionError, EOFError),
        "reset",
        "closed the connection within the answer: is it restarting?",
    ),
    (
        (h11.ProtocolError,),
        "not_http",
        "answers something that is not HTTP: check the port",
    ),
    (
        (OSError,),
        "unreachable",
        "cannot be reached ({detail}): check address and network",
    ),
)
"""Exceptions of a connection, the first that fits: a reason of one word, and problem with remedy."""


def _explained(error: Exception) -> ExpositionError:
    """Turn what a connection raises into one line with a remedy."""
    if isinstance(error, OSError) and f"[Errno {errno.ECONNREFUSED}]" in str(error):
        error = ConnectionRefusedError()  # asyncio joins the errors of a name's addresses into one text
    detail = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
    for kinds, reason, text in _EXPLAINED:
        if isinstance(error, kinds):
            return ExpositionError(text.format(detail=detail), reason=reason)
    return ExpositionError("has an address that cannot be used: check it", reason="address")
