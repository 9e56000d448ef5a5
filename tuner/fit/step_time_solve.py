"""Choose the columns of the step-time curve, solve it, and resample its cells for intervals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from tuner.fit.crossover import Crossover, unidentified
from tuner.fit.curve import (
    CROSSOVER_PRIOR,
    INVERSE_P,
    LOG_FLOOR,
    LOG_SLOPE,
    NONLINEAR,
    Design,
    Solution,
    seconds_of,
    solve,
)
from tuner.fleet import NotEnoughData

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tuner.fit.cells import Cells

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

OVERHEAD, FLAT, LINEAR, ROOT, CONTEXT = range(NONLINEAR, NONLINEAR + 5)
"""Places of the linear coefficients: overhead, drafter at any K, per draft token, per root draft token,
per context token."""
PARAMETERS = CONTEXT + 1
Shape = Literal["none", "flat", "linear", "affine", "concave"]
SHAPES: dict[Shape, tuple[int, ...]] = {
    "none": (),
    "flat": (FLAT,),
    "linear": (LINEAR,),
    "affine": (FLAT, LINEAR),
    "concave": (ROOT,),
}
SHARP = 1.3
"""Below this p the overhead is folded into m for the point estimate: a near-linear curve has no corner
to tell o from m by, and leaving o free only adds noise."""
MIN_SHAPE_DRAFT_LENS = 3
HARDWARE_SD = 0.7
"""Prior sd in log of a hardware sheet's crossover: real kernels reach 50-100 % of either roof."""
MIN_SCALE = 0.005
CONTEXT_SPREAD = 1.5
"""Least ratio of context per request between the 90th and 10th percentile for a cost of its own."""
NORMAL_95 = 1.96
OVERHEAD_TELLS = 2.0
"""Least p at which o and m are told apart."""


@dataclass(frozen=True, slots=True)
class Solved:
    """Parameters in seconds and tokens, with how they were found."""

    theta: Floats
    draws: Floats
    shape: Shape
    shape_reason: str
    kv_reason: NotEnoughData | None
    context: Floats
    crossover: Crossover | NotEnoughData


def column_matrix(draft_len: Floats, context: Floats) -> Floats:
    """Return the linear columns (n, 5) at draft lengths (n,) and context tokens (n,)."""
    low = np.floor(draft_len)
    part = draft_len - low
    root = np.sqrt(low) * (1 - part) + np.sqrt(low + 1) * part
    return np.column_stack([np.ones_like(draft_len), np.minimum(draft_len, 1.0), draft_len, root, context])


@dataclass(frozen=True, slots=True)
class _Problem:
    """A design with its units and the flags of what may be fitted."""

    design: Design
    scale: Floats
    """(p,) what to add to log parameters and multiply linear ones with, to leave scaled units."""
    shapes: tuple[Shape, ...]
    context: bool


def solve_cells(cells: Cells, *, prior_crossover: float | None, resamples: int, seed: int) -> Solved:
    """Fit the curve to cells and resample them.

    Args:
        cells: at least one cell.
        prior_crossover: m/c by the hardware sheet, in tokens.
        resamples: weightings of the cells per variant (o free, o folded into m).
        seed: seed of the weightings.
    """
    context, kv_reason = _context_column(cells)
    problem = _problem(cells, context, kv_reason is None, prior_crossover)
    first = _first_fit(problem)
    problem, shape, with_context, pair = _choose(problem, cells, first)
    if kv_reason is None and not with_context:
        kv_reason = NotEnoughData("step time does not depend on context in the range seen")
    draws = _resample(problem, pair, shape, with_context, resamples, seed)
    folded, free = (_unscaled(theta, problem.scale) for theta in pair.theta)
    point = folded if 1.0 / folded[INVERSE_P] < SHARP else free
    draws = _unscaled(draws, problem.scale)
    inflation = _small_sample(len(cells), int(_flags(shape, with_context, free=True).sum()))
    return Solved(
        theta=point,
        draws=draws,
        shape=shape,
        shape_reason=_shape_reason(cells, shape),
        kv_reason=kv_reason,
        context=context,
        crossover=_crossover(cells, point, folded, free, draws, inflation),
    )


def _context_column(cells: Cells) -> tuple[Floats, NotEnoughData | None]:
    """Return the context regressor (g,), and why its cost cannot be told, if so."""
    known = np.isfinite(cells.context) & (cells.context > 0)
    if not known.all():
        return np.zeros(len(cells)), NotEnoughData("context tokens untold", int(known.sum()), len(cells))
    each = cells.context / cells.batch
    low, high = np.quantile(each, [0.1, 0.9])
    if high < CONTEXT_SPREAD * low:
        reason = "context per request hardly varies, so its cost is part of the cost per token"
        return cells.context, NotEnoughData(reason, round(float(high / low), 3), CONTEXT_SPREAD)
    return cells.context, None


def _problem(cells: Cells, context: Floats, with_context: bool, prior_crossover: float | None) -> _Problem:
    """Put cells into units of the median step and the median tokens in flight."""
    step, tokens = float(np.median(cells.seconds)), float(np.median(cells.tokens))
    top = float(context.max()) if with_context else 1.0
    columns = column_matrix(cells.draft_len, context / top if with_context else np.zeros(len(cells)))
    mean, sd = CROSSOVER_PRIOR if prior_crossover is None else (prior_crossover, HARDWARE_SD)
    design = Design(
        tokens=cells.tokens / tokens,
        columns=columns,
        log_seconds=np.log(cells.seconds / step),
        variance=0.05**2 + cells.edge_variance,
        prior_ratio=(float(np.log(mean / tokens)), sd),
    )
    scale = np.full(PARAMETERS, step)
    scale[LOG_FLOOR], scale[LOG_SLOPE], scale[INVERSE_P] = np.log(step), np.log(step / tokens), 0.0
    scale[CONTEXT] = step / top
    return _Problem(design, scale, _shapes(cells), with_context)


def _shapes(cells: Cells) -> tuple[Shape, ...]:
    """Return the shapes of the drafter's cost that the draft lengths seen can tell apart."""
    kinds = np.unique(np.round(cells.draft_len))
    if len(kinds) < 2:  # noqa: PLR2004 - nothing to compare with
        return ("none",)
    if len(kinds) < MIN_SHAPE_DRAFT_LENS:
        return ("linear",)
    return tuple(SHAPES) if kinds[0] == 0 else ("none", "linear", "concave")


def _shape_reason(cells: Cells, shape: Shape) -> str:
    """Say what the shape rests on."""
    kinds = len(np.unique(np.round(cells.draft_len)))
    if kinds < 2:  # noqa: PLR2004
        return "one draft length only: the drafter's time is part of the floor"
    if kinds < MIN_SHAPE_DRAFT_LENS:
        return f"two draft lengths only: {shape} is assumed, three show the shape"
    return f"chosen among {', '.join(_shapes(cells))} by the Bayesian information criterion"


def _flags(shape: Shape, context: bool, *, free: bool) -> Flags:
    """Return which parameters (p,) may move."""
    flags = np.zeros(PARAMETERS, dtype=np.bool_)
    flags[:NONLINEAR] = True
    flags[OVERHEAD] = free
    flags[list(SHAPES[shape])] = True
    flags[CONTEXT] = context
    return flags


def _first_fit(problem: _Problem) -> Floats:
    """Return parameters (p,) of the richest folded curve, from several starts."""
    design = problem.design
    shape: Shape = "affine" if "affine" in problem.shapes else problem.shapes[-1]
    knees = np.quantile(design.tokens, [0.25, 0.75])
    starts = np.zeros((6, PARAMETERS))
    lowest = float(np.quantile(design.log_seconds, 0.05))
    for row, (knee, inverse_p) in enumerate((k, s) for k in knees for s in (1.0, 0.4, 0.1)):
        starts[row, LOG_FLOOR] = lowest
        starts[row, LOG_SLOPE] = lowest - np.log(knee)
        starts[row, INVERSE_P] = inverse_p
    flags = np.tile(_flags(shape, problem.context, free=False), (len(starts), 1))
    solution = solve(
        design, starts, flags, np.ones((len(starts), len(design.tokens))), iterations=25, tolerance=1e-2
    )
    return np.asarray(solution.theta[int(np.argmin(solution.objective))])


def _choose(problem: _Problem, cells: Cells, start: Floats) -> tuple[_Problem, Shape, bool, Solution]:
    """Choose the drafter's shape and the context column by evidence; return both variants' fits."""
    problem = _rescale(problem, cells, start)
    options = [(s, c) for s in problem.shapes for c in ((False, True) if problem.context else (False,))]
    flags = np.array([_flags(s, c, free=f) for s, c in options for f in (False, True)])
    solution = _solve_flags(problem.design, start, flags)
    price = np.log(len(cells)) * flags.sum(axis=1)
    best = int(np.argmin((2 * solution.objective + price).reshape(-1, 2).min(axis=1)))
    shape, context = options[best]
    pair = Solution(solution.theta[2 * best : 2 * best + 2], solution.objective[2 * best : 2 * best + 2])
    lower = int(np.argmin(pair.objective))
    problem = _rescale(problem, cells, pair.theta[lower])
    flags = np.array([_flags(shape, context, free=f) for f in (False, True)])
    pair = _solve_flags(problem.design, pair.theta, flags)
    return problem, shape, context, pair


def _solve_flags(design: Design, start: Floats, flags: Flags) -> Solution:
    """Solve one problem per row of flags (r, p) from start (p,) or (r, p); coefficients not free are 0."""
    theta = np.broadcast_to(start, flags.shape).copy()
    theta[~flags] = 0.0
    free_overhead = flags[:, OVERHEAD] & (theta[:, OVERHEAD] == 0)
    theta[free_overhead, OVERHEAD] = 0.05 * np.exp(theta[free_overhead, LOG_FLOOR])
    return solve(design, theta, flags, np.ones((len(theta), len(design.tokens))))


def _rescale(problem: _Problem, cells: Cells, theta: Floats) -> _Problem:
    """Set the cells' variance from residuals: between cells, within them, and cut steps."""
    design = problem.design
    residual = design.log_seconds - np.log(seconds_of(theta[None, :], design.tokens, design.columns)[0])
    freedom = max(len(residual) - 4, 1) / len(residual)
    scale = 1.4826 * float(np.median(np.abs(residual))) / np.sqrt(freedom)
    between = max(scale**2 - float(np.median(cells.sampling_variance)), MIN_SCALE**2)
    return replace(problem, design=replace(design, variance=between + cells.sampling_variance))


def _resample(
    problem: _Problem, pair: Solution, shape: Shape, context: bool, resamples: int, seed: int
) -> Floats:
    """Return parameters (2 r, p) of refits under random weights of the cells, first o folded, then free.

    Weights are exponential (the Bayesian bootstrap of Rubin 1981): every cell keeps some, so no
    resample loses the only cells that show an asymptote, as drawing with replacement would.
    """
    rng = np.random.default_rng(seed)
    weight = rng.exponential(size=(resamples, len(problem.design.tokens)))
    weight /= weight.mean(axis=1, keepdims=True)
    flags = np.array([_flags(shape, context, free=free) for free in (False, True)])
    start = np.repeat(pair.theta, resamples, axis=0)
    solution = solve(
        problem.design,
        start,
        np.repeat(flags, resamples, axis=0),
        np.tile(weight, (2, 1)),
        iterations=12,
        tolerance=1e-2,
    )
    return solution.theta


def _unscaled(theta: Floats, scale: Floats) -> Floats:
    """Return parameters (..., p) in seconds and tokens."""
    out = theta * scale
    out[..., :NONLINEAR] = theta[..., :NONLINEAR] + scale[:NONLINEAR]
    return out


def _small_sample(cells: int, parameters: int) -> float:
    """Return the factor by which so few cells understate a spread: residual freedom."""
    return float(np.sqrt(cells / max(cells - parameters, 1)))


def crossover_of(theta: Floats) -> Floats:
    """Return (o + m) / c of parameters (..., p)."""
    return np.asarray((theta[..., OVERHEAD] + np.exp(theta[..., LOG_FLOOR])) / np.exp(theta[..., LOG_SLOPE]))


def _crossover(
    cells: Cells, point: Floats, folded: Floats, free: Floats, draws: Floats, inflation: float
) -> Crossover | NotEnoughData:
    """Return the crossover with the hull of both variants' intervals, or why it cannot be told."""
    value = float(crossover_of(point))
    if (why := unidentified(cells.tokens, cells.draft_len, value)) is not None:
        return why
    ends: list[float] = []
    for centre, part in zip((folded, free), np.split(draws, 2), strict=True):
        middle = float(np.log(crossover_of(centre)))
        spread = NORMAL_95 * inflation * float(np.std(np.log(crossover_of(part))))
        ends.extend([middle - spread, middle + spread])
    low, high = float(np.exp(min(ends))), float(np.exp(max(ends)))
    excluding: float | NotEnoughData = float(np.exp(point[LOG_FLOOR] - point[LOG_SLOPE]))
    if 1.0 / folded[INVERSE_P] < OVERHEAD_TELLS:
        excluding = NotEnoughData(
            "step time is too near to a line to tell overhead from the floor",
            have=round(1.0 / float(folded[INVERSE_P]), 2),
            need=OVERHEAD_TELLS,
        )
    return Crossover(value, low, high, excluding)
