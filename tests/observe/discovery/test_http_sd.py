"""Targets from an HTTP endpoint, over real sockets: a whole list or what was said before."""

from __future__ import annotations

import gzip
import threading
from typing import TYPE_CHECKING

import httpx2
import pytest

from tests.observe.discovery.helper import codes, engines, groups
from tests.observe.wire import LONGEST, Server, Wire, answer, header_by_header
from tuner.observe.discovery import Directory, EnginesSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.observe.wire import Behaviour

TIMEOUT = 1.0


@pytest.fixture
def endpoint() -> Iterator[Server]:
    """An endpoint that names one engine."""
    server = Server(listed("h:1"))
    yield server
    server.stop()


@pytest.fixture
def book(endpoint: Server) -> Iterator[Directory]:
    """A directory of that endpoint, which has been asked once."""
    with httpx2.Client(trust_env=False) as client:
        spec = EnginesSpec("p", http_sd=f"http://{endpoint.address}/sd")
        book = Directory(spec, client, interval=30.0, timeout=TIMEOUT)
        assert list(engines(book.refresh(0.0))) == ["h:1"]
        yield book


def listed(*addresses: str) -> Behaviour:
    """Serve these addresses."""
    return lambda wire: wire.send(answer(groups(*addresses).encode(), kind="application/json; charset=utf-8"))


def endless(wire: Wire) -> None:
    """Serve a list without end, as fast as it is taken."""
    wire.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
    block = b" " * 10**6
    for _ in range(100):
        wire.send(b"%x\r\n%s\r\n" % (len(block), block))


def slow(wire: Wire) -> None:
    """Serve a list a byte at a time."""
    whole = answer(groups("h:9").encode() * 100, kind="application/json")
    wire.trickle((bytes([byte]) for byte in whole), 0.02)


BODY = groups("h:9").encode()
BAD: dict[str, tuple[Behaviour, str]] = {
    "error": (lambda wire: wire.send(answer(BODY, status="500 Oops", kind="application/json")), "HTTP 500"),
    "no content": (lambda wire: wire.send(b"HTTP/1.1 204 No Content\r\n\r\n"), "answers HTTP 204"),
    "redirect": (
        lambda wire: wire.send(answer(b"", status="302 Found", more="Location: http://127.0.0.1:1/\r\n")),
        "answers HTTP 302",
    ),
    "text": (lambda wire: wire.send(answer(BODY, kind="text/plain")), "answers text/plain, not"),
    "html": (lambda wire: wire.send(answer(b"<html>", kind="application/json")), "is not JSON"),
    "half": (lambda wire: wire.send(answer(BODY[:-3], kind="application/json")), "is not JSON"),
    "object": (lambda wire: wire.send(answer(b"{}", kind="application/json")), "is no list of targets"),
    "nested": (lambda wire: wire.send(answer(b"[" * 200_000, kind="application/json")), "is not JSON"),
    "gzip": (
        lambda wire: wire.send(
            answer(gzip.compress(BODY), kind="application/json", more="Content-Encoding: gzip\r\n")
        ),
        "is packed",
    ),
    "endless": (endless, "is larger than"),
    "slow": (slow, "did not answer within 1 s"),
    "slow headers": (header_by_header, "did not answer within 1 s"),
    "silent": (Wire.hang, "did not answer within 1 s"),
    "reset": (Wire.reset, "cannot be reached"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD)
def test_what_cannot_be_used_keeps_the_last_list(endpoint: Server, book: Directory, fault: str) -> None:
    """Any answer but a whole JSON list, in bounded time and size, is an error and changes no target."""
    endpoint.behaviour, words = BAD[fault]

    roster = book.refresh(1.0)

    assert list(engines(roster)) == ["h:1"]
    assert codes(roster) == ["discovery_failed"]
    assert words in roster.findings[0].message
    assert roster.findings[0].message.isprintable()
    assert roster.sources_up == {"http_sd": False}


def test_a_change_is_taken_and_an_empty_list_believed(endpoint: Server, book: Directory) -> None:
    """200 with a list is the truth, the empty one too."""
    endpoint.behaviour = listed("h:2", "h:3")
    assert list(engines(book.refresh(1.0))) == ["h:2", "h:3"]

    endpoint.behaviour = listed()
    roster = book.refresh(2.0)
    assert roster.targets == ()
    assert codes(roster) == ["pool_empty"]

    endpoint.behaviour = Wire.reset
    assert codes(book.refresh(3.0)) == ["discovery_failed"]


def test_what_is_asked(endpoint: Server, book: Directory) -> None:
    """The request says JSON and how often it comes, as Prometheus does, and carries no credentials."""
    book.refresh(1.0)

    head = endpoint.heads[0].decode().lower()
    assert head.startswith("get /sd http/1.1\r\n")
    assert "accept: application/json\r\n" in head
    assert "x-prometheus-refresh-interval-seconds: 30\r\n" in head
    assert "authorization" not in head


def test_an_endpoint_that_is_down(book: Directory, endpoint: Server) -> None:
    """Where nobody listens any more the last list stays."""
    endpoint.stop()

    roster = book.refresh(1.0)

    assert list(engines(roster)) == ["h:1"]
    assert "cannot be reached" in roster.findings[0].message


def test_a_request_that_is_left_behind_is_not_repeated(endpoint: Server, book: Directory) -> None:
    """While a header trickles without end no second request is begun; once it ended, asking goes on."""
    go_on = threading.Event()

    def stuck(wire: Wire) -> None:
        wire.send(b"HTTP/1.1 200 OK\r\nX: ")
        while not go_on.wait(0.02):
            wire.send(b"y")
        wire.reset()

    endpoint.behaviour = stuck
    asked = len(endpoint.heads)
    for now in (1.0, 2.0):
        assert codes(book.refresh(now)) == ["discovery_failed"]
    assert len(endpoint.heads) == asked + 1

    endpoint.behaviour = listed("h:2")
    go_on.set()
    assert endpoint.ended.acquire(timeout=LONGEST)
    until_asked(lambda: list(engines(book.refresh(3.0))) == ["h:2"])


def until_asked(done: Callable[[], bool]) -> None:
    """Refresh until the request that was left behind has noticed its end; a refresh waits for that itself."""
    assert any(done() for _ in range(20))
