"""Routes lean on their pool where their own evidence is thin."""

from __future__ import annotations

import pytest

from tests.fit.counting import fit, pure
from tuner.fit.acceptance_routes import shrink_to_pool

POOL = [pure(1000, [0.8, 0.7, 0.6], index) for index in range(60)]


def test_much_evidence_keeps_its_own_word() -> None:
    """A route with 60 000 drafts does not move."""
    route = fit([pure(1000, [0.5, 0.4, 0.3], index) for index in range(60)])
    shrunk = shrink_to_pool(route, fit(POOL))
    assert [one.hazard for one in shrunk.positions] == pytest.approx([0.5, 0.4, 0.3], abs=0.005)


def test_thin_evidence_is_drawn_to_the_pool() -> None:
    """A route with 40 drafts lies between its own reading and the pool's, with a narrower interval."""
    route = fit([pure(40, [0.5, 0.5, 0.5])])
    shrunk = shrink_to_pool(route, fit(POOL))
    for own, mixed, pool in zip(route.positions, shrunk.positions, fit(POOL).positions, strict=True):
        assert own.hazard is not None
        assert mixed.hazard is not None
        assert pool.hazard is not None
        assert own.hazard < mixed.hazard < pool.hazard
        assert mixed.high - mixed.low < own.high - own.low


def test_unseen_position_is_taken_from_the_pool() -> None:
    """A route that only ran K=1 gets positions 1 and 2 from the pool, called extrapolated and wide."""
    shrunk = shrink_to_pool(fit([pure(1000, [0.8], index) for index in range(60)]), fit(POOL))
    assert [one.state for one in shrunk.positions] == ["measured", "extrapolated", "extrapolated"]
    second = shrunk.positions[1]
    assert second.hazard == pytest.approx(0.7, abs=0.01)
    assert second.high - second.low > 0.3
    tokens = shrunk.expected_tokens(3)
    assert tokens.value == pytest.approx(1 + 0.8 + 0.56 + 0.336, rel=0.08)  # type: ignore[union-attr]  # an Estimate


def test_position_nobody_measured_stays_as_it_is() -> None:
    """What neither route nor pool measured is carried over from the route's own last position."""
    route = fit([pure(1000, [0.8], index, padded=1) for index in range(60)])
    shrunk = shrink_to_pool(route, route)
    assert shrunk.positions[1] == route.positions[1]
