"""Crossover: tokens in flight at which the time per token equals the fixed time of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.fleet import NotEnoughData

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

BELOW = 0.25
ABOVE = 3.0
"""Cells are needed below a quarter and above three times the crossover: between them a curve of any
sharpness looks like a line, and floor, slope and sharpness trade against each other."""
MIN_CELLS_OUTSIDE = 2
"""Cells needed on each side, so that no single cell carries an asymptote."""
MIN_DRAFT_LENS = 2


@dataclass(frozen=True, slots=True)
class Crossover:
    """Where compute time equals the fixed time of a step, in tokens in flight.

    ``tokens`` is (o + m) / c with its 95 % interval; ``excluding_overhead`` is m / c, the figure that
    a roofline of memory and compute alone would give.
    """

    tokens: float
    low: float
    high: float
    excluding_overhead: float | NotEnoughData

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form of the contract."""
        excluding = self.excluding_overhead
        out: dict[str, Any] = {"tokens": self.tokens, "low": self.low, "high": self.high}
        out["excluding_overhead"] = None if isinstance(excluding, NotEnoughData) else excluding
        if isinstance(excluding, NotEnoughData):
            out["excluding_overhead_reason"] = str(excluding)
        return out


def unidentified(tokens: Floats, draft_lens: Floats, crossover: float) -> NotEnoughData | None:
    """Return why cells at ``tokens`` (g,) and ``draft_lens`` (g,) cannot tell the crossover, or None.

    At one draft length the drafter's time and the floor of a step are one number, and windows that do
    not bracket the crossover show only one of the two asymptotes that define it.
    """
    kinds = len(np.unique(np.round(draft_lens)))
    if kinds < MIN_DRAFT_LENS:
        return NotEnoughData(
            "one draft length only: the drafter's time and the floor of a step cannot be told apart",
            have=kinds,
            need=MIN_DRAFT_LENS,
        )
    below = int((tokens < BELOW * crossover).sum())
    if below < MIN_CELLS_OUTSIDE:
        return NotEnoughData(
            f"too few cells below {BELOW * crossover:.0f} tokens in flight, a quarter of where the "
            "crossover would be: windows do not bracket it",
            have=below,
            need=MIN_CELLS_OUTSIDE,
        )
    above = int((tokens > ABOVE * crossover).sum())
    if above < MIN_CELLS_OUTSIDE:
        return NotEnoughData(
            f"too few cells above {ABOVE * crossover:.0f} tokens in flight, three times where the "
            "crossover would be: windows do not bracket it",
            have=above,
            need=MIN_CELLS_OUTSIDE,
        )
    return None
