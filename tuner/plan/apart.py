"""How far two schedules lie apart where they are used: in speed, by the newest table, not by their text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tuner.fleet import WindowState
from tuner.plan.goodput import Z95
from tuner.plan.speedup import load_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.fleet import Schedule, Window
    from tuner.plan.goodput import Floats, GoodputTable, Ints

END_OF_TABLE = 1.15
"""Ratio of batch sizes up to which a table that ends is taken to go on: the largest batch seen creeps up by
some percent for hours, and a load within 15 % is the same load to the accuracy of a mean batch."""
NOTHING = -1
"""Draft length where a schedule says nothing."""


def used(table: GoodputTable, windows: Sequence[Window]) -> Floats:
    """Return the share of time that good windows spent at each row of the table, ``(nb,)``; all 0 without."""
    batch, seconds, _ = load_of([window for window in windows if window.state is WindowState.GOOD])
    shares = np.zeros(table.batches.size)
    if not len(batch):
        return shares
    nearest = np.argmin(np.abs(np.log(batch)[:, None] - np.log(table.batches)[None, :]), axis=1)
    np.add.at(shares, nearest, seconds / seconds.sum())
    return shares


def apart(table: GoodputTable, one: Schedule, other: Schedule, shares: Floats) -> float:
    """Return the mean ratio of speed that two schedules differ by, less 1, whichever is the faster.

    Infinite where the difference is not known at a batch size that is used.

    Args:
        table: what is known now.
        one: a schedule.
        other: another.
        shares: ``(nb,)`` time spent at each batch size.
    """
    rows = np.flatnonzero((shares > 0) & (_lens(table, one) != _lens(table, other)))
    ours, theirs = _columns(table, one)[rows], _columns(table, other)[rows]
    if (ours == NOTHING).any() or (theirs == NOTHING).any():
        return math.inf
    ratio = np.abs(table.log_mean[rows, ours] - table.log_mean[rows, theirs])
    return math.expm1(float(shares[rows] @ ratio))


def loses(table: GoodputTable, old: Schedule, new: Schedule, shares: Floats, ratio: float) -> bool:
    """Tell whether ``old`` is slower than ``new`` by more than ``ratio`` at a batch size used, beyond doubt.

    The lower end of the 95 % interval counts. Where a draft length is not known nothing is beyond doubt.
    """
    ours, theirs = _columns(table, old), _columns(table, new)
    known = (shares > 0) & (ours != NOTHING) & (theirs != NOTHING)
    rows = np.flatnonzero(known)
    gain = table.log_mean[rows, theirs[rows]] - table.log_mean[rows, ours[rows]]
    reach = Z95 * table.difference_sd(np.maximum(theirs, 0), np.maximum(ours, 0))[rows]
    return bool((gain - reach > -math.log1p(-ratio)).any())


def _lens(table: GoodputTable, schedule: Schedule) -> Ints:
    """Return the draft length at each row, ``NOTHING`` well beyond the end of the schedule."""
    last = schedule.max_batch
    lens = [
        schedule.draft_len_at(min(batch, last)) if batch <= END_OF_TABLE * last else NOTHING
        for batch in table.batches.tolist()
    ]
    return np.array(lens, dtype=np.int64)


def _columns(table: GoodputTable, schedule: Schedule) -> Ints:
    """Return the column at each row, ``NOTHING`` where the schedule says none or it is not known."""
    lens = _lens(table, schedule)
    columns = np.minimum(np.searchsorted(table.draft_lens, np.maximum(lens, 0)), table.draft_lens.size - 1)
    told = (table.draft_lens[columns] == lens) & table.known[np.arange(lens.size), columns]
    return np.where(told, columns, NOTHING)
