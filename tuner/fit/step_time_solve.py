"""Choose the columns of the step-time curve by evidence and solve it, o free and o folded into m."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tuner.fit.curve import (
    INVERSE_P,
    LOG_FLOOR,
    LOG_SLOPE,
    NONLINEAR,
    OVERHEAD,
    Design,
    Solution,
    seconds_of,
    solve,
)
from tuner.fit.step_time_columns import (
    BATCHED,
    CONTEXT,
    CONTEXT_DRAFT,
    PARAMETERS,
    Shape,
    column_matrix,
    context_column,
    flags_of,
    shapes_for,
)
from tuner.fit.step_time_nodes import merge, node_of
from tuner.fit.step_time_speed import Speed, fit_speed
from tuner.fleet import NotEnoughData

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tuner.fit.cells import Cells

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

CROSSOVER_PRIOR = (300.0, 2.0)
"""Prior median of m/c in tokens and its sd in log: 295 tokens for bf16 on an H100, and a factor of 7
both ways (4-bit weights 74, a mixture of experts 2 400). Data within reach of the knee outvote it."""
HARDWARE_SD = 0.7
"""Prior sd in log of a hardware sheet's m/c: real kernels reach 50-100 % of either roof."""
DRAFTER_PER_TOKEN = 0.2
"""Prior sd, half-normal, of what a drafter computes per draft token over what the target does: their active
parameters are 1 to 70 (a head of EAGLE on 70B) up to 1 to 8 (a draft model of its own). Without it cells
whose K rises with the batch, so that draft tokens and tokens in flight are one, read now and then as a
drafter dearer than its target, and the crossover as twice what it is."""
FIRST_SD = 0.05
"""Relative noise taken for a start, before there are residuals to take it from."""
MIN_SCALE = 0.005
CONTEXTS: tuple[tuple[int, ...], ...] = ((), (CONTEXT,), (CONTEXT, CONTEXT_DRAFT))
START_CELLS = 500
"""Most cells that starting values are sought with; all are fitted from there."""
START_INVERSE_P = (1.0, 0.4, 0.1)
RIVAL_EVIDENCE = 6.0
"""Criterion above the best up to which a choice of columns is not ruled out: 2 log 20, a likelihood 20
times lower, what a test at 5 % asks for."""
START_KNEES = (0.25, 0.75)


@dataclass(frozen=True, slots=True)
class Problem:
    """Cells in the solver's units, with the columns that were chosen."""

    cells: Cells
    design: Design
    scale: Floats
    """(p,) added to log parameters, multiplied to linear ones, to leave the solver's units."""
    context: Floats
    """Context tokens (g,), zeros where they are no regressor."""
    shape: Shape
    context_places: tuple[int, ...]
    kv_reason: NotEnoughData | None
    """Why the cost of context is not told."""
    speed: Speed
    rivals: Floats
    """(2, v, p) fits of all columns that the cells do not rule out, o folded and o free."""


def solve_cells(cells: Cells, prior_crossover: float | None) -> tuple[Problem, Solution]:
    """Return the problem with its columns chosen, and its fits: first o folded into m, then o free.

    Args:
        cells: at least one cell.
        prior_crossover: m/c by the hardware sheet, in tokens.
    """
    problem = _problem(cells, prior_crossover)
    richest: Shape = shapes_for(cells)[-1]
    if "affine" in shapes_for(cells):
        richest = "affine"
    contexts = CONTEXTS if problem.kv_reason is None else CONTEXTS[:1]
    start = _first_fit(problem, richest, contexts[-1])
    problem = _rescale(problem, start)
    problem, pair = _choose(problem, start, contexts)
    problem = _rescale(problem, _best(pair))
    residual = log_residual(problem, _best(pair))
    speed = fit_speed(cells, residual, problem.design.variance)
    if speed.sd > 0:
        problem = replace(problem, speed=speed, design=_without_speed(cells, problem, speed))
        problem, pair = _choose(problem, _best(pair), contexts)
        problem = _rescale(problem, _best(pair))
    pair = solve_pair(problem, pair.theta)
    if problem.kv_reason is None and not problem.context_places:
        problem = replace(problem, kv_reason=NotEnoughData("step time does not move with the context seen"))
    return problem, pair


def solve_again(problem: Problem, pair: Solution, change: Floats) -> tuple[Problem, Solution]:
    """Solve after a change (g,) of the cells' log seconds; columns, speed and variances are kept."""
    design = replace(problem.design, log_seconds=problem.design.log_seconds + change)
    problem = replace(problem, design=design)
    return problem, solve_pair(problem, pair.theta)


def solve_pair(problem: Problem, start: Floats) -> Solution:
    """Solve with o folded and o free from starts (2, p)."""
    flags = np.array([flags_of(problem.shape, problem.context_places, free=free) for free in (False, True)])
    return _solve_flags(problem.design, start, flags, np.ones((1, len(problem.cells))))


def log_residual(problem: Problem, theta: Floats) -> Floats:
    """Return log of measured over fitted seconds (g,), the machine's speed taken out."""
    design = problem.design
    return np.asarray(
        design.log_seconds - np.log(seconds_of(theta[None, :], design.tokens, design.columns)[0])
    )


def unscaled(theta: Floats, scale: Floats) -> Floats:
    """Return parameters (..., p) in seconds and tokens."""
    out = theta * scale
    out[..., :NONLINEAR] = theta[..., :NONLINEAR] + scale[:NONLINEAR]
    return out


def _problem(cells: Cells, prior_crossover: float | None) -> Problem:
    """Put cells into units of the median step and the median tokens in flight."""
    context, kv_reason = context_column(cells)
    step, tokens = float(np.median(cells.seconds)), float(np.median(cells.tokens))
    top = max(float(context.max()), 1.0)
    units = np.ones(PARAMETERS)
    units[BATCHED], units[CONTEXT], units[CONTEXT_DRAFT] = tokens, top, top
    columns = column_matrix(cells.batch, cells.draft_len, context, cells.root) / units[NONLINEAR:]
    median, sd = CROSSOVER_PRIOR if prior_crossover is None else (prior_crossover, HARDWARE_SD)
    design = Design(
        tokens=cells.tokens / tokens,
        columns=columns,
        log_seconds=np.log(cells.seconds / step),
        variance=FIRST_SD**2 + cells.sampling_variance,
        prior_ratio=(float(np.log(median / tokens)), sd),
        per_slope=tuple(DRAFTER_PER_TOKEN if i == BATCHED else np.inf for i in range(NONLINEAR, PARAMETERS)),
    )
    scale = step / units
    scale[LOG_FLOOR], scale[LOG_SLOPE], scale[INVERSE_P] = np.log(step), np.log(step / tokens), 0.0
    return Problem(
        cells, design, scale, context, "none", (), kv_reason, Speed(), np.empty((2, 0, PARAMETERS))
    )


def _first_fit(problem: Problem, shape: Shape, context: tuple[int, ...]) -> Floats:
    """Return parameters (p,) of the richest folded curve, from several starts."""
    design = _every_nth(problem.design, START_CELLS)
    options = [(k, s) for k in np.quantile(design.tokens, START_KNEES) for s in START_INVERSE_P]
    starts = np.zeros((len(options), PARAMETERS))
    lowest = float(np.quantile(design.log_seconds, 0.05))
    for row, (knee, inverse_p) in zip(starts, options, strict=True):
        row[[LOG_FLOOR, LOG_SLOPE, INVERSE_P]] = lowest, lowest - np.log(knee), inverse_p
    flags = np.tile(flags_of(shape, context, free=False), (len(starts), 1))
    weight = np.ones((len(starts), len(design.tokens)))
    solution = solve(design, starts, flags, weight, tolerance=1e-2)
    return _best(solution)


def _every_nth(design: Design, most: int) -> Design:
    """Return the design of at most so many cells, evenly over engines and time."""
    stride = -(-len(design.tokens) // most)
    if stride == 1:
        return design
    return replace(
        design,
        tokens=design.tokens[::stride],
        columns=design.columns[::stride],
        log_seconds=design.log_seconds[::stride],
        variance=design.variance[::stride],
    )


def _best(solution: Solution) -> Floats:
    """Return the parameters (p,) of the lowest objective."""
    return np.asarray(solution.theta[int(np.argmin(solution.objective))])


def _choose(
    problem: Problem, start: Floats, contexts: tuple[tuple[int, ...], ...]
) -> tuple[Problem, Solution]:
    """Choose the drafter's shape, then the context columns, by Akaike's criterion, corrected for few cells.

    Akaike's rather than the Bayesian one: both leave out a drafter's cost that is there more often
    than they take in one that is not, and what is left out bends the crossover.
    """
    shapes = [(shape, contexts[-1]) for shape in shapes_for(problem.cells)]
    (shape, places), pair, rivals = _lowest(problem, start, shapes)
    if len(contexts) > 1:
        options = [(shape, places) for places in contexts]
        (shape, places), pair, others = _lowest(problem, _best(pair), options)
        rivals = np.concatenate([rivals, others], axis=1)
    return replace(problem, shape=shape, context_places=places, rivals=rivals), pair


def _lowest(
    problem: Problem, start: Floats, options: list[tuple[Shape, tuple[int, ...]]]
) -> tuple[tuple[Shape, tuple[int, ...]], Solution, Floats]:
    """Return the option of lowest criterion, its fits, o folded and o free, and all fits near it.

    Fits are to cells merged in nodes.
    """
    flags = np.array([flags_of(*option, free=free) for option in options for free in (False, True)])
    cells = problem.cells
    nodes = merge(problem.design, start, node_of(cells, problem.context), np.ones((1, len(cells))))
    solution = _solve_flags(nodes.design, start, flags, nodes.precision)
    count = flags.sum(axis=1)
    price = 2 * count * (1 + (count + 1) / np.maximum(len(cells) - count - 1, 1))
    criterion = (2 * solution.objective + price).reshape(-1, 2).min(axis=1)
    best = int(np.argmin(criterion))
    pair = slice(2 * best, 2 * best + 2)
    near = criterion <= criterion[best] + RIVAL_EVIDENCE
    rivals = solution.theta.reshape(len(options), 2, -1)[near].swapaxes(0, 1)
    return options[best], Solution(solution.theta[pair], solution.objective[pair]), rivals


def _solve_flags(design: Design, start: Floats, flags: Flags, weight: Floats) -> Solution:
    """Solve one problem per row of flags (r, p) from start (p,) or (r, p); coefficients not free are 0."""
    theta = np.broadcast_to(start, flags.shape).copy()
    theta[~flags] = 0.0
    started = flags[:, OVERHEAD] & (theta[:, OVERHEAD] == 0)
    theta[started, OVERHEAD] = 0.05 * np.exp(theta[started, LOG_FLOOR])
    return solve(design, theta, flags, np.tile(weight, (len(theta), 1)))


def _rescale(problem: Problem, theta: Floats) -> Problem:
    """Set the cells' variance from residuals: between cells, within them, and cut steps."""
    residual = log_residual(problem, theta)
    sampling = problem.cells.sampling_variance
    freedom = max(len(residual) - NONLINEAR - 1, 1) / len(residual)
    scale = 1.4826 * float(np.median(np.abs(residual))) / np.sqrt(freedom)
    between = max(scale**2 - float(np.median(sampling)), MIN_SCALE**2)
    return replace(problem, design=replace(problem.design, variance=between + sampling))


def _without_speed(cells: Cells, problem: Problem, speed: Speed) -> Design:
    """Return the design with the machine's speed divided out of the measured times."""
    factor = speed.log_factor(cells.engine, cells.time)
    return replace(problem.design, log_seconds=problem.design.log_seconds - factor)
