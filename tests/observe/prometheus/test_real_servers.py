"""Real servers scrape real exporters, and what is read from them is what direct scrapes would have told."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from tests.observe.bodies import VOCABULARY, codes, windows_of
from tests.observe.prometheus.exporter import Exporter
from tests.servers import MetricsServer, StartsMetricsServer, run_prometheus, run_victoria_metrics, wait_until
from tuner._exceptions import InputError
from tuner.fleet import Target
from tuner.observe.exposition import Scrape, TimedScrape, parse
from tuner.observe.gpu import EXPORTER_NAMES, tracks_of_series
from tuner.observe.prometheus import PrometheusSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WANTED = VOCABULARY.sample_names | {"test_body_number"}
SELECTOR = 'job="vllm"'
INTERVAL = "500ms"
BODIES = 16
PAIR = ("0", "1")


@dataclass(frozen=True)
class World:
    """A server that scraped three engines: one restarts, one fails now and then, one is told twice."""

    server: MetricsServer
    since: float
    restarting: Exporter
    failing: Exporter
    doubled: Exporter

    def source(self, **settings: Any) -> PrometheusSource:
        return PrometheusSource("main", self.server.url, scrape_interval=20.0, settle=1.5, **settings)

    def read(
        self, exporters: Sequence[Exporter], selector: str = SELECTOR, **settings: Any
    ) -> dict[Exporter, list[TimedScrape]]:
        """Collect scrapes round by round, as the daemon does, until each engine told the last but one."""
        source = self.source(**settings)
        targets = {exporter: target_of(exporter) for exporter in exporters}
        got: dict[Exporter, list[TimedScrape]] = {exporter: [] for exporter in exporters}
        since = self.since

        def complete() -> bool:
            nonlocal since
            until = time.time()
            answer = source.scrapes(list(targets.values()), selector, WANTED, since, until)
            assert answer.error is None
            since = until
            for exporter, target in targets.items():
                got[exporter] += answer.scraped.get(target, ())
            return all(scrapes and number_of(scrapes[-1]) >= BODIES - 2 for scrapes in got.values())

        wait_until(complete, "all scrapes")
        return got


def target_of(exporter: Exporter) -> Target:
    return Target("chat", exporter.address, f"http://{exporter.address}/metrics")


def number_of(scrape: TimedScrape) -> int:
    """Return which body a scrape is, -1 for a failed one."""
    return next((int(value) for value in values(scrape, "test_body_number")), -1)


def values(scrape: TimedScrape, name: str) -> list[float]:
    """Return the values of a name in one scrape, none in a failed one."""
    samples = {} if isinstance(scrape.result, InputError) else scrape.result.samples
    return [value for key, value in samples.items() if key.name == name]


def job(name: str, exporters: Sequence[Exporter], **labels: str) -> dict[str, Any]:
    static = {"targets": [one.address for one in exporters], "labels": labels}
    return {"job_name": name, "static_configs": [static]}


@pytest.fixture(scope="module", params=["prometheus", "victoria-metrics"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Let a real server scrape for ten seconds; the tests read what it has."""
    run = run_prometheus if request.param == "prometheus" else run_victoria_metrics
    with ExitStack() as stack:
        exporters = [
            stack.enter_context(exporter.serve())
            for exporter in (Exporter(restarts={6}), Exporter(failing={5: 2, 9: 1}), Exporter())
        ]
        since = time.time()
        replicas = [
            {**job(f"pair-{n}", exporters[2:], prometheus_replica=n), "relabel_configs": RELABEL}
            for n in PAIR
        ]
        server = stack.enter_context(run([job("vllm", exporters[:2]), *replicas], interval=INTERVAL))
        for exporter, bodies in zip(exporters, (BODIES, BODIES, 2 * BODIES), strict=True):
            wait_until(lambda e=exporter, n=bodies: len(e.bodies) >= n, f"{bodies} scrapes")  # type: ignore[misc]  # bound now
        yield World(server, since, *exporters)


RELABEL = [{"target_label": "job", "replacement": "pair"}]
"""Both servers of a pair scrape the same job."""


def test_scrapes_are_those_of_the_engine(world: World) -> None:
    """Every sample of every body arrives once, under the engine's own labels, a restart included.

    The windows are those of direct scrapes of the same bodies at the same times.
    """
    exporter = world.restarting
    got = world.read([exporter])[exporter]
    numbers = [number_of(one) for one in got]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    direct = [TimedScrape(one.time, parse(exporter.bodies[number_of(one)], wanted=WANTED)) for one in got]
    for one, other in zip(got, direct, strict=True):
        assert isinstance(one.result, Scrape)
        assert isinstance(other.result, Scrape)
        assert one.result.samples == other.result.samples
    assert windows_of(got).windows == windows_of(direct).windows
    assert "engine_restart" in codes(windows_of(got))


def test_failed_scrapes_are_told_as_such(world: World) -> None:
    """A scrape that the server could not make is an error at its time; the window spans it."""
    got = world.read([world.failing])[world.failing]
    failed = [one for one in got if isinstance(one.result, InputError)]
    assert len(failed) == world.failing.failed == 3
    assert "could not scrape" in str(failed[0].result)
    good = [number_of(one) for one in got if not isinstance(one.result, InputError)]
    assert good == sorted(set(good))
    assert all(one.end == other.start for one, other in pairwise(windows_of(got).windows))


def test_an_engine_told_twice_is_read_once(world: World) -> None:
    """Two servers scrape one engine: the bodies of one of them, none twice, none of the other."""
    got = world.read([world.doubled], 'job="pair"')[world.doubled]
    numbers = [number_of(one) for one in got]
    assert numbers == sorted(set(numbers))
    running = {value for one in got for value in values(one, "vllm:num_requests_running")}
    assert running == {8.0}
    spacing = [b.time - a.time for a, b in pairwise(got)]
    assert min(spacing) > 0.3  # one server scrapes every 0.5 s; both together would be closer


def test_targets_up_and_down_are_known(world: World) -> None:
    """Each engine once, without the replica's label."""
    told = world.source().targets("", time.time())
    assert isinstance(told, tuple)
    instances = [labels["instance"] for labels in told]
    assert sorted(instances) == sorted(e.address for e in (world.restarting, world.failing, world.doubled))
    assert all("prometheus_replica" not in labels for labels in told)


def test_gpu_series_come_with_all_labels(world: World) -> None:
    """A join may need any of them."""
    now = time.time()
    series = world.source().series(EXPORTER_NAMES, SELECTOR, now - 10, now)
    assert isinstance(series, tuple)
    tracks = tracks_of_series(series)
    assert {track.labels["instance"] for track in tracks} == {world.restarting.address, world.failing.address}
    assert {track.labels["UUID"] for track in tracks} == {"GPU-a"}
    assert {v for track in tracks for _, v in track.samples["tensor_active"]} == {0.25}


def test_numbers_and_their_absence(world: World) -> None:
    """The four answers, from a real server."""
    source, now = world.source(), time.time()
    assert source.value("1 + 1", now) == 2.0
    assert type(source.value("no_such_series", now)).__name__ == "NoData"
    assert type(source.value("vector(0) / vector(0)", now)).__name__ in ("Undefined", "NoData")
    bad = source.value("1 +", now)
    assert type(bad).__name__ == "SourceError"
    assert not source.up


def test_a_server_that_goes_and_comes_back(prometheus_server: StartsMetricsServer) -> None:
    """Stopped, it is an error and down; started again, it is up, and nothing raised."""
    with Exporter().serve() as exporter:
        server = prometheus_server([job("vllm", [exporter])], interval=INTERVAL)
        wait_until(lambda: len(exporter.bodies) >= 3, "scrapes")
        source = PrometheusSource("main", server.url, scrape_interval=1.0, settle=0.0)
        assert source.scrapes([target_of(exporter)], SELECTOR, WANTED, time.time() - 5, time.time()).scraped
        server.stop()
        down = source.scrapes([target_of(exporter)], SELECTOR, WANTED, time.time() - 5, time.time())
        assert down.error is not None
        assert "connection refused" in down.error.reason
        assert not source.up
        server.start()
        wait_until(lambda: isinstance(source.targets(SELECTOR, time.time()), tuple), "an answer")
        assert source.up


def test_limits_of_a_real_server(prometheus_server: StartsMetricsServer) -> None:
    """A Prometheus that loads 150 samples at once is asked in parts, and all of it arrives."""
    with ExitStack() as stack:
        exporters = [stack.enter_context(Exporter().serve()) for _ in range(2)]
        server = prometheus_server(
            [job("vllm", exporters)], interval=INTERVAL, flags=["--query.max-samples=150"]
        )
        wait_until(lambda: all(len(one.bodies) >= 4 for one in exporters), "scrapes")
        now = time.time()
        asked = PrometheusSource("main", server.url, scrape_interval=20.0, settle=0.0)
        targets = [target_of(one) for one in exporters]
        got = asked.scrapes(targets, SELECTOR, WANTED, now - 10, now)
        assert got.error is None
        assert got.findings == ()
        assert asked._client.requests > 2
        for exporter, target in zip(exporters, targets, strict=True):
            assert [number_of(one) for one in got.scraped[target]] == list(range(len(got.scraped[target])))
            assert len(exporter.bodies) >= len(got.scraped[target]) >= 3
