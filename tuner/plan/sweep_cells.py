"""Rows of a sweep to cells: repeats averaged, noise estimated, contexts grouped, holes filled."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tuner._exceptions import SweepError
from tuner.plan.goodput import CellState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tuner.fleet import SweepRow
    from tuner.plan.goodput import Floats, Ints

BETWEEN_SD = 0.01
"""Log sd between runs of one cell that repeats within a run cannot show: clocks, placement, heat. Half of
the 2 % of a single cell, as between-cell noise was about twice within-cell noise over a shared vLLM run."""
WITHIN_SD = 0.0173
"""Log sd of one repeat where there are none to tell: with BETWEEN_SD it makes 2 % for a cell measured
once, the size at which neighbouring draft lengths of published sweeps trade places (SGLang PR 22246)."""
WITHIN_PRIOR_DOF = 4.0
"""Weight of WITHIN_SD against the repeats, in degrees of freedom: five cells of two repeats outvote it."""
ODD_CELL = 1e-4
"""Error rate of taking a cell for unsteady: one sweep of a hundred cells in a hundred has one by chance."""
CONTEXT_FACTOR = 1.5
"""Contexts within this factor are one group: attention costs differ by less than what a cell's noise hides,
and 1.5 is also where a cost fitted at one context counts as extrapolated at another."""
FILLED_SD = 0.03
"""Log sd added to a filled cell per octave of its gap: draft lengths drift apart by 5-10 % per octave of
batch in published tables, and a straight line between two batch sizes misses a bend of a third of that."""
UNANCHORED_SD = 0.1
"""The same where no other draft length was measured at that batch size to follow the bend of the curve."""
MAX_BATCHES = 4096
MAX_DRAFT_LENS = 64
"""Distinct values that a sweep may hold: a schedule has a few ranges, more are raw logs or a wrong column."""


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Averages over the repeats of each cell of one arm, sorted by group, draft length, batch."""

    group: Ints
    """Index of the context group."""
    draft_len: Ints
    """-1 where a schedule row does not tell."""
    batch: Ints
    log_speed: Floats
    log_sd: Floats
    repeats: Ints
    spread: Floats
    """Largest over smallest repeat, minus 1."""

    def select(self, keep: NDArray[np.bool_]) -> Cells:
        """Return some of the cells."""
        return Cells(*(getattr(self, name)[keep] for name in Cells.__slots__))

    def lookup(self) -> dict[tuple[int, int, int], int]:
        """Return ``(group, draft_len, batch)`` -> index."""
        keys = zip(self.group.tolist(), self.draft_len.tolist(), self.batch.tolist(), strict=True)
        return {key: place for place, key in enumerate(keys)}


@dataclass(frozen=True, slots=True)
class Contexts:
    """How the contexts of a sweep fall into groups."""

    centres: tuple[float | None, ...]
    """Geometric mean context of each group, ``None`` for rows that state none."""
    spans: tuple[tuple[float, float], ...]
    """Smallest and largest context of each group, none for rows that state none."""
    unstated: int
    """Rows without a context in a sweep that has some: left out."""


def group_contexts(contexts: Sequence[float | None]) -> tuple[Ints, Contexts]:
    """Return the group of each row, -1 where it is left out, and the groups.

    A group starts at the smallest context not yet covered and takes all within ``CONTEXT_FACTOR`` of it.
    """
    values = np.array([math.nan if value is None else value for value in contexts], dtype=np.float64)
    stated = np.isfinite(values)
    if not stated.any():
        return np.zeros(values.size, dtype=np.int64), Contexts((None,), (), 0)
    starts: list[float] = []
    for value in np.unique(values[stated]).tolist():
        if not starts or value > CONTEXT_FACTOR * starts[-1]:
            starts.append(value)
    group = np.where(stated, np.searchsorted(starts, np.nan_to_num(values), side="right") - 1, -1)
    centres = tuple(float(np.exp(np.log(values[group == place]).mean())) for place in range(len(starts)))
    spans = tuple(
        (float(values[group == place].min()), float(values[group == place].max()))
        for place in range(len(starts))
    )
    return group.astype(np.int64), Contexts(centres, spans, int((~stated).sum()))


def average(rows: Sequence[SweepRow], group: Ints, within_sd: float | None = None) -> tuple[Cells, float]:
    """Average the repeats of each cell: medians of log speed, so that one stalled run moves nothing.

    Args:
        rows: rows of one arm.
        group: context group per row.
        within_sd: sd of one repeat, ``None`` to estimate it from the repeats, pooled over cells.

    Returns:
        The cells, and the sd of one repeat that was used.

    Raises:
        SweepError: more distinct batch sizes or draft lengths than any schedule could use.
    """
    batch = np.array([row.batch for row in rows], dtype=np.int64)
    draft_len = np.array([-1 if row.draft_len is None else row.draft_len for row in rows], dtype=np.int64)
    speed = np.log(np.array([row.tokens_per_second for row in rows], dtype=np.float64))
    for values, most, what in (
        (batch, MAX_BATCHES, "batch sizes"),
        (draft_len, MAX_DRAFT_LENS, "draft lengths"),
    ):
        if (count := np.unique(values).size) > most:
            raise SweepError(
                f"the sweep has {count} different {what}, more than {most}: is this a raw log? bin it"
            )
    order = np.lexsort((speed, batch, draft_len, group))
    keys = np.stack((group, draft_len, batch))[:, order]
    speed = speed[order]
    first = np.flatnonzero(np.any(np.diff(keys, axis=1, prepend=keys[:, :1] - 1) != 0, axis=0))
    repeats = np.diff(np.append(first, speed.size))
    low, high = first + (repeats - 1) // 2, first + repeats // 2
    median = (speed[low] + speed[high]) / 2 if speed.size else speed
    pooled, each = _noise(speed, first, repeats)
    if within_sd is None:
        within_sd = pooled
    within = np.maximum(within_sd, np.where(each > pooled, each, 0.0))
    sd = np.sqrt(BETWEEN_SD**2 + within**2 / np.maximum(repeats, 1))
    spread = np.expm1(speed[first + repeats - 1] - speed[first]) if speed.size else speed
    return Cells(keys[0, first], keys[1, first], keys[2, first], median, sd, repeats, spread), within_sd


def _noise(speed: Floats, first: Ints, repeats: Ints) -> tuple[float, Floats]:
    """Return the sd of one repeat, pooled over cells, and that of each cell.

    Pooled variances are shrunk towards ``WITHIN_SD``. A cell whose repeats differ far more than those of
    all others (an F test of it against them) keeps its own sd and tells nothing of theirs: one failed run
    says that its cell is unsteady, not that the machine is.
    """
    if not speed.size:
        return WITHIN_SD, np.zeros(0)
    from scipy.special import fdtrc  # noqa: PLC0415 - costs 0.1 s, not needed to import the package

    mean = np.add.reduceat(speed, first) / repeats
    squares = np.add.reduceat((speed - np.repeat(mean, repeats)) ** 2, first)
    dof = (repeats - 1).astype(np.float64)
    steady = np.ones(first.size, dtype=np.bool_)
    while True:
        total = WITHIN_PRIOR_DOF * WITHIN_SD**2 + float(squares[steady].sum())
        free = WITHIN_PRIOR_DOF + float(dof[steady].sum())
        own = np.where(steady & (dof > 0), squares / np.maximum(dof, 1.0), 0.0)
        others = (total - np.where(steady, squares, 0.0)) / (free - np.where(steady, dof, 0.0))
        odd = steady & (dof > 0)
        odd[odd] = fdtrc(dof[odd], free - dof[odd], own[odd] / others[odd]) < ODD_CELL
        if not odd.any():
            break
        steady[np.argmax(np.where(odd, own / others, 0.0))] = False
    pooled = math.sqrt(total / free)
    alone = np.sqrt(squares / np.maximum(dof, 1.0))
    return pooled, np.where(steady, pooled, np.maximum(alone, pooled))


def grid(cells: Cells, batches: Ints, draft_lens: Ints) -> tuple[Floats, Floats, NDArray[np.int8]]:
    """Return mean, sd and state, each ``(nb, nk)``, of the cells of one context group.

    A cell that is missing between two measured batch sizes of its draft length is filled: its distance
    to each draft length measured at all three is interpolated in log batch, so that the curve's bend is
    taken from those. Cells outside the measured batch sizes of their draft length stay unknown.
    """
    shape = (batches.size, draft_lens.size)
    mean, sd = np.zeros(shape), np.zeros(shape)
    states = np.full(shape, CellState.UNKNOWN, dtype=np.int8)
    at = (np.searchsorted(batches, cells.batch), np.searchsorted(draft_lens, cells.draft_len))
    mean[at], sd[at], states[at] = cells.log_speed, cells.log_sd, CellState.MEASURED
    measured = states == CellState.MEASURED
    for column in range(draft_lens.size):
        rows = np.flatnonzero(measured[:, column])
        holes = [row for row in range(rows[0], rows[-1]) if not measured[row, column]] if rows.size else []
        for row in holes:
            place = int(np.searchsorted(rows, row))
            span = (int(rows[place - 1]), row, int(rows[place]))
            mean[row, column], sd[row, column] = _fill(mean, sd, measured, batches, span, column)
            states[row, column] = CellState.INTERPOLATED
    return mean, sd, states


def _fill(
    mean: Floats,
    sd: Floats,
    measured: NDArray[np.bool_],
    batches: Ints,
    span: tuple[int, int, int],
    column: int,
) -> tuple[float, float]:
    """Return mean and sd of a missing cell at ``span[1]`` between two measured ones of its column."""
    left, row, right = span
    octaves = math.log2(batches[right] / batches[left])
    share = math.log2(batches[row] / batches[left]) / octaves
    anchors = measured[[left, row, right]].all(axis=0)
    here = (1 - share) * mean[left] + share * mean[right]
    value = float(here[column])
    extra = UNANCHORED_SD
    if anchors.any():
        value += float((mean[row] - here)[anchors].mean())
        extra = FILLED_SD
    variance = (1 - share) * sd[left, column] ** 2 + share * sd[right, column] ** 2
    return value, math.sqrt(variance + (extra * octaves / 2) ** 2)
