"""A simulated fleet with the plugin, watched live: acceptance by route against the truth."""

from __future__ import annotations

import pytest

from tests.observe.bodies import VOCABULARY
from tests.observe.live_server import INTERVAL, KNOWN
from tuner.fit.acceptance import AcceptanceFit, fit_acceptance
from tuner.fleet import POOLED_ROUTE, Estimate, Target, Window
from tuner.observe.exposition import TimedScrape, parse
from tuner.observe.live import LiveWindows
from tuner.simulate.fleet import Fleet
from tuner.simulate.presets import preset

MINUTES = 10
TOLERANCE = 0.03


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    """Three pools, one of them with two routes of very different acceptance."""
    return Fleet(preset("demo"), seed=7)


@pytest.fixture(scope="module")
def windows(fleet: Fleet) -> dict[str, list[Window]]:
    """What ten minutes of scrapes give, by pool."""
    watched = {
        name: LiveWindows(VOCABULARY, pool=name, fingerprint=KNOWN, interval=INTERVAL) for name in fleet.pools
    }
    seen: dict[str, list[Window]] = {name: [] for name in fleet.pools}
    for _ in range(round(MINUTES * 60 / INTERVAL)):
        fleet.advance(INTERVAL)
        for name, pool in fleet.pools.items():
            for n in range(pool.engines):
                target = Target(name, f"{name}-{n}", f"http://sim/{name}/{n}/metrics")
                scrape = parse(fleet.body(name, n), wanted=VOCABULARY.sample_names)
                seen[name] += watched[name].add(target, [TimedScrape(fleet.now, scrape)]).windows
    assert not {f.code for one in watched.values() for f in one.findings} & {"plugin_counts_unused"}
    return seen


def test_acceptance_of_each_route_is_recovered(fleet: Fleet, windows: dict[str, list[Window]]) -> None:
    """The hazard at every position of every route, by the windows of that route alone."""
    checked = 0
    for pool, seen in windows.items():
        truth = fleet.truth(pool)
        for route in sorted({window.route for window in seen} - {POOLED_ROUTE}):
            fit = fit_acceptance([window for window in seen if window.route == route], pool=pool)
            assert isinstance(fit, AcceptanceFit), fit
            assert fit.positions[0].hazard == pytest.approx(truth.hazards(route)[0], abs=TOLERANCE)
            # A longer draft is harder to accept at each position: the truth lies between its lengths.
            low, high = sorted((truth.alpha(route, 1), truth.alpha(route, 4)))
            assert isinstance(fit.alpha, Estimate)
            assert low - TOLERANCE <= fit.alpha.value <= high + TOLERANCE, (pool, route)
            checked += 1
    assert checked == 4


def test_routes_add_up_to_the_engine(windows: dict[str, list[Window]]) -> None:
    """Drafts of the routes of a window are those of the pooled one, within a step at either end."""
    for seen in windows.values():
        pooled = {(w.engine, w.start): w.counts for w in seen if w.route == POOLED_ROUTE and w.counts.joint}
        parts = dict.fromkeys(pooled, 0.0)
        for window in seen:
            if window.route != POOLED_ROUTE:
                parts[window.engine, window.start] += window.counts.drafts or 0.0
        assert parts
        for key, drafts in parts.items():
            assert drafts == pytest.approx(sum(pooled[key].joint.values()))
