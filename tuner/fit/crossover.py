"""Crossover: tokens in flight at which the time per token equals the fixed time of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.fit.curve import CROSSOVER, INVERSE_P, LOG_FLOOR, LOG_SLOPE, quantities_of
from tuner.fleet import NotEnoughData

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tuner.fit.cells import Cells
    from tuner.fit.step_time_resample import Resamples

    Floats = NDArray[np.float64]

BELOW = 0.25
ABOVE = 3.0
"""Cells are needed below a quarter and above three times the crossover: between them a curve of any
sharpness looks like a line, and floor, slope and sharpness trade against each other."""
MIN_CELLS_OUTSIDE = 2
"""Cells needed on each side, so that no single cell carries an asymptote."""
MIN_DRAFT_LENS = 2
SHARP = 1.3
"""Below this p of the folded fit the overhead is folded into m for the point estimate: a near-linear
curve has no corner to tell o from m by, and leaving o free only adds noise."""
OVERHEAD_TELLS = 2.0
"""Least p at which m / c without the overhead is given. At p = 1 it is any number below (o + m) / c. At
p = 2 fits of 300 windows with 3 % noise put a true o/m of 0.1 between 0 and 0.26 and m / c within 10 %
(5th to 95th percentile of 60 simulated runs), at p = 4 between 0.06 and 0.17 and within 3 %."""
NORMAL_95 = 1.96
UNSEEN_BASE = 0.18
"""Share of a fixed time measured only with drafting that may be the drafter's own: the largest
published, 8.35 ms with an EAGLE-3 head beside 7.07 ms without (vLLM issue 20780)."""
MODEL_ERROR = 0.01
"""Relative error, 1 sd, of fixed time and of time per token each that no sample size removes: engines
do not follow a curve of four numbers to better than a percent."""


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


def crossover(cells: Cells, pair: Floats, resamples: Resamples) -> Crossover | NotEnoughData:
    """Return the crossover with its interval, or why it cannot be told.

    Args:
        cells: the cells.
        pair: (2, p) point parameters, o folded and o free, in seconds and tokens.
        resamples: resampled parameters in seconds and tokens.
    """
    point = point_of(pair)
    low, value, high = np.exp(reach(pair, resamples, CROSSOVER, np.sqrt(2) * MODEL_ERROR)).tolist()
    if (why := unidentified(cells.tokens, cells.draft_len, value)) is not None:
        return why
    low /= 1.0 if cells.draft_len.min() < 1 else 1.0 + UNSEEN_BASE
    sharpness = 1.0 / float(pair[0, INVERSE_P])
    excluding: float | NotEnoughData = float(np.exp(point[LOG_FLOOR] - point[LOG_SLOPE]))
    if sharpness < OVERHEAD_TELLS:
        reason = "step time is too near to a line to tell overhead from the floor: sharpness"
        excluding = NotEnoughData(reason, have=round(sharpness, 2), need=OVERHEAD_TELLS)
    return Crossover(value, low, high, excluding)


def reach(pair: Floats, resamples: Resamples, place: int, model_error: float) -> Floats:
    """Return (low, point, high) of one quantity of the curve at 95 %.

    The interval is the hull of o folded into m, o free, every shape of the drafter that the cells do not
    rule out, each with o folded and o free, and the point estimate. Data of a blunt knee fit any of them,
    and they then differ by more than each one's own noise. Another shape counts with the noise of the
    fit chosen: its own has no bound where it is all but collinear with the tokens in flight.

    Args:
        pair: (2, p) point parameters, o folded and o free, in seconds and tokens.
        resamples: resampled parameters in seconds and tokens.
        place: place of the quantity, see :func:`tuner.fit.curve.quantities_of`.
        model_error: standard deviation that no sample size removes.
    """
    quantile = _student_95(resamples.freedom)
    value = float(quantities_of(point_of(pair))[place])
    ends = [value]
    drawn = quantities_of(resamples.draws)[:, place]
    for centre, part, implied, rivals in zip(
        resamples.centre,
        np.split(drawn, 2),
        resamples.implied_sd[:, place],
        resamples.rivals,
        strict=True,
    ):
        middles = quantities_of(np.vstack([centre, rivals]))[:, place]
        spread = quantile * float(np.hypot(max(float(np.std(part)), float(implied)), model_error))
        ends += [float(middles.min()) - spread, float(middles.max()) + spread]
    return np.array([min(ends), value, max(ends)])


def _student_95(freedom: int) -> float:
    """Return the 97.5 % point of Student's t: Cornish and Fisher's expansion, 1 % low at 5 freedoms."""
    z = NORMAL_95
    first = (z**3 + z) / (4 * freedom)
    return z + first + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def point_of(pair: Floats) -> Floats:
    """Return the point parameters (p,) of the two fits (2, p): folded where the knee is blunt."""
    return np.asarray(pair[0] if 1.0 / pair[0, INVERSE_P] < SHARP else pair[1])
