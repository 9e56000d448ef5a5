"""Hold-out checks: a fit judged on windows that it never saw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tuner.fit.cells import build_cells
from tuner.fit.step_time_correction import group_cells

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.fit.step_time import StepTimeFit
    from tuner.fleet import Window


@dataclass(frozen=True, slots=True)
class CellError:
    """One (batch, K) cell of held-out windows and what was predicted for it."""

    batch: float
    draft_len: int
    windows: int
    measured_seconds: float
    predicted_seconds: float

    @property
    def error(self) -> float:
        """Relative error of predicted tokens/s: emitted tokens are the cell's own, so it is the step's."""
        return self.measured_seconds / self.predicted_seconds - 1.0


def judge(fit: StepTimeFit, windows: Sequence[Window]) -> tuple[CellError, ...]:
    """Compare predictions with the good windows given, at each cell's measured batch and prompts.

    Args:
        fit: a fit to other windows of the same fingerprint.
        windows: held-out windows.
    """
    cells = build_cells(windows)
    out = []
    for group in group_cells(cells):
        steps = cells.steps[group]
        batch, tokens, seconds = (
            float(np.average(values[group], weights=steps))
            for values in (cells.batch, cells.tokens, cells.seconds)
        )
        draft_len = int(cells.draft_len[group[0]])
        context = cells.context[group]
        known = float(np.average(context, weights=steps)) if np.isfinite(context).all() else None
        prompt = max(tokens - batch * (draft_len + 1), 0.0)
        predicted = fit.predict(batch, draft_len, prompt, known).value
        out.append(CellError(batch, draft_len, int(cells.windows[group].sum()), seconds, predicted))
    return tuple(out)
