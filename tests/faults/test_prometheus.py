"""A whole daemon behind a real Prometheus that is down, hangs, refuses, or answers in part."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.faults.between import Between, Said
from tests.faults.conftest import warm
from tests.faults.remote_write import write
from tests.faults.site import ENGINES, POOL, SCRAPE, Site, endure, settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.faults.fleet_server import ServedFleet
    from tests.servers import MetricsServer, StartsMetricsServer

SOURCE = 'tuner_source_up{source="main"}'
PARTIAL = f'tuner_finding_active{{code="metrics_source_partial",pool="{POOL}",route="",severity="warning"}}'


class Scraping:
    """Lets a real Prometheus have the pages of a fleet at virtual times, as if it scraped them itself."""

    def __init__(self, served: ServedFleet, server: MetricsServer) -> None:
        self._served = served
        self._server = server
        self._next = served.fleet.now
        self.on = True
        """Whether the server can take anything in."""

    def passing(self) -> None:
        """Write what is due; what was due while the server was away is missing, as it would be."""
        now = self._served.fleet.now
        if now < self._next:
            return
        self._next = now + SCRAPE
        if self.on:
            labels = [
                {"job": "vllm", "instance": f"{POOL}-{n}", "pod": f"{POOL}-{n}"} for n in range(ENGINES)
            ]
            pages = [(each, self._served.body(POOL, n)) for n, each in enumerate(labels)]
            write(self._server.url, pages, now)


@pytest.fixture
def server(prometheus_server: StartsMetricsServer) -> MetricsServer:
    """Start a real Prometheus that scrapes nothing and takes what is written."""
    return prometheus_server([], flags=["--web.enable-remote-write-receiver"])


@pytest.fixture
def between(server: MetricsServer) -> Iterator[Between]:
    """Stand between the daemon and Prometheus."""
    with Between(server.url) as standing:
        yield standing


@pytest.fixture
def scraping(served: ServedFleet, server: MetricsServer) -> Scraping:
    """Let the server know the fleet."""
    return Scraping(served, server)


@pytest.fixture
def site(served: ServedFleet, between: Between, scraping: Scraping, tmp_path: Path) -> Iterator[Site]:
    """Run a daemon that finds and reads its engines through Prometheus alone."""
    with ExitStack() as stack:
        way = {"prometheus": {"source": "main", "selector": 'job="vllm"'}, "identity": ["pod"]}
        source = {"name": "main", "url": between.url, "timeout": "500ms"}
        document = settings(tmp_path, "", pool={"engines": way}, sources={"prometheus": [source]})
        started = stack.enter_context(Site(served, tmp_path, document))
        started.passing = scraping.passing
        warm(started)
        yield started


def test_prometheus_down(site: Site, server: MetricsServer, scraping: Scraping) -> None:
    """Connections refused: engines stay known, the schedule is held, and it is read on when it is back."""

    def begin() -> None:
        scraping.on = False
        server.stop()

    def end() -> None:
        assert len(site.view.targets) == ENGINES
        server.start()
        scraping.on = True

    endure(site, begin, end, code="source_down", sample=SOURCE, bad=0.0)


def test_prometheus_that_hangs(site: Site, server: MetricsServer, scraping: Scraping) -> None:
    """Connections are taken and nothing is answered: each call ends by its time-out, and jobs go on."""

    def begin() -> None:
        scraping.on = False
        server.process.pause()

    def end() -> None:
        server.process.resume()
        scraping.on = True

    try:
        endure(site, begin, end, code="source_down", sample=SOURCE, bad=0.0)
    finally:
        server.process.resume()


ERRORS = {
    422: {"status": "error", "errorType": "execution", "error": "query timed out in expression"},
    503: {"status": "error", "errorType": "timeout", "error": "query timed out"},
}


@pytest.mark.parametrize("status", ERRORS)
def test_prometheus_that_refuses(site: Site, between: Between, status: int) -> None:
    """422 and 503: said, held, not asked more than a few times a round, and what was missed is read after."""
    asked = 0
    windows = site.all_windows()

    def begin() -> None:
        nonlocal asked
        asked = between.asked
        between.instead = Said(status, json.dumps(ERRORS[status]).encode())

    def end() -> None:
        calls = 7 + 4  # rounds of scrapes and of discovery
        assert between.asked - asked <= (1 if status == 422 else 3) * calls
        between.instead = None

    endure(site, begin, end, code="source_down", sample=SOURCE, bad=0.0)
    assert site.all_windows() - windows >= ENGINES * 12  # the windows of the outage too


def test_prometheus_that_answers_in_part(site: Site, between: Between) -> None:
    """Without one of its stores a sum would read as a fall: such scrapes are left out, and it is said."""
    before = site.windows("suspect")

    def half(said: Said) -> Said:
        document = json.loads(said.body)
        result = document.get("data", {}).get("result")
        if result is None or len(result) <= ENGINES:
            return said
        document["data"]["result"] = result[::2]
        document["warnings"] = ["receive series from store-2: connection refused"]
        return Said(said.status, json.dumps(document).encode(), said.kind)

    def begin() -> None:
        between.spoil = half

    def end() -> None:
        between.spoil = None

    endure(site, begin, end, code="metrics_source_partial", sample=PARTIAL, bad=1.0)
    assert site.windows("suspect") == before
