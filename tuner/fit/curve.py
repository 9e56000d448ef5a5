"""The step-time curve and its fit: many weighted problems over the same cells, solved at once.

    t = o + (m^p + (c N)^p)^(1/p) + Σ_j a_j x_j

with N the tokens in flight of a step and x_j known columns (drafter, context). p -> infinity is the
roofline of memory and compute time, p = 1 the linear form of published fits. With s = 1/p the middle
term is ``m * exp(s * softplus(log(cN/m) / s))``, which is smooth in (log m, log c, s) down to the
roofline and needs no power that could overflow.

All fits of one engine share their cells and differ only in weights (resamples) and in the columns
they may use (o free or folded into m, shapes of the drafter), so they run as one batch of
Levenberg-Marquardt problems with an analytic Jacobian: numpy's overhead is paid once per iteration,
not once per problem.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LOG_FLOOR, LOG_SLOPE, INVERSE_P = 0, 1, 2
"""Places of log m, log c and s = 1/p in a parameter vector; linear coefficients follow."""
NONLINEAR = 3
MIN_INVERSE_P = 0.01
"""s = 1/p of the roofline: at p = 100 the knee lies 0.7 % above max(m, cN), below any noise seen."""
MAX_INVERSE_P = 1.0
STUDENT_DOF = 4.0
"""Degrees of freedom of the robust loss: a cell 3 sigma off counts 0.38 of one that fits, one 10 sigma
off 0.05; for Gaussian noise the loss costs 5-10 % of efficiency."""
OVERHEAD_PRIOR = 0.3
"""Prior sd of o/m, half-normal. A published fit of an H100 has 1.207 ms of overhead on 5.886 ms of
weights (0.2, SpecDecode-Bench predictor.py). It counts like one cell and matters only where p near 1
leaves o and m alike."""
CROSSOVER_PRIOR = (300.0, 2.0)
"""Prior median of m/c in tokens and its sd in log: 295 tokens for bf16 on an H100, and a factor of 7
both ways (4-bit weights 74, a mixture of experts 2 400). Data within reach of the knee outvote it."""
COLUMN_PRIOR = 1.0
"""Prior sd of a linear coefficient, half-normal, in units of the median step: a draft token that costs
a whole step. It only keeps collinear columns (K and N at one batch) from running away."""
LOG_BOUND = 15.0
MAX_DAMPING = 1e8
"""A problem this damped moves by less than rounding: it rests at a kink or a bound."""


@dataclass(frozen=True, slots=True)
class Design:
    """Cells as the solver sees them, in units of the median step and the median N.

    ``tokens`` (g,), ``columns`` (g, l) with column 0 the overhead, ``log_seconds`` (g,),
    ``variance`` (g,) of the log residual.
    """

    tokens: Floats
    columns: Floats
    log_seconds: Floats
    variance: Floats
    prior_ratio: tuple[float, float]
    """Prior mean and sd of log(m/c) in scaled units."""


@dataclass(frozen=True, slots=True)
class Solution:
    """Parameters (r, 3 + l) of r problems and their objective (r,), half of -2 log posterior."""

    theta: Floats
    objective: Floats


def seconds_of(theta: Floats, tokens: Floats, columns: Floats) -> Floats:
    """Return the step time (r, g) of parameters (r, 3 + l) at tokens (g,), columns (g, l)."""
    log_core, _, _ = _core(theta, tokens)
    return np.exp(log_core) + theta[:, NONLINEAR:] @ columns.T


def _core(theta: Floats, tokens: Floats) -> tuple[Floats, Floats, Floats]:
    """Return log of the p-norm (r, g), its derivative by log c, and by s."""
    inverse_p = theta[:, INVERSE_P, None]
    u = (np.log(tokens)[None, :] + (theta[:, LOG_SLOPE] - theta[:, LOG_FLOOR])[:, None]) / inverse_p
    small = np.exp(-np.abs(u))
    softplus = np.maximum(u, 0.0) + np.log1p(small)
    sigmoid = np.where(u >= 0, 1.0, small) / (1.0 + small)
    return theta[:, LOG_FLOOR, None] + inverse_p * softplus, sigmoid, softplus - u * sigmoid


def _objective(theta: Floats, design: Design, weight: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the objective (r,), log residuals (r, g), step times (r, g) and the core's pieces."""
    log_core, by_slope, by_inverse_p = _core(theta, design.tokens)
    core = np.exp(log_core)
    seconds = core + theta[:, NONLINEAR:] @ design.columns.T
    residual = design.log_seconds[None, :] - np.log(seconds)
    square = residual**2 / design.variance[None, :]
    loss = 0.5 * (STUDENT_DOF + 1.0) * (weight * np.log1p(square / STUDENT_DOF)).sum(axis=1)
    prior = _prior_rows(theta, design)
    loss += 0.5 * (prior**2).sum(axis=1)
    jacobian = np.empty((*seconds.shape, theta.shape[1]))
    share = core / seconds
    jacobian[..., LOG_SLOPE] = share * by_slope
    jacobian[..., LOG_FLOOR] = share - jacobian[..., LOG_SLOPE]
    jacobian[..., INVERSE_P] = share * by_inverse_p
    jacobian[..., NONLINEAR:] = design.columns[None, :, :] / seconds[..., None]
    return loss, residual, square, jacobian


def _prior_rows(theta: Floats, design: Design) -> Floats:
    """Return the standardised prior residuals (r, 1 + l)."""
    mean, sd = design.prior_ratio
    rows = np.empty((theta.shape[0], theta.shape[1] - NONLINEAR + 1))
    rows[:, 0] = (theta[:, LOG_FLOOR] - theta[:, LOG_SLOPE] - mean) / sd
    rows[:, 1:] = theta[:, NONLINEAR:] / COLUMN_PRIOR
    rows[:, 1] = theta[:, NONLINEAR] * np.exp(-theta[:, LOG_FLOOR]) / OVERHEAD_PRIOR
    return rows


def _add_prior(hessian: Floats, gradient: Floats, theta: Floats, design: Design) -> None:
    """Add the prior's normal equations in place."""
    rows = _prior_rows(theta, design)
    jacobian = np.zeros((theta.shape[0], rows.shape[1], theta.shape[1]))
    jacobian[:, 0, LOG_FLOOR] = 1.0 / design.prior_ratio[1]
    jacobian[:, 0, LOG_SLOPE] = -1.0 / design.prior_ratio[1]
    for column in range(1, rows.shape[1]):
        jacobian[:, column, NONLINEAR + column - 1] = 1.0 / COLUMN_PRIOR
    jacobian[:, 1, NONLINEAR] = np.exp(-theta[:, LOG_FLOOR]) / OVERHEAD_PRIOR
    jacobian[:, 1, LOG_FLOOR] = -rows[:, 1]
    hessian += np.einsum("rij,rik->rjk", jacobian, jacobian)
    gradient += np.einsum("rij,ri->rj", jacobian, rows)


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
        free: (r, 3 + l) which parameters may move. Linear coefficients stay >= 0.
        weight: (r, g) weight of each cell in each problem, about 1.
        iterations: most Levenberg-Marquardt steps; a warm start takes 4-8.
        tolerance: a problem rests when a step promises to lower its objective by less than this.
            An objective is a log posterior, so 1e-4 is far below anything that data can tell.
    """
    lower = np.full(start.shape[1], 0.0)
    upper = np.full(start.shape[1], np.inf)
    lower[:2], upper[:2] = -LOG_BOUND, LOG_BOUND
    lower[INVERSE_P], upper[INVERSE_P] = MIN_INVERSE_P, MAX_INVERSE_P
    theta, objective = start.copy(), np.full(len(start), np.inf)
    damping = np.full(len(start), 1e-3)
    active = np.arange(len(start))
    loss, residual, square, jacobian = _objective(theta, design, weight)
    objective[:] = loss
    for _ in range(iterations):
        robust = weight[active] / design.variance * (STUDENT_DOF + 1.0) / (STUDENT_DOF + square)
        weighted = jacobian * robust[..., None]
        hessian = np.matmul(weighted.transpose(0, 2, 1), jacobian)
        gradient = -np.matmul(weighted.transpose(0, 2, 1), residual[..., None])[..., 0]
        here = theta[active]
        _add_prior(hessian, gradient, here, design)
        step, promised = _bounded_step(hessian, gradient, here, free[active], lower, upper, damping[active])
        trial = np.clip(here + step, lower, upper)
        loss, new_residual, new_square, new_jacobian = _objective(trial, design, weight[active])
        better = loss <= objective[active]
        theta[active[better]] = trial[better]
        objective[active[better]] = loss[better]
        damping[active] = np.where(better, damping[active] * 0.2, damping[active] * 8.0)
        keep = ~((better & (promised < tolerance)) | (damping[active] > MAX_DAMPING))
        if not keep.any():
            break
        took = better[keep]
        residual = np.where(took[:, None], new_residual[keep], residual[keep])
        square = np.where(took[:, None], new_square[keep], square[keep])
        jacobian = np.where(took[:, None, None], new_jacobian[keep], jacobian[keep])
        active = active[keep]
    return Solution(theta, objective)


def _bounded_step(
    hessian: Floats,
    gradient: Floats,
    theta: Floats,
    free: NDArray[np.bool_],
    lower: Floats,
    upper: Floats,
    damping: Floats,
) -> tuple[Floats, Floats]:
    """Return the damped step (r, p) with parameters at a bound held, and the fall it promises (r,)."""
    held = ~free | ((theta <= lower) & (gradient > 0)) | ((theta >= upper) & (gradient < 0))
    size = theta.shape[1]
    diagonal = np.arange(size)
    gradient = np.where(held, 0.0, gradient)
    system = np.where(held[:, :, None] | held[:, None, :], 0.0, hessian)
    scale = system[:, diagonal, diagonal]
    system[:, diagonal, diagonal] = np.where(held, 1.0, scale * (1.0 + damping[:, None]) + 1e-9)
    step = -np.linalg.solve(system, gradient[..., None])[..., 0]
    return np.asarray(step), -0.5 * (gradient * step).sum(axis=1)
