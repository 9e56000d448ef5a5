"""Resampled fits of the step-time curve: what its parameters could as well have been.

A resample gives every cell an exponential weight (the Bayesian bootstrap, Rubin 1981). Drawing cells
with replacement would now and then lose the only cells that show an asymptote.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tuner.fit.curve import OVERHEAD, bounds, implied_sd, solve
from tuner.fit.step_time_columns import FLAT, LINEAR, flags_of, shapes_for
from tuner.fit.step_time_nodes import merge, node_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tuner.fit.curve import Solution
    from tuner.fit.step_time_solve import Problem

    Floats = NDArray[np.float64]

ITERATIONS = 12
TOLERANCE = 1e-2
"""A resample rests 0.01 of log posterior from its optimum: a seventh of a standard error."""


@dataclass(frozen=True, slots=True)
class Resamples:
    """Fits in the solver's units, o folded into m first, then o free."""

    centre: Floats
    """(2, p) fits to the cells as they are."""
    draws: Floats
    """(2 r, p) fits to reweighted cells."""
    implied_sd: Floats
    """(2, 6) standard deviation of each quantity that the noise of the cells implies."""
    rivals: Floats
    """(2, v, p) fits of all columns that the cells do not rule out, o folded and o free."""
    freedom: int
    """Cells beyond the parameters fitted, at least 1."""


def resample(problem: Problem, pair: Solution, resamples: int, seed: int) -> Resamples:
    """Refit under random weights of the cells.

    The drafter's base and slope are free here wherever the draft lengths can show them, even where the
    point fit has a shape with fewer coefficients: which shape was chosen is chance as well.

    Args:
        problem: the cells, with variances and columns as chosen.
        pair: the point fits, o folded and o free.
        resamples: weightings per variant.
        seed: seed of the weightings.
    """
    cells = problem.cells
    flags = np.array([flags_of(problem.shape, problem.context_places, free=free) for free in (False, True)])
    if "affine" in shapes_for(cells):
        flags[:, [FLAT, LINEAR]] = True
    centre = solve(problem.design, pair.theta, flags, np.ones((2, len(cells)))).theta
    rng = np.random.default_rng(seed)
    weight = rng.exponential(size=(resamples, len(cells)))
    weight /= weight.mean(axis=1, keepdims=True)
    node = node_of(cells, problem.context)
    merged = [merge(problem.design, theta, node, weight) for theta in centre]
    targets = np.concatenate([nodes.design.log_seconds for nodes in merged])
    solution = solve(
        replace(merged[0].design, log_seconds=targets),
        np.repeat(centre, resamples, axis=0),
        np.repeat(flags, resamples, axis=0),
        np.concatenate([nodes.precision for nodes in merged]),
        iterations=ITERATIONS,
        tolerance=TOLERANCE,
    )
    freedom = max(len(cells) - int(flags[-1].sum()), 1)
    draws = _widened(solution.theta, centre, float(np.sqrt(len(cells) / freedom)))
    implied = implied_sd(problem.design, centre, flags)
    return Resamples(centre, draws, implied, problem.rivals, freedom)


def _widened(theta: Floats, centre: Floats, factor: float) -> Floats:
    """Return draws (2 r, p) spread by ``factor``: few cells understate their own spread."""
    lower, upper = bounds(theta.shape[1])
    middle = np.repeat(centre, len(theta) // 2, axis=0)
    wide = np.clip(middle + factor * (theta - middle), lower, upper)
    wide[: len(wide) // 2, OVERHEAD] = 0.0
    return np.asarray(wide)
