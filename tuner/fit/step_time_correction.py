"""What measured cells say beyond the curve: log residuals, shrunk by how well they are known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tuner.fit.curve import STUDENT_DOF

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tuner.fit.cells import Cells

    Floats = NDArray[np.float64]

MEMORY_OCTAVES = 0.5
"""Correlation length of residuals in octaves of batch: at twice the batch 14 % of a correction is left."""
SAME_CELL = 0.2
"""Blocks within this distance in octaves (15 % in batch) at one K are measurements of one cell."""
MIN_TAU = 0.01
"""Least between-cell spread: no curve of four numbers describes an engine to better than 1 %."""
FAR = 3.0
"""A residual beyond this many standard deviations is a fact about its cell where several windows agree,
and is kept whole; of a single window it is an outlier, and is dropped."""
UNSEEN_DRAFT_TOKEN = 0.1
"""Log sd added per draft token beyond the draft lengths seen: a drafter's pass costs about a tenth of
the target's, and nothing seen says whether it costs none or twice that."""


@dataclass(frozen=True, slots=True)
class Correction:
    """Log residuals of measured (batch, K) cells as a field over log2 batch, one field per K."""

    log_batch: Floats = field(default_factory=lambda: np.empty(0))
    draft_len: Floats = field(default_factory=lambda: np.empty(0))
    residual: Floats = field(default_factory=lambda: np.empty(0))
    variance: Floats = field(default_factory=lambda: np.empty(0))
    """Sampling variance of each residual."""
    prior: Floats = field(default_factory=lambda: np.empty(0))
    """Standard deviation of the field at each cell."""
    windows: Floats = field(default_factory=lambda: np.empty(0))
    tau: float = MIN_TAU
    """Standard deviation of the field between cells, away from any of them."""
    seen: tuple[float, float] = (0.0, float("inf"))
    """Smallest and largest draft length seen."""

    def measured(self, batch: Floats, draft_len: Floats) -> NDArray[np.bool_]:
        """Tell whether a cell was measured within 15 % of batch (n,) at draft length (n,)."""
        if not len(self.residual):
            return np.zeros(len(batch), dtype=np.bool_)
        _, distance = self._nearest(np.log2(batch), draft_len)
        return np.asarray(distance < SAME_CELL)

    def mean(self, batch: Floats, draft_len: Floats) -> Floats:
        """Return the expected log correction (n,) at batch (n,) and draft length (n,)."""
        return self.moments(batch, draft_len)[0]

    def moments(self, batch: Floats, draft_len: Floats) -> tuple[Floats, Floats]:
        """Return mean and variance (n,) of the log correction at batch (n,) and draft length (n,).

        Each place has its own, whichever others are asked for. Corrections at two draft lengths are
        independent, since residuals of one say nothing on those of another.
        """
        log_batch = np.log2(batch)
        spread = self._spread(log_batch, draft_len)
        if not len(self.residual):
            return np.zeros(len(batch)), spread**2
        cross = _kernel(log_batch, draft_len, self.log_batch, self.draft_len) * np.outer(spread, self.prior)
        inside = _kernel(self.log_batch, self.draft_len, self.log_batch, self.draft_len)
        inside = inside * np.outer(self.prior, self.prior) + np.diag(self.variance + 1e-12)
        weights = cross @ np.linalg.inv(inside)
        left = np.maximum(spread**2 - (weights * cross).sum(axis=1), 0.0)
        return np.asarray(weights @ self.residual), np.asarray(left)

    def unseen_sd(self, draft_len: Floats) -> Floats:
        """Return the log sd (k,) of time beyond the draft lengths seen: one error, shared by all."""
        beyond = np.maximum(draft_len - self.seen[1], 0) + np.maximum(self.seen[0] - draft_len, 0)
        return np.asarray(UNSEEN_DRAFT_TOKEN * beyond)

    def _spread(self, log_batch: Floats, draft_len: Floats) -> Floats:
        """Return the field's standard deviation (n,): a cell's own where one was measured, else tau."""
        spread = np.full(len(log_batch), self.tau)
        if len(self.residual):
            nearest, distance = self._nearest(log_batch, draft_len)
            close = distance < SAME_CELL
            spread[close] = self.prior[nearest[close]]
        return spread

    def _nearest(self, log_batch: Floats, draft_len: Floats) -> tuple[NDArray[np.intp], Floats]:
        """Return the nearest cell (n,) at the same K and its distance in octaves (n,)."""
        distance = np.abs(log_batch[:, None] - self.log_batch[None, :])
        distance[draft_len[:, None] != self.draft_len[None, :]] = np.inf
        nearest = distance.argmin(axis=1)
        return nearest, distance[np.arange(len(log_batch)), nearest]


def _kernel(batch: Floats, draft_len: Floats, other_batch: Floats, other_draft_len: Floats) -> Floats:
    """Return the correlation (n, g) of residuals: exponential in octaves, none between Ks."""
    distance = np.abs(batch[:, None] - other_batch[None, :])
    same = draft_len[:, None] == other_draft_len[None, :]
    return np.asarray(np.exp(-distance / MEMORY_OCTAVES) * same)


def fit_correction(cells: Cells, residual: Floats) -> Correction:
    """Find how far (batch, K) cells depart from the curve beyond their noise.

    A cell's residual is shrunk by tau^2 / (tau^2 + its variance), tau the spread between cells by the
    moment estimate of a random-effects meta-analysis (DerSimonian and Laird 1986).

    Args:
        cells: the blocks.
        residual: (g,) log of measured over fitted seconds.
    """
    seen = (float(cells.draft_len.min()), float(cells.draft_len.max()))
    groups = group_cells(cells)
    if not groups:
        return Correction(seen=seen)
    total = cells.sampling_variance + _repeat_variance(groups, residual, cells.sampling_variance)
    pairs = [_robust_mean(residual[group], total[group]) for group in groups]
    mean, variance = np.array(pairs).T
    windows = np.array([cells.windows[group].sum() for group in groups])
    tau = max(_between(mean, variance), MIN_TAU)
    far = np.abs(mean) > FAR * np.sqrt(tau**2 + variance)
    prior = np.where(far & (windows > 1), np.abs(mean), tau)
    return Correction(
        log_batch=np.log2([np.average(cells.batch[group], weights=cells.steps[group]) for group in groups]),
        draft_len=np.array([cells.draft_len[group[0]] for group in groups]),
        residual=mean,
        variance=np.where(far & (windows == 1), mean**2, variance),
        prior=prior,
        windows=windows,
        tau=tau,
        seen=seen,
    )


def group_cells(cells: Cells) -> list[list[int]]:
    """Return indices of the pure blocks that measure one (batch, K) cell, by K and then batch."""
    pure = cells.pure
    order = [i for i in np.lexsort((cells.batch, cells.draft_len)) if pure[i]]
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


def _robust_mean(values: Floats, variance: Floats) -> tuple[float, float]:
    """Return the mean and its variance, blocks far off the group's median counting less."""
    if len(values) == 1:
        return float(values[0]), float(variance[0])
    z = (values - np.median(values)) / np.sqrt(variance)
    weight = (STUDENT_DOF + 1) / (STUDENT_DOF + z**2) / variance
    total = float(weight.sum())
    return float(weight @ values) / total, 1 / total


def _repeat_variance(groups: Sequence[list[int]], residual: Floats, sampling: Floats) -> float:
    """Return the variance between blocks of one cell beyond what their windows explain."""
    deviations: list[float] = []
    freedom = 0
    for group in groups:
        if len(group) > 1:
            deviations.extend(residual[group] - np.median(residual[group]))
            freedom += len(group) - 1
    if not deviations:
        return 0.0
    scale = 1.4826 * float(np.median(np.abs(deviations))) * np.sqrt(len(deviations) / freedom)
    return max(float(scale**2) - float(np.mean(sampling)), 0.0)


def _between(mean: Floats, variance: Floats) -> float:
    """Return the between-cell standard deviation, the cells' true mean being 0."""
    weight = 1.0 / np.maximum(variance, 1e-8)
    kept = np.abs(mean) <= FAR * 1.4826 * max(float(np.median(np.abs(mean))), MIN_TAU)
    excess = float((weight * mean**2)[kept].sum()) - int(kept.sum())
    return float(np.sqrt(max(excess, 0.0) / weight[kept].sum()))
