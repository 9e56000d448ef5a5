"""Direct scrapes over real sockets: what bad engines do is an error for themselves, and bounded."""

from __future__ import annotations

import gzip
import socket
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.observe.wire import (
    PAGE,
    Server,
    Wire,
    answer,
    byte_by_byte,
    chunks_without_end,
    cut_off,
    empty_members,
    gzip_bomb,
    header_by_header,
    headers_without_end,
    page,
)
from tuner._exceptions import ExpositionError
from tuner.fleet import Target
from tuner.observe.exposition import Scrape, SeriesKey
from tuner.observe.scraping import Scraper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.observe.wire import Behaviour
    from tuner.observe.scraping import Scraped

WANTED = frozenset({"a"})
SAMPLE = SeriesKey("a", frozenset({("x", "1")}))
TIMEOUT = 2.0
HANG = 30.0
"""Seconds that no round here comes near; only a hang does."""


def wanted(_: Target) -> frozenset[str]:
    return WANTED


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Start servers, and stop them at the end."""
    servers: list[Server] = []

    def start(behaviour: Behaviour, **options: int) -> Server:
        servers.append(Server(behaviour, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def scraper() -> Iterator[Scraper]:
    """A scraper with a clock that stands still."""
    scraper = Scraper(timeout=TIMEOUT, interval=10.0, clock=lambda: 1000.0, max_bytes=2**20)
    yield scraper
    scraper.close()


def good(scraped: Sequence[Scraped]) -> list[str]:
    """Return the engines with a sample."""
    return [
        one.target.engine
        for one in scraped
        if isinstance(one.scrape.result, Scrape)
        and one.scrape.result.samples == {SAMPLE: 5.0}
        and not one.error
    ]


def test_a_round_reads_every_engine(serve: Callable[..., Server], scraper: Scraper) -> None:
    """Each target yields the wanted samples, in the order given, at the injected clock's time."""
    targets = [serve(page).target(f"e{i}") for i in range(12)]

    outcome = scraper.round(targets, wanted)

    assert [one.target for one in outcome.scraped] == targets
    assert good(outcome.scraped) == [f"e{i}" for i in range(12)]
    assert {one.scrape.time for one in outcome.scraped} == {1000.0}
    assert all(0 < one.seconds <= outcome.seconds for one in outcome.scraped)
    assert outcome.backing_off == ()


def text_from(status: str, kind: str = "text/plain") -> Behaviour:
    return lambda wire: wire.send(answer(status=status, kind=kind))


BAD: dict[str, tuple[Behaviour, str, str]] = {
    "html": (lambda wire: wire.send(answer(b"<html>login</html>", kind="text/html")), "html", "body is HTML"),
    "json": (lambda wire: wire.send(answer(b'{"a": 1}', kind="application/json")), "json", "body is JSON"),
    "image": (text_from("200 OK", kind="image/png"), "content_type", "answers image/png, not metrics"),
    "not found": (text_from("404 Not Found"), "http", "answers HTTP 404"),
    "unavailable": (text_from("503 Service Unavailable"), "http", "answers HTTP 503"),
    "no content": (lambda wire: wire.send(b"HTTP/1.1 204 No Content\r\n\r\n"), "http", "answers HTTP 204"),
    "login": (text_from("401 Unauthorized"), "http", "asks for credentials (HTTP 401)"),
    "length": (lambda wire: wire.send(answer(bytes(2**20 + 1))), "oversize", "over the limit of 1048576"),
    "100 MB": (chunks_without_end, "oversize", "over the limit of 1048576"),
    "bomb": (gzip_bomb, "oversize", "over the limit of 1048576"),
    "empty members": (empty_members, "oversize", "over the limit of 1048576"),
    "no gzip": (
        lambda wire: wire.send(answer(more="Content-Encoding: gzip\r\n")),
        "gzip",
        "is not the gzip it says",
    ),
    "half gzip": (
        lambda wire: wire.send(answer(gzip.compress(PAGE)[:-9], more="Content-Encoding: gzip\r\n")),
        "truncated",
        "gzip that is cut off",
    ),
    "brotli": (
        lambda wire: wire.send(answer(more="Content-Encoding: br\r\n")), "encoding", "nobody asked for"
    ),
    "a byte at a time": (byte_by_byte, "timeout", "did not answer within 2 s"),
    "slow headers": (header_by_header, "timeout", "did not answer within 2 s"),
    "endless headers": (headers_without_end, "not_http", "not HTTP: check the port"),
    "silent": (Wire.hang, "timeout", "did not answer within 2 s"),
    "reset": (cut_off, "reset", "closed the connection within the answer"),
    "hung up": (Wire.reset, "reset", "closed the connection within the answer"),
    "not http": (lambda wire: wire.send(b"SSH-2.0-x\r\n\r\n"), "not_http", "not HTTP: check the port"),
    "empty": (lambda wire: wire.send(answer(b"")), "empty", "body is empty"),
    "cut": (lambda wire: wire.send(answer(PAGE[:-4])), "truncated", "body is cut off"),
    "binary": (lambda wire: wire.send(answer(b"\xff\xfe" * 9)), "undecodable", "body is not UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_engine_is_an_error_for_itself_alone(
    serve: Callable[..., Server], scraper: Scraper, fault: str
) -> None:
    """The error is one line with address, fault and remedy; engines beside it are read as ever."""
    behaviour, reason, words = BAD[fault]
    bad = serve(behaviour).target("bad")
    neighbours = [serve(page).target(f"e{i}") for i in range(3)]

    outcome = scraper.round([neighbours[0], bad, *neighbours[1:]], wanted)

    assert good(outcome.scraped) == ["e0", "e1", "e2"]
    error = outcome.scraped[1].scrape.result
    assert isinstance(error, ExpositionError)
    assert error.reason == reason
    assert words in str(error)
    assert str(error) == outcome.scraped[1].error
    assert str(error).startswith(bad.url)
    assert str(error).isprintable()
    assert outcome.seconds < HANG


def test_redirects_are_not_followed(serve: Callable[..., Server], scraper: Scraper) -> None:
    """A redirect is an error; where it leads is never asked."""
    elsewhere = serve(page)
    more = f"Location: http://{elsewhere.address}/metrics\r\n"
    moved = serve(lambda wire: wire.send(answer(status="302 Found", more=more)))

    (one,) = scraper.round([moved.target()], wanted).scraped

    assert "redirects (HTTP 302), which is not followed" in one.error
    assert elsewhere.heads == []


def test_refused_connections(scraper: Scraper) -> None:
    """An address where nobody listens says so, by number and by a name with two addresses."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    targets = [Target("p", host, f"http://{host}:{port}/metrics") for host in ("127.0.0.1", "localhost")]

    outcome = scraper.round(targets, wanted)

    assert all("refuses connections" in one.error for one in outcome.scraped)


def test_names_that_cannot_be_resolved(scraper: Scraper, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is not known is an error, one that no name server answers for is a time-out."""
    hung = threading.Event()

    def getaddrinfo(host: str, *_: object, **__: object) -> list[object]:
        if host == "unknown.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        hung.wait(HANG)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    targets = [Target("p", host, f"http://{host}.invalid:8000/metrics") for host in ("unknown", "dead")]

    unknown, dead = scraper.round(targets, wanted).scraped

    assert "cannot be resolved" in unknown.error
    assert "did not answer within 2 s" in dead.error
    hung.set()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_name_that_leads_to_a_refused_address(
    serve: Callable[..., Server], scraper: Scraper, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """The address that a name became is judged before anything is sent to it; loopback stands for it here."""
    monkeypatch.setattr("tuner.observe.fetching.is_link_local", lambda host: host == "127.0.0.1")
    server = serve(page)
    url = f"{scheme}://localhost:{server.address.rpartition(':')[2]}/metrics"
    (scraped,) = scraper.round([Target("pool", "x", url)], wanted).scraped
    assert isinstance(scraped.scrape.result, ExpositionError)
    assert scraped.scrape.result.reason == "link_local"
    assert server.ended.acquire(timeout=HANG)
    assert server.heads == []


def test_tls_that_cannot_be_trusted(serve: Callable[..., Server], scraper: Scraper) -> None:
    """An address that should speak TLS and does not is an error that says so."""
    server = serve(page)
    (one,) = scraper.round([Target("p", "e", f"https://{server.address}/metrics")], wanted).scraped

    result = one.scrape.result
    assert isinstance(result, ExpositionError)
    assert result.reason in {"tls", "timeout"}


@pytest.mark.parametrize("url", ["http://h:99999/", "ftp://h/", "http://u:hunter2@h/", "http://\u2603.%/x"])
def test_addresses_that_cannot_be_used(scraper: Scraper, url: str) -> None:
    """A broken address is an error like any other, and is not repeated if it may hold a secret."""
    (one,) = scraper.round([Target("p", "e", url)], wanted).scraped
    assert isinstance(one.scrape.result, ExpositionError)
    assert "hunter2" not in one.error


@pytest.mark.parametrize(
    "send",
    [
        lambda wire: wire.send(answer(gzip.compress(PAGE), more="Content-Encoding: gzip\r\n")),
        lambda wire: wire.send(
            answer(gzip.compress(PAGE[:28]) + gzip.compress(PAGE[28:]), more="Content-Encoding: x-gzip\r\n")
        ),
        lambda wire: wire.send(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(PAGE), PAGE)
        ),
        lambda wire: wire.send(b"HTTP/1.1 103 Early Hints\r\n\r\n" + answer()),
        lambda wire: wire.send(b"HTTP/1.0 200 OK\r\n\r\n" + PAGE),
    ],
    ids=["gzip", "gzip in two members", "chunked", "after a hint", "until the end"],
)
def test_ways_to_serve_a_page(serve: Callable[..., Server], scraper: Scraper, send: Behaviour) -> None:
    """Packed or chunked, after an informational answer, or up to the end of the connection: all is read."""
    outcome = scraper.round([serve(send, requests_per_connection=1).target("e")], wanted)
    assert good(outcome.scraped) == ["e"], outcome.scraped[0].error


def test_what_is_asked_for(serve: Callable[..., Server], scraper: Scraper) -> None:
    """The request names the text format, the tuner and its version, and carries no credentials."""
    server = serve(page)
    target = Target("p", "e", f"http://{server.address}/a%20b/metrics?x=1&y=2")

    assert good(scraper.round([target], wanted).scraped) == ["e"]

    head = server.heads[0].decode().lower()
    assert head.startswith("get /a%20b/metrics?x=1&y=2 http/1.1\r\n")
    assert f"host: {server.address}\r\n" in head
    assert "accept: text/plain;version=0.0.4" in head
    assert "user-agent: tuner/" in head
    assert "authorization" not in head
    assert "cookie" not in head
