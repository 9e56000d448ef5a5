"""How well step time fitted on some windows of a real engine predicts others.

The good windows of each (clients, K) cell of the long recording are split in two: one half is fitted,
the other judged, every way round and for random halves seeded from the commit. Then each load level is
left out as a whole and predicted from the others. Predicted tokens/s of a cell is B E / t at its own
measured batch, prompts and emitted tokens per step, so its error is that of the step time.

Bounds: in every split the median error is at most 5 %, nine of ten cells are within 12 %, and the
crossover lies between 45 and 110 tokens; cells of a level left out are within 15 %, their median at
most 5 %.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np

from bench.recording_regret import cells_of, good_windows, splits
from tuner.fit.crossover import Crossover
from tuner.fit.step_time import StepTimeFit, fit_step_time
from tuner.fit.step_time_check import CellError, judge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tuner.fleet import Window

MEDIAN, NINE_OF_TEN, LEFT_OUT = 0.05, 0.12, 0.15
CROSSOVER = (45.0, 110.0)


def fitted(windows: Sequence[Window]) -> StepTimeFit:
    """Fit windows in order of time.

    Raises:
        RuntimeError: there is no fit.
    """
    fit = fit_step_time(sorted(windows, key=lambda window: window.start))
    if isinstance(fit, StepTimeFit):
        return fit
    raise RuntimeError(f"no step time: {fit}")


def predict_halves(windows: Sequence[Window]) -> dict[str, tuple[StepTimeFit, tuple[CellError, ...]]]:
    """Return, per split, the fit to one half and its errors on the other."""
    cells = cells_of(windows)
    out = {}
    for name, chosen in splits(cells).items():
        pairs = [(w, use) for cell, ws in cells.items() for w, use in zip(ws, chosen[cell], strict=True)]
        fit = fitted([window for window, use in pairs if use])
        out[name] = fit, judge(fit, [window for window, use in pairs if not use])
    return out


def predict_levels(windows: Sequence[Window]) -> dict[int, tuple[StepTimeFit, tuple[CellError, ...]]]:
    """Return, per number of clients left out, the fit to the others and its errors on those."""
    cells = cells_of(windows)
    out = {}
    for level in sorted({cell.clients for cell in cells}):
        fit = fitted([w for cell, ws in cells.items() for w in ws if cell.clients != level])
        out[level] = fit, judge(fit, [w for cell, ws in cells.items() for w in ws if cell.clients == level])
    return out


def off(errors: Sequence[CellError]) -> NDArray[np.float64]:
    """Return the absolute relative errors of tokens/s."""
    return np.abs([cell.error for cell in errors])


def describe(fit: StepTimeFit) -> str:
    """Return one line on a fit."""
    found = fit.crossover
    where = (
        f"{found.tokens:.0f} ({found.low:.0f} to {found.high:.0f})" if isinstance(found, Crossover) else found
    )
    fixed = 1e3 * (fit.overhead_seconds + fit.floor_seconds)
    token = 1e3 * fit.seconds_per_token
    return f"{fixed:.1f} ms + {token:.3f} ms a token, p {fit.sharpness:.2f}, crossover {where}"


def main() -> int:
    """Print the errors of every split and of every level left out; 1 if a bound broke."""
    windows = good_windows()
    broken = False
    for name, (fit, errors) in predict_halves(windows).items():
        e = off(errors)
        ninth = np.quantile(e, 0.9)
        print(f"fitted on {name:<14} median {np.median(e):.1%}  90 % {ninth:.1%}  worst {e.max():.1%}")
        print(f"    {describe(fit)}")
        inside = isinstance(fit.crossover, Crossover) and CROSSOVER[0] <= fit.crossover.tokens <= CROSSOVER[1]
        broken |= bool(np.median(e) > MEDIAN or (e <= NINE_OF_TEN).mean() < 0.9 or not inside)
    together: list[float] = []
    for level, (fit, errors) in predict_levels(windows).items():
        e = off(errors)
        together.extend(e)
        each = "  ".join(f"K={cell.draft_len} {cell.error:+.1%}" for cell in errors)
        print(f"left out {level:>2} clients: {each}")
        print(f"    {describe(fit)}")
    print(f"levels left out: median {np.median(together):.1%}, worst {max(together):.1%}")
    broken |= bool(np.median(together) > MEDIAN or max(together) > LEFT_OUT)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
