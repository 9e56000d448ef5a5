"""How a step's time divides: a fixed part, a part per token in flight, and the knee between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.fit.crossover import MODEL_ERROR, NORMAL_95, OVERHEAD_TELLS, UNSEEN_BASE, reach
from tuner.fit.curve import (
    BLUNTNESS,
    FIXED,
    FLOOR,
    INVERSE_P,
    MAX_INVERSE_P,
    MIN_INVERSE_P,
    OVERHEAD_PRIOR,
    OVERHEAD_SHARE,
    SLOPE,
)
from tuner.fleet import Estimate, NotEnoughData

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tuner.fit.cells import Cells
    from tuner.fit.step_time_resample import Resamples

    Floats = NDArray[np.float64]

MIN_SPAN = 2.0
"""Least ratio of tokens in flight between the busiest and the emptiest cell. At a ratio of 2 and near the
crossover, two cells known to 2 % tell the time per token to 8 %; at a ratio of 1.2 to 35 %, and then the
prior, not the engine, says how the time divides."""
LARGEST_SHARE = NORMAL_95 * OVERHEAD_PRIOR / (1.0 + NORMAL_95 * OVERHEAD_PRIOR)
"""Share of the fixed time that may be overhead, 0.37, where the curve is too near to a line to tell: the
95 % point of the prior on o/m."""


@dataclass(frozen=True, slots=True)
class Split:
    """The parameters of the curve with their 95 % intervals; seconds, and seconds per token."""

    fixed: Estimate
    """o + m: what a step takes however few tokens it has."""
    floor: Estimate
    """m: the same without the overhead."""
    overhead: Estimate
    per_token: Estimate
    sharpness: Estimate
    """p; infinite for a sharp roofline."""

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form: each parameter with its ends, null for an infinite sharpness."""
        named = {
            "fixed_seconds": self.fixed,
            "floor_seconds": self.floor,
            "overhead_seconds": self.overhead,
            "seconds_per_token": self.per_token,
            "sharpness": self.sharpness,
        }
        values = {
            name + end: getattr(estimate, part)
            for name, estimate in named.items()
            for end, part in (("", "value"), ("_low", "low"), ("_high", "high"))
        }
        return {name: value if np.isfinite(value) else None for name, value in values.items()}


def split(cells: Cells, pair: Floats, resamples: Resamples) -> Split | NotEnoughData:
    """Return the parameters with their intervals, or why the cells do not show how time divides.

    Args:
        cells: the cells.
        pair: (2, p) point parameters, o folded and o free, in seconds and tokens.
        resamples: resampled parameters in seconds and tokens.
    """
    span = float(cells.tokens.max() / cells.tokens.min())
    if span < MIN_SPAN:
        return NotEnoughData(
            "all windows have nearly the same tokens in flight, which shows the time of a step and not how "
            "it divides into a fixed part and a part per token: ratio of the most to the fewest",
            have=round(span, 2),
            need=MIN_SPAN,
        )
    fixed, floor, per_token = (
        np.exp(reach(pair, resamples, place, MODEL_ERROR)) for place in (FIXED, FLOOR, SLOPE)
    )
    if cells.draft_len.min() >= 1:  # a part of what is always there may be the drafter's own
        fixed[0], floor[0] = fixed[0] / (1.0 + UNSEEN_BASE), floor[0] / (1.0 + UNSEEN_BASE)
    share = np.clip(reach(pair, resamples, OVERHEAD_SHARE, MODEL_ERROR), 0.0, 1.0)
    if 1.0 / float(pair[0, INVERSE_P]) < OVERHEAD_TELLS:
        share[0], share[2] = 0.0, max(float(share[2]), LARGEST_SHARE)
        floor[0] = min(float(floor[0]), float(fixed[0]) * (1.0 - LARGEST_SHARE))
    blunt = np.clip(reach(pair, resamples, BLUNTNESS, 0.0), MIN_INVERSE_P, MAX_INVERSE_P)
    sharpness = np.where(blunt <= MIN_INVERSE_P * 1.01, np.inf, 1.0 / blunt)[::-1]
    return Split(*(_estimate(ends) for ends in (fixed, floor, share * fixed[1], per_token, sharpness)))


def _estimate(ends: Floats) -> Estimate:
    low, value, high = ends.tolist()
    return Estimate(value, low, high)
