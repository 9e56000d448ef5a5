"""A server with limits is asked for less, not again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.observe.prometheus.stub import Request, Stub, matrix, reply
from tests.observe.prometheus.test_client import NOW, OVERLOADED, TOO_MANY, Clock
from tuner.fleet import Target
from tuner.observe.prometheus import PrometheusSource, SourceAnswer

if TYPE_CHECKING:
    import socket
    import threading
    from collections.abc import Callable

ENGINES = [Target("chat", f"e{n}", f"http://10.0.0.{n}:8000/metrics") for n in range(16)]
TIMES = [NOW - 32.0, NOW - 17.0, NOW - 2.5]


class Limited:
    """A server that refuses more than so many samples at once."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.sizes: list[tuple[int, float]] = []
        """Instances and seconds of each query."""
        self.stub = Stub(self.send)

    def send(self, connection: socket.socket, ended: threading.Event) -> None:
        """Answer as Prometheus does with query.max-samples."""
        answer_to(self.document(self.stub.requests[-1]))(connection, ended)

    def document(self, request: Request) -> dict[str, Any] | None:
        query, end = request.form["query"], float(request.form["time"])
        found = re.fullmatch(r"\{(.*)\}\[(\d+)ms\]", query)
        assert found is not None
        seconds = int(found[2]) / 1000
        asked = re.search(r'instance=~"([^"]*)"', found[1])
        instances = [f"10.0.0.{n}:8000" for n in range(16)]
        if asked is not None:
            instances = [one for one in instances if re.fullmatch(asked[1].replace("\\\\", "\\"), one)]
        times = [t for t in TIMES if end - seconds < t <= end]
        self.sizes.append((len(instances), seconds))
        if 2 * len(times) * len(instances) > self.most:
            return None
        up = [
            ({"__name__": name, "instance": one, "job": "vllm"}, [(t, "1") for t in times])
            for name in ("up", "tokens_total")
            for one in instances
            if times
        ]
        return matrix(*up)


def answer_to(document: dict[str, Any] | None) -> Callable[[socket.socket, threading.Event], None]:
    return TOO_MANY if document is None else reply(document)


def ask(asked: PrometheusSource, until: float = NOW) -> SourceAnswer:
    return asked.scrapes(ENGINES, 'job="vllm"', frozenset({"tokens_total"}), NOW - 40, until)


def source(stub: Stub) -> PrometheusSource:
    clock = Clock()
    return PrometheusSource("main", stub.url, scrape_interval=15.0, monotonic=clock, sleep=clock.sleep)


def test_a_query_that_is_too_large_is_split_by_instance() -> None:
    """One refusal, then smaller queries until all is there; the size that worked is where the next begins."""
    limited = Limited(most=24)  # four engines at three scrapes of two series
    with limited.stub.serve() as stub:
        asked = source(stub)
        got = ask(asked)
        assert got.error is None
        assert got.findings == ()
        assert {
            target: [one.time for one in scrapes] for target, scrapes in got.scraped.items()
        } == dict.fromkeys(ENGINES, TIMES)
        assert [size for size, _ in limited.sizes] == [16, 8, 4, 4, 8, 4, 4]
        limited.sizes.clear()
        assert ask(asked, NOW + 1).scraped == {}
        assert [size for size, _ in limited.sizes] == [4, 4, 4, 4]


def test_one_engine_too_large_is_split_by_time() -> None:
    """When a single engine is refused, its range is halved, and nothing is lost at the seams."""
    limited = Limited(most=2)
    with limited.stub.serve() as stub:
        asked = source(stub)
        got = asked.scrapes(ENGINES[:1], 'job="vllm"', frozenset({"tokens_total"}), NOW - 40, NOW)
        assert got.error is None
        assert [one.time for one in got.scraped[ENGINES[0]]] == TIMES


def test_what_stays_too_large_is_a_finding() -> None:
    """An engine refused alone over seconds is named; nothing is retried for ever."""
    limited = Limited(most=0)
    with limited.stub.serve() as stub:
        asked = source(stub)
        got = asked.scrapes(ENGINES[:1], 'job="vllm"', frozenset({"tokens_total"}), NOW - 40, NOW)
        assert got.error is None
        assert got.scraped == {}
        assert "query_too_large" in {finding.code for finding in got.findings}
        assert len(stub.requests) < 64


def test_the_number_of_requests_is_bounded() -> None:
    """A server that answers next to nothing at once gives an error, no flood."""
    limited = Limited(most=0)
    with limited.stub.serve() as stub:
        got = ask(source(stub))
        assert got.error is not None
        assert "more than 64 requests" in got.error.reason
        assert len(stub.requests) == 64


@pytest.mark.parametrize("most", [24, 4])
def test_overload_in_the_middle_ends_the_round(most: int) -> None:
    """Half of the engines are no answer: the others would read as gone."""
    limited = Limited(most)
    with limited.stub.serve() as stub:
        stub.answers = [limited.send, limited.send, OVERLOADED]
        got = ask(source(stub))
        assert got.error is not None
        assert got.scraped == {}


def test_limits_of_samples_under_429_are_split_too() -> None:
    """Mimir tells limits of a query by 422 or 429; a rate limit is no reason to ask for less."""
    refused = reply({"status": "error", "error": "the query exceeded the maximum number of chunks"}, 429)
    limited = Limited(most=10_000)
    with limited.stub.serve() as stub:
        stub.answers = [refused, limited.send]
        assert ask(source(stub)).error is None
        assert [size for size, _ in limited.sizes] == [8, 8]
