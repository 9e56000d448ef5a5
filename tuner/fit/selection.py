"""Does the draft length follow the acceptance? Then late positions were measured on chosen steps only.

A schedule picks K by batch size. Where the batch size goes with the kind of traffic, and that with
acceptance, the steps that proposed a late position are not like the others, and what was measured there
says little about them. The sign: acceptance of the *first* position, which every step proposes, changes
with the share of steps that proposed the late one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tuner.fit.dispersion import Z95

if TYPE_CHECKING:
    from tuner.fit.arrays import FloatArray
    from tuner.fit.dispersion import Blocks, RatioSpread
    from tuner.fit.exposure import ExposureTable

HONEST_SHIFT = 0.09
"""How much first-position acceptance moves with K on one and the same traffic: SpecDecode-Bench's EAGLE data
(arXiv 2601.11580) go from .699 to .663, .681 to .594, .661 to .597 and .674 to .630 between K=1 and K=7.
A difference up to the largest of these widens intervals; only what exceeds it is called confounded."""

SIGNIFICANCE = 0.001
"""Two-sided error rate of one confounding test. A fit runs some four of them, so that one honest fit in 250
would be refused if the honest shift were 0; with the shift allowed for, far fewer."""

SOLVED_SD = 0.015
"""Relative standard deviation of a hazard solved from a mix of two draft lengths, beyond its sampling, where
requests differ as :data:`SOLVED_CORRELATION` says. The share w of the longer length stands for its share of
what was accepted so far, as if K and acceptance were independent within a window. Under a schedule they
are not: requests that accept little stay longer, fill the batch and meet the shorter K. Simulated at open
load with acceptance spread by 0.8 in log-odds, the hazard reads 1.5 % low and more windows do not help."""

SOLVED_CORRELATION = 0.10
"""Intraclass correlation of first-position acceptance within a request in that simulation: the variance of
acceptance between requests, (0.8 * 0.16)^2, over 0.8 * 0.2 of a trial."""

SHIFT_SIGNIFICANCE = 0.01
"""Error rate at which a difference between draft lengths is believed and widens a position's interval."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Difference of first-position acceptance between steps with and without the position."""

    position: int
    difference: float
    error: float
    """Standard error of the difference."""
    left_out: float
    """Share of the drafts that did not propose the position."""
    significant: bool = True
    """Beyond what K itself does to acceptance."""
    by: str = "draft length"

    @property
    def excess_variance(self) -> float:
        """What the difference may have done to the hazard, beyond noise, as a variance.

        One squared error is what noise adds to the square of a difference, the second makes up for
        cutting at 0: with no difference at all a quarter of a squared error remains on average.
        """
        return self.left_out**2 * max(0.0, self.difference**2 - 2.0 * self.error**2)

    def __str__(self) -> str:
        """Say the difference in words."""
        return (
            f"first-position acceptance differs by {self.difference:+.2f} with {self.by}, between steps that "
            f"propose position {self.position} and steps that do not"
        )


def find_selection(
    table: ExposureTable,
    position: int,
    weight: FloatArray,
    blocks: Blocks,
    prior_dispersion: float,
    solved: bool,
) -> Selection | None:
    """Regress first-position acceptance on the share of drafts that proposed ``position``.

    Pure windows have share 0 or 1, so this is the difference between draft lengths; windows with a mix of
    two lengths have their w. For a solved position the batch size is tried as well, since within a
    window K follows the batch. ``None`` where the position was proposed always or the share is unknown.

    Args:
        table: exposure of n windows.
        position: the late position, > 0.
        weight: (n,) weight of each window.
        blocks: clusters for the standard error.
        prior_dispersion: least dispersion assumed under 8 blocks.
        solved: whether the position's hazard was solved from mixes.
    """
    share = table.share[:, position]
    known = np.isfinite(share) & (table.exposed[:, 0] > 0) & (weight > 0)
    size = np.where(known, weight * table.exposed[:, 0], 0.0)
    total = float(size.sum())
    if total <= 0:
        return None
    x = np.where(known, share, 0.0)
    left_out = 1.0 - float((size * x).sum()) / total
    if math.isclose(left_out, 0.0, abs_tol=1e-9):
        return None
    by_length = _slope(table, x, size, blocks, prior_dispersion)
    found = Selection(position, 0.0, 0.0, left_out, significant=False)
    if by_length is not None:
        slope, error, critical = by_length
        found = Selection(position, slope, error, left_out, abs(slope) - HONEST_SHIFT > critical * error)
    if solved and not found.significant:
        batch = np.array([window.batch or 0.0 for window in table.windows])
        mixed = known & (batch > 0) & (x > 0) & (x < 1)
        by_batch = _slope(
            table, np.log2(np.maximum(batch, 1e-9)), np.where(mixed, size, 0.0), blocks, prior_dispersion
        )
        if by_batch is not None:
            slope, error, critical = by_batch
            reach = float(np.ptp(np.log2(batch[mixed])))
            if abs(slope) * reach - HONEST_SHIFT > critical * error * reach:
                return Selection(position, slope * reach, error * reach, left_out, by="batch size")
    return found


def _slope(
    table: ExposureTable, x: FloatArray, size: FloatArray, blocks: Blocks, prior_dispersion: float
) -> tuple[float, float, float] | None:
    """Weighted slope of first-position acceptance on x (n,), its standard error and critical t value.

    The error is clustered by block and never below that of independent drafts. Degrees of freedom count
    the blocks that carry the spread of x (Kish), so that one odd block convinces nobody.
    """
    total = float(size.sum())
    if total <= 0:
        return None
    centred = x - float((size * x).sum()) / total
    spread = size * centred**2
    sxx = float(spread.sum())
    # A spread of 1e-4 in w is a rounding of counts, not a mix that varied.
    if sxx <= 1e-8 * total:
        return None
    rate = np.divide(table.accepted[:, 0], table.exposed[:, 0], out=np.zeros_like(x), where=size > 0)
    mean = float((size * rate).sum()) / total
    slope = float((size * centred * rate).sum()) / sxx
    rows = (blocks.index >= 0) & (size > 0)
    score = (size * centred * (rate - mean - slope * centred))[rows]
    index = blocks.index[rows]
    by_block = np.bincount(index, weights=score, minlength=blocks.count)
    carried = np.bincount(index, weights=spread[rows], minlength=blocks.count)
    count = int(np.count_nonzero(carried))
    weight = np.divide(size, table.exposed[:, 0], out=np.zeros_like(x), where=size > 0)
    independent = float((size * weight * centred**2).sum()) * mean * (1 - mean)
    clustered = float((by_block**2).sum()) * count / max(count - 2, 1)
    few = count < 8  # noqa: PLR2004 - see MIN_BLOCKS
    floor = independent * (prior_dispersion if few else 1.0)
    effective = sxx**2 / float((carried**2).sum())
    error = math.sqrt(max(clustered, floor)) / sxx
    return slope, error, _t_quantile(max(effective - 2.0, 1.0), SIGNIFICANCE)


def solved_sd(table: ExposureTable, first: RatioSpread | None) -> float:
    """Return the relative standard deviation that solving a position from mixes adds to it.

    It comes from requests that differ: their intraclass correlation, which the dispersion D of the first
    position tells as (D - 1)/(m - 1) at m drafts a request, scales it. Where that is not told it is taken
    as simulated.

    Args:
        table: exposure of n windows.
        first: what the blocks show of the first position.
    """
    finished = sum(window.counts.finished or 0.0 for window in table.windows)
    if first is None or first.weak or finished <= 0:
        return SOLVED_SD
    steps = float(table.drafts.sum()) / finished
    if steps <= 2:  # noqa: PLR2004 - so short that correlation within a request shows little
        return SOLVED_SD
    correlation = min(1.0, (first.dispersion - 1.0) / (steps - 1.0))
    return SOLVED_SD * math.sqrt(correlation / SOLVED_CORRELATION)


def shift_between_lengths(
    table: ExposureTable, position: int, weight: FloatArray, spread: RatioSpread
) -> float:
    """Variance to add so that a position's interval covers the hazard at every draft length it ran at.

    0 unless the differences pass a test (Cochran's Q) at 1 %: otherwise noise would widen every interval.
    """
    lengths = np.unique(table.draft_len[(table.draft_len > 0) & (table.exposed[:, position] > 0)])
    if len(lengths) < 2:  # noqa: PLR2004 - one length cannot differ from itself
        return 0.0
    from scipy.special import chdtri  # noqa: PLC0415 - costs 0.1 s, not needed to import the package

    at_length = table.draft_len[:, None] == lengths
    exposed = (weight * table.exposed[:, position]) @ at_length
    accepted = (weight * table.accepted[:, position]) @ at_length
    squares = (weight**2 * table.exposed[:, position]) @ at_length
    rates = accepted / exposed
    pooled = float(accepted.sum() / exposed.sum())
    precision = exposed**2 / (max(pooled * (1 - pooled), 1e-9) * spread.dispersion * squares)
    mean = float((precision * rates).sum() / precision.sum())
    heterogeneity = float((precision * (rates - mean) ** 2).sum())
    if heterogeneity < float(chdtri(len(lengths) - 1, SHIFT_SIGNIFICANCE)):
        return 0.0
    return float(np.abs(rates - pooled).max() / Z95) ** 2


def _t_quantile(degrees: float, error: float) -> float:
    from scipy.special import stdtrit  # noqa: PLC0415 - costs 0.1 s, not needed to import the package

    return max(Z95, float(stdtrit(degrees, 1 - error / 2)))
