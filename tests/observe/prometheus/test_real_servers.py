"""Real servers scrape a real exporter, and what is read from them is what direct scrapes would have told."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.observe.bodies import VOCABULARY, windows_of
from tests.observe.prometheus.exporter import Exporter
from tests.servers import MetricsServer, StartsMetricsServer, wait_until
from tuner._exceptions import InputError
from tuner.fleet import Target
from tuner.observe.exposition import TimedScrape, parse
from tuner.observe.prometheus import PrometheusSource

if TYPE_CHECKING:
    from collections.abc import Iterator

WANTED = VOCABULARY.sample_names | {"test_body_number"}
SELECTOR = 'job="vllm"'
KINDS = ["prometheus_server", "victoria_metrics"]


@pytest.fixture
def exporters() -> Iterator[list[Exporter]]:
    """Two engines."""
    with ExitStack() as stack:
        yield [stack.enter_context(Exporter().serve()) for _ in range(2)]


def job(exporters: list[Exporter], **settings: Any) -> dict[str, Any]:
    """Configure the scraping of engines."""
    static = {"targets": [one.address for one in exporters], "labels": settings.pop("labels", {})}
    return {"job_name": "vllm", "static_configs": [static], **settings}


def target_of(exporter: Exporter, **labels: str) -> Target:
    return Target(
        "chat", exporter.address, f"http://{exporter.address}/metrics", labels=tuple(labels.items())
    )


def source_of(server: MetricsServer, **settings: Any) -> PrometheusSource:
    return PrometheusSource("main", server.url, scrape_interval=20.0, settle=1.5, **settings)


def scraped(exporter: Exporter, bodies: int) -> None:
    """Wait until an engine was scraped so often, and the server shows it."""
    wait_until(lambda: len(exporter.bodies) >= bodies, f"{bodies} scrapes")


def settled(
    source: PrometheusSource, targets: list[Target], since: float, last: dict[Target, int]
) -> dict[Target, list[TimedScrape]]:
    """Collect scrapes round by round, as the daemon does, until each target told the body ``last``."""
    got: dict[Target, list[TimedScrape]] = {target: [] for target in targets}

    def complete() -> bool:
        answer = source.scrapes(targets, SELECTOR, WANTED, since, time.time())
        assert answer.error is None
        for target, scrapes in answer.scraped.items():
            got[target] += scrapes
        return all(got[t] and number_of(got[t][-1]) >= n for t, n in last.items())

    wait_until(complete, "all scrapes")
    return got


def number_of(scrape: TimedScrape) -> int:
    """Return which body a scrape is, -1 for a failed one."""
    if isinstance(scrape.result, InputError):
        return -1
    return next((int(v) for key, v in scrape.result.samples.items() if key.name == "test_body_number"), -1)


@pytest.mark.parametrize("kind", KINDS)
def test_scrapes_are_those_of_the_engines(
    kind: str, exporters: list[Exporter], request: pytest.FixtureRequest
) -> None:
    """Every sample of every body arrives once, under the engine's own labels, restarts included.

    The windows are those of direct scrapes of the same bodies at the same times.
    """
    start: StartsMetricsServer = request.getfixturevalue(kind)
    since = time.time()
    server = start([job(exporters)])
    scraped(exporters[0], 5)
    exporters[0].restart_engine()
    scraped(exporters[0], 14)
    targets = [target_of(one) for one in exporters]
    got = settled(source_of(server), targets, since, dict.fromkeys(targets, 12))
    for exporter, target in zip(exporters, targets, strict=True):
        numbers = [number_of(one) for one in got[target]]
        assert numbers == sorted(set(numbers))
        direct = [
            TimedScrape(one.time, parse(exporter.bodies[number_of(one)], wanted=WANTED))
            for one in got[target]
        ]
        assert [one.result.samples for one in got[target]] == [one.result.samples for one in direct]  # type: ignore[union-attr]  # none failed
        assert windows_of(got[target]).windows == windows_of(direct).windows
        assert len(windows_of(direct).windows) >= 10
