"""What measured cells say beyond the curve: log residuals, shrunk by how well they are known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tuner.fit.cells import Cells

    Floats = NDArray[np.float64]

OCTAVE = 0.5
"""Correlation length of residuals in octaves of batch: at twice the batch 14 % of a correction is left."""
SAME_CELL = 0.2
"""Blocks within this distance in octaves (15 % in batch) at one K are measurements of one cell."""
MIN_TAU = 0.01
"""Least between-cell spread: no two-parameter curve describes an engine better than to 1 %."""
FAR = 3.0
"""A residual beyond this many standard deviations is a fact about its cell, not noise: it is shrunk by
its own size and not by what its neighbours would have it be."""


@dataclass(frozen=True, slots=True)
class Correction:
    """Log residuals of measured (batch, K) cells as a field over log2 batch, one per K."""

    log_batch: Floats = field(default_factory=lambda: np.empty(0))
    draft_len: Floats = field(default_factory=lambda: np.empty(0))
    residual: Floats = field(default_factory=lambda: np.empty(0))
    variance: Floats = field(default_factory=lambda: np.empty(0))
    """Sampling variance of each residual."""
    prior: Floats = field(default_factory=lambda: np.empty(0))
    """Standard deviation of the field at each cell."""
    tau: float = 0.0
    """Standard deviation of the field between cells, away from any of them."""

    def mean(self, batch: Floats, draft_len: Floats) -> Floats:
        """Return the expected log correction (n,) at batch (n,) and draft length (n,)."""
        weights, _ = self._weights(batch, draft_len)
        return np.asarray(weights @ self.residual)

    def draws(self, batch: Floats, draft_len: Floats, size: int, rng: np.random.Generator) -> Floats:
        """Draw log corrections (size, n), correlated between neighbouring cells."""
        weights, left = self._weights(batch, draft_len)
        mean = weights @ self.residual
        values, vectors = np.linalg.eigh(left)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        return np.asarray(mean + rng.standard_normal((size, len(mean))) @ root.T)

    def _weights(self, batch: Floats, draft_len: Floats) -> tuple[Floats, Floats]:
        """Return kriging weights (n, g) and the remaining covariance (n, n)."""
        log_batch = np.log2(batch)
        spread = self._spread(log_batch, draft_len)
        prior = _kernel(log_batch, draft_len, log_batch, draft_len) * np.outer(spread, spread)
        if not len(self.residual):
            return np.zeros((len(batch), 0)), prior
        cross = _kernel(log_batch, draft_len, self.log_batch, self.draft_len) * np.outer(spread, self.prior)
        inside = _kernel(self.log_batch, self.draft_len, self.log_batch, self.draft_len)
        inside = inside * np.outer(self.prior, self.prior) + np.diag(self.variance + 1e-12)
        weights = np.linalg.solve(inside, cross.T).T
        return np.asarray(weights), prior - weights @ cross.T

    def _spread(self, log_batch: Floats, draft_len: Floats) -> Floats:
        """Return the field's standard deviation (n,): a cell's own where one was measured, else tau."""
        spread = np.full(len(log_batch), self.tau)
        if len(self.residual):
            distance = np.abs(log_batch[:, None] - self.log_batch[None, :])
            distance[draft_len[:, None] != self.draft_len[None, :]] = np.inf
            nearest = distance.argmin(axis=1)
            close = distance[np.arange(len(log_batch)), nearest] < SAME_CELL
            spread[close] = self.prior[nearest[close]]
        return np.asarray(spread)


def _kernel(batch: Floats, draft_len: Floats, other_batch: Floats, other_draft_len: Floats) -> Floats:
    """Return the correlation (n, g) of residuals: exponential in octaves, none between Ks."""
    distance = np.abs(batch[:, None] - other_batch[None, :])
    return np.asarray(np.exp(-distance / OCTAVE) * (draft_len[:, None] == other_draft_len[None, :]))


def fit_correction(cells: Cells, residual: Floats) -> Correction:
    """Group blocks into (batch, K) cells and find how far cells differ beyond their noise.

    ``tau`` is the moment estimate of a random-effects meta-analysis (DerSimonian and Laird 1986).

    Args:
        cells: the blocks.
        residual: (g,) log of measured over fitted seconds.
    """
    groups = _groups(cells)
    if not groups:
        return Correction(tau=MIN_TAU)
    noise = _repeat_variance(groups, residual, cells.sampling_variance)
    total = cells.sampling_variance + noise
    weight = 1.0 / total
    mean = np.array([np.average(residual[group], weights=weight[group]) for group in groups])
    variance = np.array([1.0 / weight[group].sum() for group in groups])
    tau = max(_between(mean, variance), MIN_TAU)
    prior = np.full(len(groups), tau)
    far = np.abs(mean) > FAR * np.sqrt(tau**2 + variance)
    prior[far] = np.abs(mean[far])
    return Correction(
        log_batch=np.log2([np.average(cells.batch[group], weights=cells.steps[group]) for group in groups]),
        draft_len=np.array([cells.draft_len[group[0]] for group in groups]),
        residual=mean,
        variance=variance,
        prior=prior,
        tau=tau,
    )


def _groups(cells: Cells) -> list[list[int]]:
    """Return indices of pure blocks that measure one (batch, K) cell."""
    order = [i for i in np.lexsort((cells.batch, cells.draft_len)) if cells.pure[i]]
    groups: list[list[int]] = []
    for i in order:
        if groups:
            first = groups[-1][0]
            near = np.log2(cells.batch[i] / cells.batch[first]) < SAME_CELL
            if near and cells.draft_len[i] == cells.draft_len[first]:
                groups[-1].append(int(i))
                continue
        groups.append([int(i)])
    return groups


def _repeat_variance(groups: list[list[int]], residual: Floats, sampling: Floats) -> float:
    """Return the variance between blocks of one cell beyond what their windows explain."""
    deviations: list[float] = []
    freedom = 0
    for group in groups:
        if len(group) > 1:
            centred = residual[group] - np.median(residual[group])
            deviations.extend(centred)
            freedom += len(group) - 1
    if not deviations:
        return 0.0
    scale = 1.4826 * float(np.median(np.abs(deviations))) * np.sqrt(len(deviations) / freedom)
    return max(float(scale**2) - float(np.mean(sampling)), 0.0)


def _between(mean: Floats, variance: Floats) -> float:
    """Return the between-group standard deviation, the groups' true mean being 0."""
    weight = 1.0 / np.maximum(variance, 1e-8)
    excess = float((weight * mean**2).sum()) - len(mean)
    return float(np.sqrt(max(excess, 0.0) / weight.sum()))
