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
    """Compare predictions with held-out good windows, cell by cell.

    A prediction is made at the cell's measured batch, prompts and context, and at the speed that its
    engine had at the time, as far as the windows fitted tell that.

    Args:
        fit: a fit to other windows of the same fingerprint.
        windows: held-out windows.
    """
    cells = build_cells(windows)
    out = []
    for group in group_cells(cells):
        steps = cells.steps[group]
        total = float(steps.sum())
        batch, tokens, seconds, context = (
            float(values[group] @ steps) / total
            for values in (cells.batch, cells.tokens, cells.seconds, cells.context)
        )
        draft_len = int(cells.draft_len[group[0]])
        prompt = max(tokens - batch * (draft_len + 1), 0.0)
        known = context if np.isfinite(context) else None
        forecasts = [
            fit.predict(batch, draft_len, prompt, known, engine=cells.engine[i], at=cells.time[i]).value
            for i in group
        ]
        predicted = float(np.array(forecasts) @ steps) / total
        out.append(CellError(batch, draft_len, int(cells.windows[group].sum()), seconds, predicted))
    return tuple(out)
