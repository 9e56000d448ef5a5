"""Goodput tables for tests of single steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tuner.plan.goodput import CellState, GoodputTable
from tuner.plan.proposal import Proposal

if TYPE_CHECKING:
    from collections.abc import Sequence


def table_of(
    speeds: Sequence[Sequence[float]],
    *,
    batches: Sequence[int] = (1, 4, 16, 64),
    draft_lens: Sequence[int] = (0, 1, 2, 3),
    sd: float = 0.01,
    states: Sequence[Sequence[CellState]] | None = None,
) -> GoodputTable:
    """Return a table of measured speeds with one sd for all cells; a speed of 0 is an unknown cell."""
    values = np.array(speeds, dtype=np.float64)
    known = values > 0
    kinds = np.where(known, CellState.MEASURED, CellState.UNKNOWN) if states is None else np.array(states)
    return GoodputTable.from_moments(
        list(batches)[: len(values)],
        list(draft_lens)[: values.shape[1]],
        np.log(np.where(known, values, 1.0)),
        np.full(values.shape, sd),
        kinds.astype(np.int8),
    )


def proposal_of(table: GoodputTable) -> Proposal:
    """Return the proposal with the best known cell at each batch size."""
    return Proposal.start(table).optimised()
