"""Which draft length at each batch size: the best, those as good, and the table that hangs together.

Arrays have one row per batch size, ascending, and one column per draft length, ascending. A choice is
``(nb,)`` of columns, ``UNDECIDED`` where no cell is eligible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tuner.plan.goodput import Bools, Floats, Ints

UNDECIDED = -1


def best_columns(log_mean: Floats, eligible: Bools) -> Ints:
    """Return the eligible column of the highest mean at each batch size, the smallest one of equals."""
    scores = np.where(eligible, log_mean, -np.inf)
    choice = np.argmax(scores, axis=1).astype(np.int64)
    return np.where(eligible.any(axis=1), choice, UNDECIDED)


def within_tie(log_mean: Floats, eligible: Bools, tie: float) -> Bools:
    """Return the eligible cells that reach ``1 - tie`` of the best eligible one at their batch size."""
    scores = np.where(eligible, log_mean, -np.inf)
    best = scores.max(axis=1, keepdims=True, initial=-np.inf)
    near: Bools = scores >= best + np.log1p(-tie) - 1e-12  # 1e-12: an exact tie stays a tie
    return eligible & near


def fewest_rises(sets: Bools) -> Ints:
    """Choose one column of each row's set so that the column rises with the batch as seldom as possible.

    Walking down from the largest batch, each row takes the smallest column of its set that is not below
    the one after it; where there is none, a rise cannot be avoided and the row takes its smallest. The
    smallest column leaves the rows before it the most room, so the walk yields the fewest rises, and
    where a non-increasing table exists the smallest such table, row by row. Rows with an empty set stay
    undecided and bind nothing.
    """
    choice = [UNDECIDED] * len(sets)
    least = 0
    for row in range(len(sets) - 1, -1, -1):
        members = np.flatnonzero(sets[row]).tolist()
        if not members:
            continue
        least = next((column for column in members if column >= least), members[0])
        choice[row] = least
    return np.array(choice, dtype=np.int64)


def most_plausible(penalty: Floats, rise_cost: float) -> Ints:
    """Choose the table of least total penalty, where each rise with the batch costs ``rise_cost``.

    ``penalty`` is ``(nb, nk)``, infinite where not eligible; rows without an eligible cell are skipped
    and stay undecided. Exact, by dynamic programming from the largest batch down; among equals the
    smaller column. With penalties in log-likelihood units this is the maximum a posteriori table under a
    prior that expects the draft length not to rise.
    """
    rows = np.flatnonzero(np.isfinite(penalty).any(axis=1))
    choice = np.full(len(penalty), UNDECIDED, dtype=np.int64)
    if not rows.size:
        return choice
    total = penalty[rows[-1]]
    steps: list[Ints] = []
    columns = np.arange(penalty.shape[1])
    for row in rows[-2::-1]:
        level = np.minimum.accumulate(total)  # cheapest continuation at or below each column
        fell = np.concatenate(([True], level[1:] < level[:-1]))
        first = np.maximum.accumulate(np.where(fell, columns, 0))
        rise = int(np.argmin(total))
        steps.append(np.where(level <= total[rise] + rise_cost, first, rise))
        total = penalty[row] + np.minimum(level, total[rise] + rise_cost)
    column = int(np.argmin(total))
    for row, step in zip(rows, [*reversed(steps), None], strict=True):
        choice[row] = column
        if step is not None:
            column = int(step[column])
    return choice


def rises(choice: Ints) -> Ints:
    """Return the rows whose decided successor has a larger column."""
    decided = np.flatnonzero(choice != UNDECIDED)
    return decided[:-1][np.diff(choice[decided]) > 0] if decided.size > 1 else decided[:0]
