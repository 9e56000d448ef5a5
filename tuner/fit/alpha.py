"""The single alpha: one acceptance for all positions, as the closed formulas of theory want it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tuner.fit.dispersion import Z95, assign_blocks, cap_factors, mean_request_seconds, ratio_spread
from tuner.fleet import Estimate, NotEnoughData

if TYPE_CHECKING:
    from tuner.fit.acceptance_positions import PositionsFit
    from tuner.fit.arrays import FloatArray
    from tuner.fit.exposure import ExposureTable

BISECTIONS = 50
"""Halvings of [0, 1]: 2^-50 = 9e-16, the spacing of doubles near 1 being 1e-16."""


def fit_alpha(table: ExposureTable, fitted: PositionsFit, forgetting: FloatArray) -> Estimate | NotEnoughData:
    """Fit one acceptance to all measured positions.

    The likelihood of a geometric run cut off at K is that of one Bernoulli trial per exposed position, so
    its maximum is all acceptances over all exposures. Engines that tell totals only: the root of
    ``sum over windows of drafts * (alpha + ... + alpha^K) = accepted`` (a moment estimate).
    """
    accepted = (fitted.weights * table.accepted).sum(axis=1)
    exposed = (fitted.weights * table.exposed).sum(axis=1)
    members = exposed > 0
    if not members.any():
        return _from_totals(table, forgetting, fitted.prior_dispersion)
    blocks = assign_blocks(table.engine, table.seconds, members, mean_request_seconds(table))
    spread = ratio_spread(accepted, exposed, fitted.noise.sum(axis=1), blocks, fitted.prior_dispersion)
    return _estimate(spread.ratio, spread.variance)


def _from_totals(
    table: ExposureTable, forgetting: FloatArray, prior_dispersion: float
) -> Estimate | NotEnoughData:
    taken = np.array([window.counts.accepted for window in table.windows], dtype=float)
    usable = (table.draft_len > 0) & np.isfinite(taken)
    if not usable.any():
        return NotEnoughData("no window tells acceptance by position, or totals at one draft length")
    drafts = np.where(usable, table.drafts, 0.0)
    weight = forgetting * cap_factors(drafts)
    taken = np.where(usable, taken, 0.0)
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if float((weight * (taken - drafts * _mean_accepted(middle, table))).sum()) > 0:
            low = middle
        else:
            high = middle
    alpha = (low + high) / 2
    step = 1e-5
    inner = min(max(alpha, step), 1 - step)
    slope = (_mean_accepted(inner + step, table) - _mean_accepted(inner - step, table)) / (2 * step)
    # Near the root accepted - drafts * mean(alpha) moves by -drafts * slope per unit of alpha: a ratio again.
    exposed = drafts * slope
    residual = taken - drafts * _mean_accepted(alpha, table)
    blocks = assign_blocks(table.engine, table.seconds, usable, mean_request_seconds(table))
    noise = weight**2 * drafts * _variance_accepted(inner, table)
    spread = ratio_spread(
        weight * (residual + alpha * exposed), weight * exposed, noise, blocks, prior_dispersion
    )
    return _estimate(spread.ratio, spread.variance)


def _powers(alpha: float, table: ExposureTable) -> FloatArray:
    """Survival alpha^(i+1) per window and position (n, K), 0 beyond the window's draft length."""
    order = np.arange(1, int(table.draft_len.max()) + 1)
    return np.where(order <= table.draft_len[:, None], alpha**order, 0.0)


def _mean_accepted(alpha: float, table: ExposureTable) -> FloatArray:
    return np.asarray(_powers(alpha, table).sum(axis=1), dtype=np.float64)


def _variance_accepted(alpha: float, table: ExposureTable) -> FloatArray:
    """Variance of the accepted count (n,): E[a^2] is the sum of (2j - 1) P(a >= j)."""
    survival = _powers(alpha, table)
    square = survival @ (2.0 * np.arange(1, survival.shape[1] + 1) - 1.0)
    return np.asarray(square - survival.sum(axis=1) ** 2, dtype=np.float64)


def _estimate(value: float, variance: float) -> Estimate:
    from scipy.special import betaincinv  # noqa: PLC0415 - costs 0.1 s, not needed to import the package

    inner = min(max(value, 1e-6), 1 - 1e-6)
    trials = max(inner * (1 - inner) / variance, 1e-3) if variance > 0 else 1 / Z95**2
    a, b = trials * inner + 0.5, trials * (1 - inner) + 0.5
    low, high = float(betaincinv(a, b, 0.025)), float(betaincinv(a, b, 0.975))
    return Estimate(value, min(low, value), max(high, value))
