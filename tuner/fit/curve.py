"""The step-time curve and its fit: many weighted problems over the same cells, solved at once.

    t = o + (m^p + (c N)^p)^(1/p) + sum_j a_j x_j

with N the tokens in flight of a step and x_j known columns (drafter, context). p -> infinity is the
roofline of memory and compute time, p = 1 the linear form of published fits. With s = 1/p the middle
term is ``m exp(s softplus(log(cN/m) / s))``, which is smooth in (log m, log c, s) down to the roofline
and needs no power that could overflow.

All fits of one engine share their cells and differ only in weights (resamples) and in the columns
they may use (o free or folded into m, shapes of the drafter), so they run as one batch of
Levenberg-Marquardt problems with an analytic Jacobian: numpy's overhead is paid once per iteration,
not once per problem.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LOG_FLOOR, LOG_SLOPE, INVERSE_P, OVERHEAD = 0, 1, 2, 3
"""Places of log m, log c, s = 1/p and o in a parameter vector; other linear coefficients follow."""
NONLINEAR = 3
MIN_INVERSE_P = 0.01
"""s = 1/p of the roofline: at p = 100 the knee lies 0.7 % above max(m, cN), below any noise seen."""
MAX_INVERSE_P = 1.0
STUDENT_DOF = 4.0
"""Degrees of freedom of the robust loss: a cell 3 sigma off counts 0.31 of one that fits, one 10 sigma
off 0.04; for Gaussian noise the loss costs 8 % of efficiency."""
OVERHEAD_PRIOR = 0.3
"""Prior sd of o/m, half-normal. A published fit of an H100 has 1.207 ms of overhead on 5.886 ms of
weights (0.2, SpecDecode-Bench predictor.py). It counts like one cell and matters only where p near 1
leaves o and m alike."""
COLUMN_PRIOR = 1.0
"""Prior sd of a linear coefficient, half-normal, in scaled units: a draft token that costs a whole
step. It only keeps collinear columns (K and N at one batch) from running away."""
LOG_BOUND = 15.0
MAX_DAMPING = 1e8
"""A problem this damped moves by less than rounding: it rests at a kink or a bound."""


@dataclass(frozen=True, slots=True)
class Design:
    """Cells as the solver sees them, in units of the median step and the median N."""

    tokens: Floats
    """Tokens in flight (g,)."""
    columns: Floats
    """Linear columns (g, l); column 0 is the overhead's, all ones."""
    log_seconds: Floats
    """Log step time (g,), or (r, g) where each problem has its own."""
    variance: Floats
    """Variance (g,) of the log residual."""
    prior_ratio: tuple[float, float]
    """Prior mean and sd of log(m/c)."""
    robust: bool = True
    """Student loss; plain squares where weights already tell outliers."""
    per_slope: tuple[float, ...] = ()
    """(l,) prior sd of a linear coefficient over c, infinite for those that are no cost per token."""

    @property
    def costs_per_token(self) -> list[tuple[int, float]]:
        """Place and prior sd over c of each coefficient that is a cost per token."""
        return [(place, sd) for place, sd in enumerate(self.per_slope) if np.isfinite(sd)]

    def loss(self, square: Floats) -> Floats:
        """Return minus the log likelihood of squared standard residuals."""
        if not self.robust:
            return 0.5 * square
        return np.asarray(0.5 * (STUDENT_DOF + 1.0) * np.log1p(square / STUDENT_DOF))

    def influence(self, square: Floats) -> Floats:
        """Return the weight that squares would need for the loss's slope."""
        if not self.robust:
            return np.ones_like(square)
        return (STUDENT_DOF + 1.0) / (STUDENT_DOF + square)


@dataclass(frozen=True, slots=True)
class Solution:
    """Parameters (r, 3 + l) of r problems and minus their log posterior (r,)."""

    theta: Floats
    objective: Floats


@dataclass(slots=True)
class _State:
    """Where the problems still running are: parameters (a, p) and what the cells say there."""

    objective: Floats
    residual: Floats
    square: Floats
    jacobian: Floats

    def take(self, keep: NDArray[np.bool_], better: NDArray[np.bool_], new: _State) -> _State:
        """Return the state of the problems kept, moved where the step was better."""
        took = better[keep]

        def pick(old: Floats, fresh: Floats) -> Floats:
            shape = (-1,) + (1,) * (old.ndim - 1)
            return np.where(took.reshape(shape), fresh[keep], old[keep])

        return _State(
            pick(self.objective, new.objective),
            pick(self.residual, new.residual),
            pick(self.square, new.square),
            pick(self.jacobian, new.jacobian),
        )


def seconds_of(theta: Floats, tokens: Floats, columns: Floats) -> Floats:
    """Return the step time (r, g) of parameters (r, 3 + l) at tokens (g,), columns (g, l)."""
    log_core, _, _ = _core(theta, tokens)
    return np.asarray(np.exp(log_core) + theta[:, NONLINEAR:] @ columns.T)


CROSSOVER, FIXED, FLOOR, SLOPE, BLUNTNESS, OVERHEAD_SHARE = range(6)
"""Places of what :func:`quantities_of` returns: log of (o + m) / c, of o + m, of m and of c, then 1/p and
o / (o + m)."""


def quantities_of(theta: Floats) -> Floats:
    """Return what parameters (..., 3 + l) say in terms that have an interval each, (..., 6)."""
    fixed = theta[..., OVERHEAD] + np.exp(theta[..., LOG_FLOOR])
    logs = np.log(fixed), theta[..., LOG_FLOOR], theta[..., LOG_SLOPE]
    share = theta[..., OVERHEAD] / fixed
    return np.stack([logs[0] - logs[2], *logs, theta[..., INVERSE_P], share], axis=-1)


def _gradients(theta: Floats) -> Floats:
    """Return the gradient (r, 3 + l, 6) of each quantity by each parameter."""
    floor = np.exp(theta[:, LOG_FLOOR])
    fixed = floor + theta[:, OVERHEAD]
    out = np.zeros((*theta.shape, 6))
    out[:, LOG_FLOOR, FIXED] = floor / fixed
    out[:, OVERHEAD, FIXED] = 1.0 / fixed
    out[:, LOG_FLOOR, FLOOR] = out[:, LOG_SLOPE, SLOPE] = out[:, INVERSE_P, BLUNTNESS] = 1.0
    out[:, :, CROSSOVER] = out[:, :, FIXED] - out[:, :, SLOPE]
    out[:, OVERHEAD, OVERHEAD_SHARE] = floor / fixed**2
    out[:, LOG_FLOOR, OVERHEAD_SHARE] = -floor * theta[:, OVERHEAD] / fixed**2
    return out


def _core(theta: Floats, tokens: Floats) -> tuple[Floats, Floats, Floats]:
    """Return log of the p-norm (r, g), its derivative by log c, and by s."""
    inverse_p = theta[:, INVERSE_P, None]
    u = (np.log(tokens)[None, :] + (theta[:, LOG_SLOPE] - theta[:, LOG_FLOOR])[:, None]) / inverse_p
    small = np.exp(-np.abs(u))
    softplus = np.maximum(u, 0.0) + np.log1p(small)
    sigmoid = np.where(u >= 0, 1.0, small) / (1.0 + small)
    return theta[:, LOG_FLOOR, None] + inverse_p * softplus, sigmoid, softplus - u * sigmoid


def _evaluate(theta: Floats, design: Design, target: Floats, weight: Floats) -> _State:
    """Return the objective, log residuals and the Jacobian of log seconds at theta (a, p)."""
    log_core, by_slope, by_inverse_p = _core(theta, design.tokens)
    core = np.exp(log_core)
    seconds = core + theta[:, NONLINEAR:] @ design.columns.T
    residual = target - np.log(seconds)
    square = residual**2 / design.variance
    objective = (weight * design.loss(square)).sum(axis=1) + 0.5 * (_prior_rows(theta, design) ** 2).sum(
        axis=1
    )
    jacobian = np.empty((*seconds.shape, theta.shape[1]))
    share = core / seconds
    jacobian[..., LOG_SLOPE] = share * by_slope
    jacobian[..., LOG_FLOOR] = share - jacobian[..., LOG_SLOPE]
    jacobian[..., INVERSE_P] = share * by_inverse_p
    np.divide(design.columns[None, :, :], seconds[..., None], out=jacobian[..., NONLINEAR:])
    return _State(objective, residual, square, jacobian)


def _prior_rows(theta: Floats, design: Design) -> Floats:
    """Return the standardised prior residuals (r, 1 + l)."""
    mean, sd = design.prior_ratio
    rows = np.empty((theta.shape[0], theta.shape[1] - NONLINEAR + 1))
    rows[:, 0] = (theta[:, LOG_FLOOR] - theta[:, LOG_SLOPE] - mean) / sd
    rows[:, 1:] = theta[:, NONLINEAR:] / COLUMN_PRIOR
    for place, sd in design.costs_per_token:
        rows[:, 1 + place] = theta[:, NONLINEAR + place] * np.exp(-theta[:, LOG_SLOPE]) / sd
    rows[:, 1] = theta[:, OVERHEAD] * np.exp(-theta[:, LOG_FLOOR]) / OVERHEAD_PRIOR
    return rows


def _add_prior(hessian: Floats, gradient: Floats, theta: Floats, design: Design) -> None:
    """Add the prior's normal equations in place."""
    rows = _prior_rows(theta, design)
    jacobian = np.zeros((theta.shape[0], rows.shape[1], theta.shape[1]))
    jacobian[:, 0, LOG_FLOOR] = 1.0 / design.prior_ratio[1]
    jacobian[:, 0, LOG_SLOPE] = -1.0 / design.prior_ratio[1]
    for column in range(1, rows.shape[1]):
        jacobian[:, column, NONLINEAR + column - 1] = 1.0 / COLUMN_PRIOR
    for place, sd in design.costs_per_token:
        jacobian[:, 1 + place, NONLINEAR + place] = np.exp(-theta[:, LOG_SLOPE]) / sd
        jacobian[:, 1 + place, LOG_SLOPE] = -rows[:, 1 + place]
    jacobian[:, 1, OVERHEAD] = np.exp(-theta[:, LOG_FLOOR]) / OVERHEAD_PRIOR
    jacobian[:, 1, LOG_FLOOR] = -rows[:, 1]
    turned = jacobian.transpose(0, 2, 1)
    hessian += turned @ jacobian
    gradient += (turned @ rows[..., None])[..., 0]


def implied_sd(design: Design, theta: Floats, free: NDArray[np.bool_]) -> Floats:
    """Return the standard deviation (r, 6) of each quantity that the cells' variance implies.

    The inverse information of the parameters not at a bound, through the gradients of the quantities:
    exact where the noise is as the design says, also where few cells carry most of a parameter and
    reweighting cells cannot show what other cells there would have said.
    """
    target = np.broadcast_to(design.log_seconds, (len(theta), len(design.tokens)))
    state = _evaluate(theta, design, target, np.ones_like(target))
    weighted = (state.jacobian * (design.influence(state.square) / design.variance)[..., None]).transpose(
        0, 2, 1
    )
    information = weighted @ state.jacobian
    _add_prior(information, np.zeros_like(theta), theta, design)
    lower, upper = bounds(theta.shape[1])
    held = ~free | (theta <= lower) | (theta >= upper)
    information = np.where(held[:, :, None] | held[:, None, :], 0.0, information)
    diagonal = np.arange(theta.shape[1])
    information[:, diagonal, diagonal] = np.where(held, 1.0, information[:, diagonal, diagonal] + 1e-9)
    gradients = np.where(held[:, :, None], 0.0, _gradients(theta))
    along = np.linalg.solve(information, gradients)
    return np.asarray(np.sqrt((gradients * along).sum(axis=1)))


def bounds(size: int) -> tuple[Floats, Floats]:
    """Return lower and upper bounds of a parameter vector: coefficients are never negative."""
    lower, upper = np.zeros(size), np.full(size, np.inf)
    lower[:INVERSE_P], upper[:INVERSE_P] = -LOG_BOUND, LOG_BOUND
    lower[INVERSE_P], upper[INVERSE_P] = MIN_INVERSE_P, MAX_INVERSE_P
    return lower, upper


def solve(
    design: Design,
    start: Floats,
    free: NDArray[np.bool_],
    weight: Floats,
    *,
    iterations: int = 30,
    tolerance: float = 1e-4,
) -> Solution:
    """Minimise the robust objective of r problems at once, within their bounds.

    Args:
        design: the cells.
        start: (r, 3 + l) starting parameters; those not free stay where they are.
        free: (r, 3 + l) which parameters may move.
        weight: (r, g) weight of each cell in each problem, about 1.
        iterations: most Levenberg-Marquardt steps; a warm start takes 4-8.
        tolerance: a problem rests when a step promises to lower its objective by less than this.
            An objective is minus a log posterior, so 1e-4 is far below anything that data can tell.
    """
    used = free.any(axis=0) | (start != 0).any(axis=0)
    used[: OVERHEAD + 1] = True
    if not used.all():
        columns = design.columns[:, used[NONLINEAR:]]
        inner = solve(
            replace(design, columns=columns, per_slope=tuple(compress(design.per_slope, used[NONLINEAR:]))),
            start[:, used],
            free[:, used],
            weight,
            iterations=iterations,
            tolerance=tolerance,
        )
        theta = start.copy()
        theta[:, used] = inner.theta
        return Solution(theta, inner.objective)
    limits = bounds(start.shape[1])
    target = np.broadcast_to(design.log_seconds, weight.shape)
    theta, objective = start.copy(), np.full(len(start), np.inf)
    damping, active = np.full(len(start), 1e-3), np.arange(len(start))
    state = _evaluate(theta, design, target, weight)
    for _ in range(iterations):
        here = theta[active]
        robust = weight[active] / design.variance * design.influence(state.square)
        weighted = (state.jacobian * robust[..., None]).transpose(0, 2, 1)
        hessian = weighted @ state.jacobian
        gradient = -(weighted @ state.residual[..., None])[..., 0]
        _add_prior(hessian, gradient, here, design)
        step, promised = _bounded_step(hessian, gradient, here, free[active], limits, damping[active])
        trial = np.clip(here + step, *limits)
        new = _evaluate(trial, design, target[active], weight[active])
        better = new.objective <= state.objective
        theta[active[better]] = trial[better]
        objective[active] = np.where(better, new.objective, state.objective)
        damping[active] *= np.where(better, 0.2, 8.0)
        keep = ~((better & (promised < tolerance)) | (damping[active] > MAX_DAMPING))
        if not keep.any():
            break
        state = state.take(keep, better, new)
        active = active[keep]
    return Solution(theta, objective)


def _bounded_step(
    hessian: Floats,
    gradient: Floats,
    theta: Floats,
    free: NDArray[np.bool_],
    limits: tuple[Floats, Floats],
    damping: Floats,
) -> tuple[Floats, Floats]:
    """Return the damped step (r, p) with parameters at a bound held, and the fall it promises (r,)."""
    lower, upper = limits
    held = ~free | ((theta <= lower) & (gradient > 0)) | ((theta >= upper) & (gradient < 0))
    diagonal = np.arange(theta.shape[1])
    gradient = np.where(held, 0.0, gradient)
    system = np.where(held[:, :, None] | held[:, None, :], 0.0, hessian)
    scale = system[:, diagonal, diagonal]
    system[:, diagonal, diagonal] = np.where(held, 1.0, scale * (1.0 + damping[:, None]) + 1e-9)
    step = -np.linalg.solve(system, gradient[..., None])[..., 0]
    return np.asarray(step), -0.5 * (gradient * step).sum(axis=1)
