"""Blocks of windows as clusters, and the over-dispersion of acceptance between them.

Tokens of one request are accepted or rejected together more often than chance has it, and requests
differ. An interval that counts every draft as an independent trial covers 36-80 % instead of 95 %.
The independent unit here is a *block*: consecutive windows of one engine that span several request
durations, so that few requests reach from one block into the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tuner.fit.arrays import BoolArray, FloatArray, IntArray
    from tuner.fit.exposure import ExposureTable

BLOCK_DURATIONS = 4.0
"""Least length of a block in mean request durations. Requests that reach across a block's edge hide
variance: 1/3 of a duration per block for equal durations, a whole one for exponential durations. At 4
durations the standard error is 4 % and 13 % too small; :func:`ratio_spread` adds the latter back."""

MAX_BLOCKS = 32
"""Longer blocks are cleaner clusters, more blocks estimate the variance better: at 32 the t quantile is
2.04 against 1.96 at infinity, so a finer cut could win 4 % of an interval at most."""

SKEWNESS_ALLOWANCE = 1.04
"""Factor on the between-block variance. Sums over blocks with a few dozen unequal requests are not normal:
t intervals cover 94.8 % of simulated truths with 25 blocks for 95 % promised; 2 % of width repair it."""

MIN_BLOCKS = 8
"""Fewer blocks than this cannot carry a variance estimate alone: at 7 degrees of freedom the estimated
standard error itself is off by a quarter (one sigma)."""

DEFAULT_DISPERSION = 3.0
"""Dispersion where neither the blocks nor the pool tell: requests of 50 steps whose acceptance differs by
an intraclass correlation of 0.04 give 1 + 49 * 0.04 = 2.96."""

REQUEST_CORRELATION = 0.06
"""Intraclass correlation of acceptance within a request. Mean acceptance lengths per request of
SpecDecode-Bench (arXiv 2601.11580; p5 1.78, p95 3.64 on ShareGPT, 2.32 and 3.48 on GSM8K) are a spread of
acceptance between requests of 0.10 and 0.04 beyond sampling, so 0.04 and 0.01 on one data set; several
kinds of traffic make it more. Scales the default up where requests are long: 60 steps a request give 8."""

LENGTH_BIAS = 2.0
"""A step belongs to a request longer than the mean by this factor, if lengths are exponential."""

PRIOR_DEGREES = 4.0
"""What the default dispersion counts for beside the estimate of fewer than 8 blocks, in degrees of freedom:
about the precision that 5 blocks would have."""

MAX_WINDOW_WEIGHT = 0.05
"""No window counts for more than this share of a position's exposure, a load test included."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """Which block each window belongs to."""

    index: IntArray
    """(n,) number of the block, -1 for windows that take no part."""
    count: int
    durations: float
    """Mean length of a block in mean request durations; infinite where durations are not known."""


@dataclass(frozen=True)
class RatioSpread:
    """A ratio of sums with the variance that the blocks show."""

    ratio: float
    variance: float
    """Of the ratio, in the scale of a normal interval: the t quantile is already folded in."""
    dispersion: float
    degrees: float
    blocks: int

    @property
    def weak(self) -> bool:
        """Fewer blocks than a variance estimate needs, so a default took part."""
        return self.blocks < MIN_BLOCKS


def mean_request_seconds(table: ExposureTable) -> float | None:
    """Return the mean end-to-end seconds of the requests that ended, ``None`` if not told or none ended."""
    finished = sum(window.counts.finished or 0.0 for window in table.windows)
    seconds = sum(window.counts.request_seconds or 0.0 for window in table.windows)
    return seconds / finished if finished > 0 and seconds > 0 else None


def default_dispersion(table: ExposureTable) -> float:
    """Dispersion to assume before any block is compared: 3, more where requests are long.

    The length of a request is its drafts. Where no request ended, all drafts are taken as one request
    per member of the batch.
    """
    drafts = float(table.drafts.sum())
    finished = sum(window.counts.finished or 0.0 for window in table.windows)
    if finished > 0:
        length = LENGTH_BIAS * drafts / finished
    else:
        batches = [window.batch for window in table.windows if window.batch]
        length = drafts / max(1.0, sum(batches) / len(batches)) if batches else 0.0
    return max(DEFAULT_DISPERSION, 1.0 + REQUEST_CORRELATION * (length - 1.0))


def assign_blocks(
    engine: IntArray, seconds: FloatArray, members: BoolArray, request_seconds: float | None
) -> Blocks:
    """Cut the windows of each engine, in order of time, into blocks of at least 4 request durations.

    Args:
        engine: (n,) engine number, ascending; windows of an engine in order of time.
        seconds: (n,) length of each window.
        members: (n,) windows that take part; the others are skipped, not counted as time.
        request_seconds: mean duration of a request; ``None`` makes an engine's windows one block each
            only through the cap on their number.
    """
    index = np.full(len(engine), -1, dtype=np.int64)
    span = float(seconds[members].sum())
    if span <= 0:  # windows without length: nothing tells them apart
        index[members] = 0
        return Blocks(index, 1, math.inf)
    need = max(BLOCK_DURATIONS * (request_seconds or 0.0), span / MAX_BLOCKS)
    need *= 1 - 1e-9  # windows of equal length must not miss the target by a rounding error
    block, filled, first, current = -1, math.inf, 0, -1
    rows = np.flatnonzero(members)
    for row, number, length in zip(rows.tolist(), engine[rows].tolist(), seconds[rows].tolist(), strict=True):
        if number != current:
            block = _close(index, block, first, filled < need)
            current, first, filled = number, block + 1, math.inf
        if filled >= need:
            block, filled = block + 1, 0.0
        index[row] = block
        filled += length
    block = _close(index, block, first, filled < need)
    count = block + 1
    durations = span / count / request_seconds if request_seconds else math.inf
    return Blocks(index, count, durations)


def _close(index: IntArray, block: int, first: int, short: bool) -> int:
    """Merge an engine's last block into the one before it where it is too short; return the last block."""
    if short and block > first:
        index[index == block] = block - 1
        return block - 1
    return block


def cap_factors(exposed: FloatArray) -> FloatArray:
    """Return factors (n,) in (0, 1] after which no window holds more than 5 % of the sum of ``exposed``.

    With 20 windows or fewer 5 % cannot be had; there the cap is twice an equal share.
    """
    count = int(np.count_nonzero(exposed))
    share = MAX_WINDOW_WEIGHT if count * MAX_WINDOW_WEIGHT > 1 else min(1.0, 2.0 / max(count, 1))
    total = float(exposed.sum())
    if count == 0 or share >= 1 or float(exposed.max()) <= share * total:
        return np.ones_like(exposed)
    ordered = np.sort(exposed)[::-1]
    rest = total
    for capped in range(1, count):
        rest -= float(ordered[capped - 1])
        cap = share * rest / (1 - share * capped)
        if share * capped < 1 and ordered[capped] <= cap:
            return np.minimum(1.0, cap / np.maximum(exposed, 1e-300))
    return np.ones_like(exposed)


def ratio_spread(
    accepted: FloatArray, exposed: FloatArray, noise: FloatArray, blocks: Blocks, prior_dispersion: float
) -> RatioSpread:
    """Estimate ``sum(accepted) / sum(exposed)`` and its variance with blocks as clusters.

    The dispersion is the between-block variance over the variance that independent trials would have.
    With fewer than 8 blocks it is averaged with ``prior_dispersion``. It comes multiplied by (t/1.96)^2
    for blocks-1 degrees of freedom, blocks counted by Kish's effective number where they differ in
    size, and is never below 1.

    Args:
        accepted: (n,) weighted acceptances.
        exposed: (n,) weighted exposures, not all 0.
        noise: (n,) variance of ``accepted - ratio * exposed`` if trials were independent.
        blocks: cluster of each window.
        prior_dispersion: dispersion to lean on where blocks are few.
    """
    total = float(exposed.sum())
    ratio = float(accepted.sum()) / total
    rows = blocks.index >= 0
    index = blocks.index[rows]
    by_block = np.bincount(index, weights=exposed[rows], minlength=blocks.count)
    residual = np.bincount(index, weights=(accepted - ratio * exposed)[rows], minlength=blocks.count)
    count = int(np.count_nonzero(by_block))
    effective = total**2 / float((by_block**2).sum())
    floor = float(noise.sum())
    comparable = count > 1 and floor > 0
    raw = float((residual**2).sum()) * count / (count - 1) / floor if comparable else 1.0
    if blocks.durations > 1:
        raw = 1.0 + (raw - 1.0) / (1.0 - 1.0 / max(blocks.durations, BLOCK_DURATIONS))
    degrees = max(effective - 1.0, 0.0) if count > 1 else 0.0
    if count < MIN_BLOCKS:
        raw = (PRIOR_DEGREES * prior_dispersion + degrees * raw) / (PRIOR_DEGREES + degrees)
        degrees += PRIOR_DEGREES
    # The floor of independent trials is known, not estimated: it needs no t quantile.
    variance = max(1.0, SKEWNESS_ALLOWANCE * raw * t_inflation(degrees)) * floor / total**2
    return RatioSpread(ratio, variance, max(1.0, raw), degrees, count)


def t_inflation(degrees: float) -> float:
    """Return (t/z)^2: how much wider a Student interval at 95 % is than a normal one, as a variance."""
    from scipy.special import stdtrit  # noqa: PLC0415 - costs 0.1 s, not needed to import the package

    return float(stdtrit(max(degrees, 1.0), 0.975) / Z95) ** 2


Z95 = 1.959963984540054
"""97.5 % quantile of the normal distribution."""
