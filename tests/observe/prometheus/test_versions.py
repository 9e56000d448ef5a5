"""Whatever a server's version leaves out of a range, the same windows come out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.observe.bodies import VOCABULARY, Server, body, windows_of
from tests.observe.prometheus.stub import Stub, matrix, reply
from tuner._exceptions import InputError
from tuner.fleet import Target
from tuner.observe.exposition import Scrape, TimedScrape, parse
from tuner.observe.prometheus import PrometheusSource

if TYPE_CHECKING:
    import socket
    import threading

REPLIES = Path(__file__).parent / "replies"
Labels = tuple[tuple[str, str], ...]
START = 1_764_000_000.0
TOKENS = "vllm:generation_tokens_total"
TARGET = Target("chat", "e", "http://10.0.0.5:8000/metrics")


def rate_of(name: str, since: float) -> tuple[float | None, Any]:
    """Return tokens per second over the timestamps that a recorded reply tells, and the answer."""
    document = json.loads((REPLIES / f"{name}.json").read_text())
    with Stub(reply(document)).serve() as stub:
        asked = PrometheusSource("main", stub.url, scrape_interval=15.0, settle=0.0)
        got = asked.scrapes([TARGET], 'job="vllm"', frozenset({TOKENS}), since, START + 60)
    points = [
        (time, value)
        for time, result in got.scraped[TARGET]
        if isinstance(result, Scrape)
        for key, value in result.samples.items()
        if key.name == TOKENS
    ]
    if len(points) < 2:
        return None, got
    (first, low), (last, high) = points[0], points[-1]
    return (high - low) / (last - first), got


@pytest.mark.parametrize("name", ["v2_range", "v3_range"])
def test_rates_are_over_the_times_told(name: str) -> None:
    """Five samples or four: 240 in 60 s and 180 in 45 s are both 4 tokens/s."""
    rate, got = rate_of(name, START - 1)
    assert rate == 4.0
    assert got.findings == ()


@pytest.mark.parametrize(
    ("name", "rate"), [("v2_range_of_one_interval", 4.0), ("v3_range_of_one_interval", None)]
)
def test_one_sample_is_no_rate(name: str, rate: float | None) -> None:
    """A range of one interval holds one sample from version 3 on: no window, and no zero."""
    assert rate_of(name, START)[0] == rate


def test_infos_and_warnings_of_version_3() -> None:
    """Comments on a query change nothing; warnings make the answer partial."""
    _, informed = rate_of("v3_infos", START - 1)
    assert (informed.partial, informed.findings) == (False, ())
    _, warned = rate_of("v3_warnings", START - 1)
    assert warned.partial
    assert [finding.code for finding in warned.findings] == ["metrics_source_partial"]


class FakePrometheus:
    """Keeps the samples of scrapes and answers range selectors, the left edge in or out."""

    def __init__(self, *, left_open: bool) -> None:
        self.left_open = left_open
        self.scrapes: list[tuple[float, str | None]] = []
        self.stub = Stub(self.send)

    def send(self, connection: socket.socket, ended: threading.Event) -> None:
        form = self.stub.requests[-1].form
        end = float(form["time"])
        start = end - int(form["query"].partition("[")[2].removesuffix("ms]")) / 1000
        told: dict[Labels, list[tuple[float, str]]] = {}
        for time, text in self.scrapes:
            if not start <= time <= end or (self.left_open and time == start):
                continue
            samples: dict[tuple[tuple[str, str], ...], float] = {
                (("__name__", "up"),): float(text is not None)
            }
            if text is not None:
                parsed = parse(text, wanted=VOCABULARY.sample_names).samples
                samples |= {
                    tuple({"__name__": key.name, **dict(key.labels)}.items()): v for key, v in parsed.items()
                }
            for labels, value in samples.items():
                told.setdefault(labels, []).append((time, repr(value)))
        target = {"instance": "10.0.0.5:8000", "job": "vllm"}
        reply(matrix(*(({**dict(labels), **target}, values) for labels, values in told.items())))(
            connection, ended
        )


STEPS = st.lists(
    st.tuples(st.sampled_from(["run", "run", "run", "restart", "fail", "idle", "short"]), st.integers(1, 12)),
    min_size=3,
    max_size=14,
)


@settings(max_examples=25)
@given(steps=STEPS, left_open=st.booleans(), every=st.integers(1, 4))
def test_windows_are_those_of_direct_scrapes(
    steps: list[tuple[str, int]], left_open: bool, every: int
) -> None:
    """Through a server or directly, restarts and failures too: the same windows, however often asked."""
    fake, engine = FakePrometheus(left_open=left_open), Server()
    direct: list[TimedScrape] = []
    with fake.stub.serve() as stub:
        asked = PrometheusSource("main", stub.url, scrape_interval=15.0, settle=0.0, timeout=30.0)
        through: list[TimedScrape] = []
        since = engine.time - 1
        for number, (what, size) in enumerate([*steps, ("run", 1)]):
            if what in ("run", "short"):
                engine.run(15, size, 1 + size % 4)
            else:
                engine.time += 15
            if what == "restart":
                engine.restart()
            without = ["num_requests_running"] if what == "short" else []
            text = None if what == "fail" else body(engine.lines(without=without))
            fake.scrapes.append((engine.time, text))
            result: Scrape | InputError = InputError("failed")
            if text is not None:
                result = parse(text, wanted=VOCABULARY.sample_names)
            direct.append(TimedScrape(engine.time, result))
            if number % every == 0 or number == len(steps):
                got = asked.scrapes([TARGET], "", VOCABULARY.sample_names, since, engine.time)
                assert got.error is None
                through += got.scraped.get(TARGET, ())
                since = engine.time
    assert [one.time for one in through] == [one.time for one in direct]
    assert windows_of(through).windows == windows_of(direct).windows
