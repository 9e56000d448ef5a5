"""Too many connections, too many requests, too long heads, and what the log says of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
from typing import TYPE_CHECKING

import pytest

from tuner.serve.bounds import MAX_HEAD_BYTES, MAX_REQUESTS, Bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx2
    from starlette.types import Message, Receive, Scope, Send

    Served = Callable[..., httpx2.Client]

IDLE = 700
"""More than the 512 connections there may be."""


@pytest.fixture
def many_files() -> Iterator[None]:
    """Allow both ends of so many connections in one process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * IDLE
    if hard not in (-1, resource.RLIM_INFINITY) and hard < wanted:
        pytest.skip(f"the system allows {hard} open files, {wanted} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_idle_connections_make_room(served: Served) -> None:
    """700 that say nothing keep nobody out, and those beyond the bound are closed, oldest first."""
    client = served()
    port = client.base_url.port
    assert port is not None
    with contextlib.ExitStack() as held:
        idle = [
            held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20.0))
            for _ in range(IDLE)
        ]
        for path in ("/-/healthy", "/metrics"):
            assert client.get(path, headers={"connection": "close"}).status_code == 200
        with contextlib.suppress(ConnectionResetError):
            assert idle[0].recv(1) == b""
        idle[-1].sendall(b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle[-1].recv(64).startswith(b"HTTP/1.1 200")


def test_health_is_answered_while_all_else_is_busy() -> None:
    """With as many requests in progress as may be, one more is refused, and health is not."""

    async def ask() -> dict[str, int]:
        go, statuses = asyncio.Event(), {}

        async def slow(scope: Scope, receive: Receive, send: Send) -> None:
            del receive
            if scope["path"] == "/slow":
                await go.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})

        bounded = Bounded(slow)

        async def get(path: str) -> None:
            async def send(message: Message) -> None:
                if message["type"] == "http.response.start":
                    statuses[path] = message["status"]

            async def receive() -> Message:
                return {"type": "http.request"}

            scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": []}
            await bounded(scope, receive, send)

        waiting = [asyncio.create_task(get("/slow")) for _ in range(MAX_REQUESTS)]
        await asyncio.sleep(0)
        await get("/metrics")
        await get("/-/healthy")
        go.set()
        await asyncio.gather(*waiting)
        await get("/")
        return statuses

    assert asyncio.run(ask()) == {"/slow": 200, "/metrics": 503, "/-/healthy": 200, "/": 200}


def test_a_head_is_bounded_though_it_comes_whole(served: Served) -> None:
    """What arrives in one piece has the bound of what does not; the connection is closed."""
    client = served()
    answer = client.get("/-/healthy", headers={"x-long": "a" * MAX_HEAD_BYTES})
    assert answer.status_code == 431
    assert answer.headers["connection"] == "close"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert client.get("/-/healthy", headers={"x-long": "a" * (MAX_HEAD_BYTES - 1000)}).status_code == 200


def test_malformed_requests_do_not_fill_the_log(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever reaches the port writes no line of the log."""
    client = served()
    port = client.base_url.port
    assert port is not None
    with caplog.at_level(logging.WARNING):
        for request in (b"rubbish\r\n\r\n", b"GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port), timeout=20.0) as connection:
                connection.sendall(request)
                assert connection.recv(64).startswith(b"HTTP/1.1 4")
    assert caplog.records == []
