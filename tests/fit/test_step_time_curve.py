"""The solver: derivatives, limits, bounds, and many problems at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tuner.fit import curve
from tuner.fit.curve import CROSSOVER, Design, Solution, implied_sd, quantities_of, seconds_of, solve

TOKENS = np.geomspace(0.1, 10, 40)
COLUMNS = np.column_stack([np.ones(40), np.tile([0.0, 1.0, 2.0, 3.0], 10)])


def _design(theta: np.ndarray, noise: float = 0.0) -> Design:
    seconds = seconds_of(theta[None, :], TOKENS, COLUMNS)[0]
    factor = np.exp(np.random.default_rng(0).normal(0, noise, 40))
    return Design(TOKENS, COLUMNS, np.log(seconds * factor), np.full(40, 0.02**2), (0.0, 2.0))


def _fit(design: Design, start: np.ndarray, free: np.ndarray | None = None) -> Solution:
    flags = np.ones_like(start, dtype=bool) if free is None else free
    return solve(design, start, flags, np.ones((len(start), 40)), iterations=60)


def test_sharpness_one_is_a_line_and_infinite_is_the_roofline() -> None:
    """At s = 1 the curve is o + m + cN exactly; at the least s it is max(m, cN) within 0.7 %."""
    base = np.array([np.log(2.0), np.log(3.0), 1.0, 0.5, 0.1])
    line = seconds_of(base[None, :], TOKENS, COLUMNS)[0]
    assert line == pytest.approx(2.0 + 3.0 * TOKENS + 0.5 + 0.1 * COLUMNS[:, 1])
    base[2] = curve.MIN_INVERSE_P
    roof = seconds_of(base[None, :], TOKENS, COLUMNS)[0]
    assert roof == pytest.approx(np.maximum(2.0, 3.0 * TOKENS) + 0.5 + 0.1 * COLUMNS[:, 1], rel=0.007)


@pytest.mark.parametrize("inverse_p", [1.0, 0.5, 0.1, 0.02])
def test_the_jacobian_is_the_derivative(inverse_p: float) -> None:
    """Each analytic derivative of log seconds equals the difference quotient to five digits."""
    theta = np.array([[0.2, -0.1, inverse_p, 0.3, 0.15]])
    design = _design(theta[0])
    weight = np.ones((1, 40))
    analytic = curve._evaluate(theta, design, design.log_seconds[None, :], weight).jacobian[0]
    for place in range(5):
        step = np.zeros(5)
        step[place] = 1e-6
        ends = [np.log(seconds_of(theta + sign * step, TOKENS, COLUMNS)[0]) for sign in (1, -1)]
        assert analytic[:, place] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=2e-5)


def test_known_parameters_come_back() -> None:
    """Without noise the fit returns the curve that made the data, from a start far away."""
    truth = np.array([0.3, -0.2, 0.4, 0.2, 0.1])
    design = replace(_design(truth), variance=np.full(40, 0.002**2))
    found = _fit(design, np.array([[0.0, -1.5, 1.0, 0.05, 0.0]]))
    assert found.theta[0] == pytest.approx(truth, abs=0.005)


def test_a_batch_of_problems_gives_what_each_alone_gives() -> None:
    """Problems solved together do not touch each other."""
    design = _design(np.array([0.3, -0.2, 0.4, 0.2, 0.1]), noise=0.03)
    rng = np.random.default_rng(1)
    starts = np.array([0.0, -0.5, 0.7, 0.1, 0.05]) + rng.uniform(0, 0.3, (6, 5))
    starts[:, 2] = np.clip(starts[:, 2], 0.1, 1.0)
    weight = rng.exponential(size=(6, 40))
    flags = np.ones((6, 5), dtype=bool)
    together = solve(design, starts, flags, weight, iterations=60)
    for i in range(6):
        alone = solve(design, starts[i : i + 1], flags[:1], weight[i : i + 1], iterations=60)
        assert together.theta[i] == pytest.approx(alone.theta[0], abs=1e-6)


def test_coefficients_never_become_negative_and_held_ones_never_move() -> None:
    """A column that would like a negative coefficient gets 0; a parameter that is not free stays."""
    truth = np.array([0.3, -0.2, 1.0, 0.0, 0.0])
    design = _design(truth)
    down = replace(design, log_seconds=design.log_seconds - 0.05 * COLUMNS[:, 1])
    free = np.array([[True, True, True, False, True]])
    found = _fit(down, np.array([[0.0, 0.0, 0.8, 0.0, 0.2]]), free)
    assert found.theta[0, 4] == 0.0
    assert found.theta[0, 3] == 0.0


def test_one_cell_in_twenty_that_is_wildly_off_moves_the_fit_by_little() -> None:
    """Two cells three times too slow out of 40 move the crossover by less than 2 %."""
    truth = np.array([0.3, -0.2, 0.4, 0.0, 0.1])
    design = _design(truth, noise=0.01)
    spoilt = design.log_seconds.copy()
    spoilt[[3, 30]] += np.log(3.0)
    free = np.array([[True, True, True, False, True]])
    start = np.array([[0.0, -0.5, 0.7, 0.0, 0.05]])
    before, after = (_fit(one, start, free) for one in (design, replace(design, log_seconds=spoilt)))
    assert quantities_of(after.theta)[0, CROSSOVER] == pytest.approx(
        quantities_of(before.theta)[0, CROSSOVER], abs=0.02
    )


def test_the_implied_error_of_the_crossover_is_what_repetition_shows() -> None:
    """The standard deviation from the information matrix is that of repeated fits within a third."""
    truth = np.array([0.3, -0.2, 0.5, 0.0, 0.1])
    free = np.array([[True, True, True, False, True]])
    clean = _design(truth)
    rng = np.random.default_rng(5)
    design = replace(clean, log_seconds=clean.log_seconds + rng.normal(0, 0.02, (200, 40)))
    found = solve(design, np.tile(truth, (200, 1)), np.tile(free, (200, 1)), np.ones((200, 40)))
    spread = float(np.std(quantities_of(found.theta)[:, CROSSOVER]))
    implied = float(implied_sd(clean, truth[None, :], free)[0, CROSSOVER])
    assert implied == pytest.approx(spread, rel=0.34)
