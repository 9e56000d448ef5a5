"""A process that serves one metrics page at many loopback addresses: engines for measuring the tuner alone.

``python -m bench.static_engines COUNT FILE`` prints the port, then serves FILE at 127.1.0.1, 127.1.0.2, ...
until its input ends. Each engine has an address and a connection of its own, as in a real fleet.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import sys
from pathlib import Path

HOSTS_PER_NET = 250
END = b"\r\n\r\n"


def host_of(number: int) -> str:
    """Return the address of an engine."""
    return f"127.1.{number // HOSTS_PER_NET}.{number % HOSTS_PER_NET + 1}"


def raise_file_limit() -> None:
    """Allow as many sockets as the system lets this process have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Engine(asyncio.Protocol):
    """Answers every request with the same bytes."""

    answer = b""

    def __init__(self) -> None:
        self._received = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer each whole head."""
        self._received += data
        while END in self._received:
            _, _, self._received = self._received.partition(END)
            assert self._transport is not None
            self._transport.write(self.answer)


async def _serve(count: int) -> None:
    loop = asyncio.get_running_loop()
    port = 0
    for number in range(count):
        listener = socket.socket()
        listener.bind((host_of(number), port))
        port = listener.getsockname()[1]
        await loop.create_server(_Engine, sock=listener)
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    body = Path(sys.argv[2]).read_bytes()
    _Engine.answer = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body) + body
    )
    raise_file_limit()
    asyncio.run(_serve(int(sys.argv[1])))
