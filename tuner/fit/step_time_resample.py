"""Resampled fits of the step-time curve: what its parameters could as well have been.

A resample gives every cell an exponential weight (the Bayesian bootstrap, Rubin 1981). Drawing cells
with replacement would now and then lose the only cells that show an asymptote.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tuner.fit.curve import NONLINEAR, OVERHEAD, Design, bounds, seconds_of, solve
from tuner.fit.step_time_columns import FLAT, LINEAR, flags_of, shapes_for
from tuner.fit.step_time_solve import Problem, log_residual

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tuner.fit.curve import Solution

    Floats = NDArray[np.float64]

NODE_WIDTH = 0.2
"""Width of a node in log tokens in flight. Over 20 % in N the curve departs from a line by less than
0.1 %, so cells of one K inside it act on a resample only by their weighted mean residual."""
ITERATIONS = 12
TOLERANCE = 1e-2
"""A resample rests 0.01 of log posterior from its optimum: a seventh of a standard error."""


def resample(problem: Problem, pair: Solution, resamples: int, seed: int) -> Floats:
    """Return parameters (2 r, p) of refits under random weights, first o folded, then o free.

    The drafter's base and slope are free in resamples wherever the draft lengths can show them, even
    where the point fit has a shape with fewer coefficients: which shape was chosen is chance as well.

    Args:
        problem: the cells, with variances and columns as chosen.
        pair: the point fits, o folded and o free.
        resamples: weightings per variant.
        seed: seed of the weightings.
    """
    cells = problem.cells
    rng = np.random.default_rng(seed)
    weight = rng.exponential(size=(resamples, len(cells)))
    weight /= weight.mean(axis=1, keepdims=True)
    node = _nodes(problem)
    parts = [_on_nodes(problem, theta, weight, node) for theta in pair.theta]
    design = replace(
        parts[0][0],
        log_seconds=np.concatenate([part[0].log_seconds for part in parts]),
        variance=np.ones(len(parts[0][0].tokens)),
        robust=False,
    )
    flags = np.array([flags_of(problem.shape, problem.context_places, free=free) for free in (False, True)])
    if "affine" in shapes_for(cells):
        flags[:, [FLAT, LINEAR]] = True
    flags = np.repeat(flags, resamples, axis=0)
    start = np.repeat(pair.theta, resamples, axis=0)
    precision = np.concatenate([part[1] for part in parts])
    solution = solve(design, start, flags, precision, iterations=ITERATIONS, tolerance=TOLERANCE)
    return _widened(solution.theta, start, len(cells), int(flags[-1].sum()))


def _nodes(problem: Problem) -> NDArray[np.intp]:
    """Return the node (g,) of each cell: one K, one stretch of tokens in flight and of context."""
    cells = problem.cells
    stretch = np.floor(np.log(problem.design.tokens) / NODE_WIDTH)
    each = np.maximum(problem.context / cells.batch, 1.0)
    context = np.floor(np.log(each) / NODE_WIDTH)
    _, node = np.unique(np.column_stack([cells.draft_len, stretch, context]), axis=0, return_inverse=True)
    return np.asarray(node.reshape(-1))


def _on_nodes(
    problem: Problem, theta: Floats, weight: Floats, node: NDArray[np.intp]
) -> tuple[Design, Floats]:
    """Return the nodes' design, with a target per resample (r, n), and their precisions (r, n)."""
    design = problem.design
    residual = log_residual(problem, theta)
    precision = design.influence(residual**2 / design.variance) / design.variance
    member = np.zeros((len(node), int(node.max()) + 1))
    member[np.arange(len(node)), node] = 1.0
    total = precision @ member

    def mean(values: Floats) -> Floats:
        return np.asarray((precision * values) @ member / total)

    tokens = np.exp(mean(np.log(design.tokens)))
    columns = np.column_stack([mean(column) for column in design.columns.T])
    weighted = weight * precision
    drawn = weighted @ member
    fitted = np.log(seconds_of(theta[None, :], tokens, columns)[0])
    target = fitted + (weighted * residual) @ member / drawn
    return replace(design, tokens=tokens, columns=columns, log_seconds=target), drawn


def _widened(theta: Floats, centre: Floats, cells: int, parameters: int) -> Floats:
    """Return draws widened by the freedom that fitting took: few cells understate their own spread."""
    factor = np.sqrt(cells / max(cells - parameters, 1))
    lower, upper = bounds(theta.shape[1])
    wide = np.clip(centre + factor * (theta - centre), lower, upper)
    wide[:, :NONLINEAR] = np.where(
        np.isfinite(wide[:, :NONLINEAR]), wide[:, :NONLINEAR], theta[:, :NONLINEAR]
    )
    wide[: len(wide) // 2, OVERHEAD] = 0.0
    return np.asarray(wide)
