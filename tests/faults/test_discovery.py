"""Discovery that answers garbage, and deploys: engines stay known, and churn is no drop."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.faults.between import Between, Said
from tests.faults.conftest import warm
from tests.faults.site import ENGINES, POOL, SCRAPE, Site, endure, settings
from tuner.fleet import POOLED_ROUTE, WindowState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.faults.fleet_server import ServedFleet
    from tuner.fleet import Window

SOURCE = f'tuner_source_up{{source="discovery:{POOL}"}}'
UP = f'tuner_targets{{pool="{POOL}",state="up"}}'
DISCOVERY = 10.0

GARBAGE = {
    "html": Said(200, b"<!DOCTYPE html><html>Sign in</html>", "text/html"),
    "error": Said(500, b"oops", "text/plain"),
    "cut off": Said(200, b'[{"targets": ["127.0.0'),
    "not a list": Said(200, b'{"targets": []}'),
    "nested": Said(200, b"[" * 100_000),
    "huge": Said(200, b"[" + b" " * 50_000_000 + b"]"),
}


@pytest.fixture
def between(served: ServedFleet) -> Iterator[Between]:
    """Stand between the daemon and the endpoint that names engines."""
    with Between(served.url) as standing:
        yield standing


@pytest.fixture
def site(served: ServedFleet, between: Between, tmp_path: Path) -> Iterator[Site]:
    """Run a daemon whose engines are named through ``between``."""
    with Site(served, tmp_path, settings(tmp_path, f"{between.url}/targets/{POOL}")) as started:
        warm(started)
        yield started


def test_discovery_that_answers_garbage(site: Site, between: Between) -> None:
    """HTML, 500, half a list, an object, brackets without end, 50 MB: the last engines stay and are read."""
    windows = site.all_windows()
    kinds = list(GARBAGE.values())

    def begin() -> None:
        between.instead = kinds[0]
        site.passing = turn

    def turn() -> None:
        between.instead = kinds[min(between.asked - asked, len(kinds) - 1)]
        assert site.metric(UP) == ENGINES

    def end() -> None:
        assert between.asked - asked >= len(GARBAGE)
        site.passing = lambda: None
        between.instead = None
        assert site.all_windows() >= windows + 8 * ENGINES

    asked = between.asked
    seconds = DISCOVERY * (len(GARBAGE) + 1)
    endure(site, begin, end, code="discovery_failed", sample=SOURCE, bad=0.0, seconds=seconds, held=False)


def test_a_deploy_that_replaces_every_pod_at_once(site: Site, between: Between) -> None:
    """New names, new processes, all at the same moment: no drop, nothing graver than info, work goes on."""
    quiet = site.codes()

    def renamed(said: Said) -> Said:
        groups = json.loads(said.body)
        for group in groups:
            group["labels"]["pod"] += "-next"
            group["labels"]["instance"] += "-next"
        return Said(said.status, json.dumps(groups).encode(), said.kind)

    before = site.all_windows()
    site.served.fault("restart", POOL)
    between.spoil = renamed
    for _ in range(18):
        site.run_for(SCRAPE)
        assert site.up()
        assert site.schedule()
        states = [site.metric(f'tuner_targets{{pool="{POOL}",state="{s}"}}') for s in ("up", "unknown")]
        assert sum(count or 0.0 for count in states) == ENGINES
        new = {f.code for f in site.view.findings if f.severity != "info"} - quiet
        assert new == set()
    assert {status.target.engine for status in site.view.targets} == {f"{POOL}-{n}-next" for n in range(2)}
    assert site.all_windows() >= before + 12 * ENGINES
    store = site.daemon.leader.store
    assert store is not None
    since = site.daemon.clock.now() - 120.0
    windows = [w for w in store.recent_windows(POOL, since, 1000) if w.route == POOLED_ROUTE]
    assert {process_of(w.engine) for w in windows} == {
        f"{POOL}-{n}{new}" for n in range(2) for new in ("", "-next")
    }
    learnt = store.recent_windows(POOL, 0.0, 10_000)
    usual = max(speed(w) for w in learnt if w.end < since and w.route == POOLED_ROUTE)
    assert all(0.0 < speed(w) < 1.5 * usual for w in windows if w.state is WindowState.GOOD)


def test_an_engine_that_restarts_twenty_times(site: Site) -> None:
    """Each restart is noticed as such: nothing graver than info, counts stay sound, the other goes on."""
    quiet = site.codes()
    assert site.schedule()
    for _ in range(20):
        site.served.fault("restart", POOL, 0)
        site.run_for(2 * SCRAPE)
        assert site.up()
        assert site.schedule()
        assert {f.code for f in site.view.findings if f.severity != "info"} - quiet == set()
    assert "engine_restart" in site.codes()
    store = site.daemon.leader.store
    assert store is not None
    since = site.daemon.clock.now() - 190.0
    windows = [w for w in store.recent_windows(POOL, since, 1000) if w.route == POOLED_ROUTE]
    ill, well = ([w for w in windows if process_of(w.engine) == f"{POOL}-{n}"] for n in range(2))
    assert len(ill) >= 15
    assert len(well) >= 35
    assert sum(w.state is WindowState.GOOD for w in well) >= 20
    assert max(map(speed, ill)) < 2.0 * max(map(speed, well))
    site.run_until(lambda: "engine_restart" not in site.codes(), 3600.0)


def process_of(engine: str) -> str:
    """Return the pod of an engine that is named with its number in the pod."""
    return engine.partition("/")[0]


def speed(window: Window) -> float:
    """Return tokens per second; 0 where they are not known."""
    return (window.counts.emitted or 0.0) / window.seconds
