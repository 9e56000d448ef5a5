"""A cycle over a pool with routes: each has its own acceptance and gain, the pool counts every draft once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.cycle.world import TRUE, pool_windows, route_windows
from tuner.cycle import Evidence, PoolDecision, State, run_once
from tuner.fit.acceptance import AcceptanceFit
from tuner.fleet import Counts, Estimate, Fingerprint, NotEnoughData, Schedule, Window, WindowState

POOLED = pool_windows()
ROUTES = [window for route in TRUE for window in route_windows(POOLED, route)]


def _decide(windows: list[Window]) -> PoolDecision:
    (decided,) = run_once(Evidence(tuple(windows)), State(), 2e9).pools
    return decided


def _alpha(fit: AcceptanceFit | NotEnoughData) -> Estimate:
    assert isinstance(fit, AcceptanceFit)
    assert isinstance(fit.alpha, Estimate)
    return fit.alpha


def test_each_route_has_its_own_acceptance() -> None:
    """Tool calls at 0.85 and chat at 0.45 are told apart within 0.01, whatever the pool's mean."""
    decided = _decide([*POOLED, *ROUTES])
    assert set(decided.routes) == set(TRUE)
    for route, truth in TRUE.items():
        assert _alpha(decided.routes[route]).value == pytest.approx(truth, abs=0.01)
    assert _alpha(decided.acceptance).value == pytest.approx(0.65, abs=0.01)


def test_windows_of_routes_do_not_count_in_the_pool_again() -> None:
    """Fits, plan and windows of the pool are the same with routes beside them and without."""
    alone, beside = _decide(POOLED), _decide([*ROUTES, *POOLED])
    assert isinstance(alone.acceptance, AcceptanceFit)
    assert isinstance(beside.acceptance, AcceptanceFit)
    assert beside.acceptance.drafts == alone.acceptance.drafts
    assert beside.schedule == alone.schedule
    assert beside.speedup == alone.speedup
    assert len(beside.windows) == len(alone.windows)
    assert alone.routes == {}


def test_a_route_with_little_evidence_leans_on_its_pool() -> None:
    """One window of a route reads between its own acceptance and the pool's; one without drafts says so."""
    few = replace(ROUTES[0], route="rare", counts=Counts(drafts=30.0, joint={(2, 2): 30.0}))
    none = replace(few, route="none", counts=Counts(drafts=3.0, joint={(2, 2): 3.0}))
    decided = _decide([*POOLED, few, none])
    rare = decided.routes["rare"]
    assert isinstance(rare, AcceptanceFit)
    hazard = rare.positions[0].hazard
    assert hazard is not None
    assert 0.65 < hazard < 0.99
    assert decided.routes["none"] == NotEnoughData("too few drafts in good windows", 3.0, 20.0)
    assert decided.route_speedups["none"] == decided.routes["none"]


def test_a_route_that_accepts_more_gains_more() -> None:
    """Requests share their steps, so the gain of a route is its own tokens over the steps of all."""
    state = State(active={"p": Schedule.from_ranges([[1, 200, 2]])})
    (decided,) = run_once(Evidence((*POOLED, *ROUTES)), state, 2e9).pools
    gains = {route: gain for route, gain in decided.route_speedups.items() if isinstance(gain, Estimate)}
    assert isinstance(decided.speedup, Estimate)
    assert gains["chat"].value < decided.speedup.value < gains["tools"].value
    for gain in (*gains.values(), decided.speedup):
        assert gain.low < gain.value < gain.high


def test_run_lengths_are_told_by_route_and_draft_length() -> None:
    """Histograms of accepted tokens hold every verify step of the route once."""
    decided = _decide([*POOLED, *ROUTES])
    steps = sum(window.counts.drafts or 0.0 for window in ROUTES if window.route == "chat")
    told = [sum(h) for (route, _), h in decided.accepted_lengths.items() if route == "chat"]
    assert sum(told) == steps
    assert {length for _, length in decided.accepted_lengths} == {2, 4}


def test_routes_of_an_earlier_set_up_are_left_out() -> None:
    """Where the fingerprint changed, what a route accepted before is left out like the pool's."""
    before = [
        replace(w, start=w.start - 1e6, end=w.end - 1e6, fingerprint=Fingerprint(engine="old"))
        for w in [*POOLED, *ROUTES]
    ]
    decided = _decide([*before, *POOLED, *ROUTES])
    assert isinstance(decided.routes["chat"], AcceptanceFit)
    drafts = sum(w.counts.drafts or 0.0 for w in ROUTES if w.route == "chat")
    assert decided.routes["chat"].drafts == drafts


def test_routes_that_are_not_good_are_not_fitted() -> None:
    """A route's window in another state is no evidence."""
    bad = [replace(w, state=WindowState.SUSPECT, reason="said so") for w in ROUTES]
    decided = _decide([*POOLED, *bad])
    assert all(isinstance(fit, NotEnoughData) for fit in decided.routes.values())
