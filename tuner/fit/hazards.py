"""Posterior draws of the hazard profile, unseen positions included."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tuner.fit.dispersion import Z95
from tuner.fleet import Estimate

if TYPE_CHECKING:
    from tuner.fit.arrays import BoolArray, FloatArray
    from tuner.fit.dispersion import Blocks

WALK_DRIFT = 0.20
"""Standard deviation, in logits per position, of a profile's steady rise or fall. From the published profiles
(SpecDecode-Bench arXiv 2601.11580, vLLM PRs 52992 and 24243, speculators issue 563): step to step the logit
moves by -0.03 on average with standard deviation 0.29, rising through most of EAGLE's and falling through
others', each keeping its direction."""

WALK_STEP = 0.20
"""Standard deviation, in logits, of what a step adds to the drift: sqrt(0.20^2 + 0.20^2) = 0.28, as the
published single steps spread. From 0.81, one position on is 0.71-0.88 at 95 %, six on 0.25-0.98."""

CORRELATION_BLOCKS = 8.0
"""Blocks whose correlation between positions counts as much as the prior one."""

UNKNOWN_LOGIT_SD = 1.5
"""Where no position was measured: 95 % of hazards between 0.05 and 0.95."""


@dataclass(frozen=True, eq=False)
class HazardPosterior:
    """Hazards of P positions in logits; positions that were not measured follow a random walk."""

    mean: FloatArray
    """(P,) mean logit of a measured position."""
    sd: FloatArray
    measured: BoolArray
    root: FloatArray
    """(P, P) lower root of the correlation between positions: requests that go well go well throughout."""
    base: tuple[float, float] = (0.0, UNKNOWN_LOGIT_SD)
    """Mean and standard deviation of the logit that the walk starts from where no position was measured."""

    @classmethod
    def from_beta(
        cls,
        alpha: FloatArray,
        beta: FloatArray,
        measured: BoolArray,
        residual: FloatArray,
        blocks: Blocks,
        dispersion: float,
    ) -> HazardPosterior:
        """Take the logits of Beta(alpha, beta) by position, correlated as the blocks' residuals are.

        Args:
            alpha: (P,) Beta parameter; ignored where not measured.
            beta: (P,) the other.
            measured: (P,).
            residual: (n, P) weighted accepted - hazard * exposed.
            blocks: cluster of each window.
            dispersion: mean dispersion; 1 - 1/dispersion of the variance is shared by all positions.
        """
        from scipy.special import digamma, zeta  # noqa: PLC0415 - costs 0.1 s, not needed to import the package

        safe_alpha, safe_beta = np.where(measured, alpha, 1.0), np.where(measured, beta, 1.0)
        mean = digamma(safe_alpha) - digamma(safe_beta)
        sd = np.sqrt(zeta(2.0, safe_alpha) + zeta(2.0, safe_beta))  # zeta(2, x) is the trigamma function
        size = len(mean)
        shared = 1.0 - 1.0 / max(dispersion, 1.0)
        correlation = np.full((size, size), shared)
        rows = blocks.index >= 0
        if blocks.count > 1 and size > 0:
            sums = np.zeros((blocks.count, size))
            np.add.at(sums, blocks.index[rows], residual[rows])
            norm = np.sqrt((sums**2).sum(axis=0))
            scaled = np.divide(sums, norm, out=np.zeros_like(sums), where=norm > 0)
            trust = blocks.count / (blocks.count + CORRELATION_BLOCKS)
            correlation = trust * (scaled.T @ scaled) + (1 - trust) * correlation
        np.fill_diagonal(correlation, 1.0)
        root: FloatArray = correlation
        if size:
            root = np.asarray(np.linalg.cholesky(correlation + 1e-9 * np.eye(size)), dtype=np.float64)
        return cls(mean, sd, measured, root)

    def starting_from(self, alpha: Estimate) -> HazardPosterior:
        """Return a copy that starts from a single alpha where no position was measured."""
        low, value, high = (math.log(x / (1 - x)) for x in (alpha.low, alpha.value, alpha.high))
        return replace(self, base=(value, (high - low) / (2 * Z95)))

    def draws(self, depth: int, size: int, rng: np.random.Generator) -> FloatArray:
        """Return hazards (size, depth); positions beyond the measured ones walk on from the last of them.

        From generators in the same state a greater depth yields the same first columns.
        """
        count = len(self.mean)
        logits = self.mean + self.sd * (rng.standard_normal((size, count)) @ self.root.T)
        drift = WALK_DRIFT * rng.standard_normal(size)
        known = [i for i in range(count) if self.measured[i]]
        out = np.empty((size, depth))
        last = logits[:, known[0]] if known else self.base[0] + self.base[1] * rng.standard_normal(size)
        steps = WALK_STEP * rng.standard_normal((depth, size)).T
        for i in range(depth):
            if i < count and self.measured[i]:
                last = logits[:, i]
            elif not known or i > known[-1]:
                last = last + drift + steps[:, i]
            else:
                after = next(k for k in known if k > i)
                last = last + (logits[:, after] - last) / (after - i + 1) + steps[:, i]
            out[:, i] = last
        return 1.0 / (1.0 + np.exp(-out))

    def extrapolated(self, position: int) -> Estimate:
        """Return an unseen position's hazard: that of the last measured one, with the walk's spread."""
        known = np.flatnonzero(self.measured[:position])
        if len(known) == 0:
            centre, spread = self.base
        else:
            last = int(known[-1])
            ahead = position - last
            centre = float(self.mean[last])
            spread = float(np.sqrt(self.sd[last] ** 2 + (WALK_DRIFT * ahead) ** 2 + WALK_STEP**2 * ahead))
        low, value, high = 1.0 / (1.0 + np.exp(-(centre + spread * np.array([-Z95, 0.0, Z95]))))
        return Estimate(float(value), float(low), float(high))
