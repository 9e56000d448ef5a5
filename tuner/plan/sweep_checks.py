"""What a sweep shows besides its best cells: cliffs, impossible gains, context conflicts, step times."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tuner.fleet import Finding
from tuner.plan.goodput import CellState
from tuner.plan.sweep_cells import WITHIN_PRIOR_DOF
from tuner.plan.words import listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from tuner.fleet import SweepRow
    from tuner.plan.goodput import Floats, GoodputTable
    from tuner.plan.sweep_cells import Cells, Contexts

CLIFF = 0.5
"""Fall of tokens/s from one measured batch size to the next larger that is called a cliff: throughput at
a larger batch is lower only by queueing or preemption, a few percent; a threshold once cost 232 -> 24
tokens/s (vLLM issue 49548)."""
UNSTEADY = 0.2
"""Spread of the repeats of a cell, largest over smallest, that is worth a finding: ten times the noise of
one run."""
LINE_POINTS = 3
"""Draft lengths above 0 that a line of step times takes: two points always fit."""


class _Cliff(NamedTuple):
    series: str
    from_batch: int
    to_batch: int
    ratio: float


class _Gain(NamedTuple):
    batch: int
    draft_len: int
    ratio: float


class _Conflict(NamedTuple):
    batch: int
    best_by_context: dict[str, int]
    best_of_mix: int


class _Line(NamedTuple):
    batch: int
    context: float | None
    fixed_ms: float
    per_draft_token_ms: float
    worst_residual_ms: float
    no_speculation_ms: float | None
    drafter_fixed_ms: float | None


def check_cells(static: Cells, schedule: Cells) -> list[Finding]:
    """Find cliffs, gains that no acceptance can explain, and cells whose repeats disagree."""
    found = []
    cliffs = _cliffs(static, schedule)
    if cliffs:
        worst = min(cliffs, key=lambda cliff: cliff.ratio)
        message = (
            f"throughput falls by {1 - worst.ratio:.0%} from batch {worst.from_batch} to {worst.to_batch} "
            f"({worst.series}): a cliff, kept as measured; look for a graph, memory or scheduler threshold"
        )
        found.append(
            Finding("cliff", "warning", message, {}, {"cliffs": [cliff._asdict() for cliff in cliffs]})
        )
    impossible = _impossible(static)
    if impossible:
        top = max(impossible, key=lambda cell: cell.ratio)
        message = (
            f"draft length {top.draft_len} is {top.ratio:.3g} times as fast as none at batch {top.batch}, "
            f"but emits at most {top.draft_len + 1} tokens a step: one of the two cells is not what it says; "
            "measure both again"
        )
        evidence = {"cells": [cell._asdict() for cell in impossible]}
        found.append(Finding("implausible_speedup", "warning", message, {}, evidence))
    unsteady = np.flatnonzero(static.spread > UNSTEADY)
    if unsteady.size:
        cells = [[int(static.batch[i]), int(static.draft_len[i]), float(static.spread[i])] for i in unsteady]
        message = (
            f"repeats differ by more than {UNSTEADY:.0%} in {len(cells)} cells, as at batch {cells[0][0]}, "
            f"draft length {cells[0][1]}: the median is used; warm up longer or repeat these"
        )
        found.append(Finding("unsteady_cell", "warning", message, {}, {"cells": cells}))
    return found


def check_noise(cells: Cells) -> list[Finding]:
    """Say where intervals rest on an assumed noise, because next to nothing was run twice."""
    again = int((cells.repeats - 1).sum())
    if not cells.repeats.size or again >= WITHIN_PRIOR_DOF:
        return []
    once = cells.log_sd[cells.repeats == cells.repeats.min()]
    sd = math.expm1(float(once.max()))
    seen = "no cell was measured twice" if again == 0 else f"only {again} rows repeat a cell"
    message = (
        f"{seen}: intervals assume that a cell measured once is off by {100 * sd:.1f} % (1 sd), "
        "which careful benchmarks reach; repeat at least 4 rows to use the noise of yours"
    )
    return [Finding("noise_assumed", "info", message, {}, {"cell_sd_ratio": sd, "repeats": again})]


def _cliffs(static: Cells, schedule: Cells) -> list[_Cliff]:
    """Follow each draft length, the schedule arm, and the best cell of each batch size over the batch."""
    cliffs: list[_Cliff] = []
    for group in np.unique(np.concatenate((static.group, schedule.group))).tolist():
        constant, scheduled = static.select(static.group == group), schedule.select(schedule.group == group)
        for draft_len in np.unique(constant.draft_len).tolist():
            mine = constant.draft_len == draft_len
            cliffs += _falls(constant.batch[mine], constant.log_speed[mine], f"draft length {draft_len}")
        cliffs += _falls(scheduled.batch, scheduled.log_speed, "schedule")
        cliffs += _falls(constant.batch, constant.log_speed, "best draft length")
    return cliffs


def _falls(batch: NDArray[np.int64], log_speed: Floats, series: str) -> list[_Cliff]:
    """Return falls of the fastest cell by more than ``CLIFF`` between neighbouring batch sizes."""
    sizes, place = np.unique(batch, return_inverse=True)
    best = np.full(sizes.size, -np.inf)
    np.maximum.at(best, place, log_speed)
    steps = np.flatnonzero(np.diff(best) < math.log(1 - CLIFF))
    return [
        _Cliff(series, int(sizes[i]), int(sizes[i + 1]), math.exp(best[i + 1] - best[i]))
        for i in steps.tolist()
    ]


def _impossible(static: Cells) -> list[_Gain]:
    """Return cells that beat draft length 0 by more than ``draft_len + 1``, beyond three sd."""
    seen, cells = static.lookup(), []
    for place in np.flatnonzero(static.draft_len > 0).tolist():
        zero = seen.get((int(static.group[place]), 0, int(static.batch[place])))
        if zero is None:
            continue
        draft_len = int(static.draft_len[place])
        gain = float(static.log_speed[place] - static.log_speed[zero])
        noise = 3 * math.hypot(float(static.log_sd[place]), float(static.log_sd[zero]))
        if gain > math.log(draft_len + 1) + noise:
            cells.append(_Gain(int(static.batch[place]), draft_len, math.exp(gain)))
    return cells


def check_contexts(
    table: GoodputTable,
    layers: Sequence[tuple[Floats, Floats, NDArray[np.int8]]],
    contexts: Contexts,
    weights: Floats,
) -> list[Finding]:
    """Find batch sizes at which contexts want different draft lengths.

    A schedule keyed by batch alone cannot serve them all: it is decided by seconds per token of the mix.
    A context disagrees where its own best beats the mix's best by more than two standard deviations.
    """
    conflicts = []
    for row in np.flatnonzero(table.known.sum(axis=1) > 1).tolist():
        mixed = int(np.argmax(table.log_mean[row]))
        wanted: dict[str, int] = {}
        disagree = False
        for (mean, sd, states), centre in zip(layers, contexts.centres, strict=True):
            open_cells = (states[row] > CellState.UNKNOWN) & table.known[row]
            if centre is None or not open_cells[mixed]:
                continue
            best = int(np.argmax(np.where(open_cells, mean[row], -np.inf)))
            wanted[f"{centre:g}"] = int(table.draft_lens[best])
            noise = 2 * math.hypot(float(sd[row, best]), float(sd[row, mixed]))
            disagree |= best != mixed and bool(mean[row, best] - mean[row, mixed] > noise)
        if disagree:
            conflicts.append(_Conflict(int(table.batches[row]), wanted, int(table.draft_lens[mixed])))
    if not conflicts:
        return []
    mix = ", ".join(
        f"{weight:.0%} at {centre:g}"
        for centre, weight in zip(contexts.centres, weights, strict=True)
        if centre is not None
    )
    message = (
        f"contexts want different draft lengths at batch {listed([c.batch for c in conflicts])}: decided by "
        f"milliseconds per token of the mix ({mix}); split the pool by context to serve both"
    )
    evidence = {"conflicts": [conflict._asdict() for conflict in conflicts]}
    return [Finding("context_conflict", "warning", message, {}, evidence)]


def check_step_times(rows: Iterable[SweepRow], contexts: Contexts, groups: Iterable[int]) -> list[Finding]:
    """Fit step time = fixed + slope * draft_len where acceptance length and TPOT were measured.

    A step takes TPOT times acceptance length. The line is fitted over draft lengths above 0: what its
    intercept exceeds the step without speculation by is the fixed cost of having a drafter.
    """
    steps: dict[tuple[int, int], dict[int, list[float]]] = {}
    for row, group in zip(rows, groups, strict=True):
        if row.arm == "schedule" or row.draft_len is None or row.tpot_ms is None:
            continue
        length = 1.0 if row.draft_len == 0 else row.acceptance_length
        if length is not None:
            cell = steps.setdefault((group, row.batch), {}).setdefault(row.draft_len, [])
            cell.append(row.tpot_ms * length)
    lines = [
        line
        for (group, batch), by_len in sorted(steps.items())
        if (line := _line(by_len, batch, contexts.centres[group])) is not None
    ]
    if not lines:
        return []
    first = lines[0]
    message = (
        f"step time at batch {first.batch} is {first.fixed_ms:.2f} + {first.per_draft_token_ms:.3f} "
        f"* draft_len ms (off by at most {first.worst_residual_ms:.2f} ms)"
        + (f", and {len(lines) - 1} more batch sizes in the evidence" if len(lines) > 1 else "")
    )
    return [Finding("step_time_line", "info", message, {}, {"lines": [line._asdict() for line in lines]})]


def _line(by_len: dict[int, list[float]], batch: int, context: float | None) -> _Line | None:
    """Fit one line by least squares over the medians of each draft length."""
    lens = sorted(k for k in by_len if k > 0)
    if len(lens) < LINE_POINTS:
        return None
    x, y = np.array(lens, dtype=np.float64), np.array([np.median(by_len[k]) for k in lens])
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
    fixed = float(y.mean() - slope * x.mean())
    zero = float(np.median(by_len[0])) if 0 in by_len else None
    worst = float(np.abs(y - fixed - slope * x).max())
    return _Line(batch, context, fixed, slope, worst, zero, None if zero is None else fixed - zero)
