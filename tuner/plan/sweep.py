"""A benchmark sweep to a goodput table.

Cells are averaged over repeats, missing ones between measured batch sizes are filled, and contexts are
mixed by seconds per token. Rows of arm ``schedule`` never enter a cell: they tell what running a
schedule costs. Nothing is claimed beyond the batch sizes and draft lengths that were measured.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tuner._exceptions import InputError
from tuner.fleet import Finding
from tuner.plan.goodput import CellState, GoodputTable
from tuner.plan.options import are_shares
from tuner.plan.sweep_arms import compare_arms
from tuner.plan.sweep_cells import Cells, Contexts, average, grid, group_contexts
from tuner.plan.sweep_checks import check_cells, check_contexts, check_noise, check_step_times
from tuner.plan.words import listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from tuner.fleet import SweepRow
    from tuner.plan.goodput import Bools, Floats, Ints

SHARES_OFF = 0.01
"""How far shares may be from adding up: thirds written to two digits sum to 0.99."""


def from_sweep(
    rows: Iterable[SweepRow], *, context_weights: Mapping[float, float] | None = None
) -> GoodputTable:
    """Build a goodput table from the rows of a sweep; what was odd is in its ``findings``.

    Args:
        rows: the sweep, in any order. Cells are tokens per second of the whole batch.
        context_weights: context tokens -> share of the output tokens made there, for sweeps over
            contexts. Each is a context of the sweep, or lies
            between those taken for one, and shares sum to 1, or to 100 as percentages, to
            within 1 %; a context left out has none. Equal shares by default.

    Returns:
        A table over the measured batch sizes, empty where no row ran a constant draft length.

    Raises:
        InputError: a share is negative, shares do not add up, or the sweep has no such context.
        SweepError: more distinct batch sizes or draft lengths than a schedule could use.
    """
    everything = list(rows)
    group, contexts = group_contexts([row.context for row in everything])
    usable = [(row, int(place)) for row, place in zip(everything, group, strict=True) if place >= 0]
    arms: dict[str, Cells] = {}
    within: float | None = None
    for arm in ("static", "none", "schedule"):
        mine = [(row, place) for row, place in usable if row.arm == arm]
        groups = np.array([place for _, place in mine], dtype=np.int64)
        arms[arm], noise = average([row for row, _ in mine], groups, within)
        within = noise if within is None and mine else within
    cells = _with_none_arm(arms["static"], arms["none"])
    batches, draft_lens = np.unique(cells.batch), np.unique(cells.draft_len)
    layers = [
        grid(cells.select(cells.group == place), batches, draft_lens)
        for place in range(len(contexts.centres))
    ]
    weights = _group_weights(contexts, context_weights)
    table = _mix(batches, draft_lens, layers, weights)
    arm_findings, factor = compare_arms(cells, arms["none"], arms["schedule"], batches)
    findings = (
        *_missing_findings(table, contexts),
        *check_noise(cells),
        *check_cells(cells, arms["schedule"]),
        *arm_findings,
        *check_contexts(table, layers, contexts, weights),
        *check_step_times([row for row, _ in usable], contexts, [place for _, place in usable]),
    )
    return replace(table, schedule_factor=factor, findings=findings)


def _with_none_arm(static: Cells, none: Cells) -> Cells:
    """Take an engine without a drafter for draft length 0 where no constant 0 was measured."""
    seen = static.lookup()
    keys = zip(none.group.tolist(), none.draft_len.tolist(), none.batch.tolist(), strict=True)
    new = np.array([key not in seen for key in keys], dtype=np.bool_)
    extra = none.select(new)
    merged = {name: np.concatenate((getattr(static, name), getattr(extra, name))) for name in Cells.__slots__}
    order = np.lexsort((merged["batch"], merged["draft_len"], merged["group"]))
    return Cells(**{name: values[order] for name, values in merged.items()})


def _group_weights(contexts: Contexts, given: Mapping[float, float] | None) -> Floats:
    """Return the share of tokens of each context group.

    Nothing is guessed: a share of a context that was not measured would be served by another one's
    numbers, and shares that do not add up are more often a slip than an intention.
    """
    shares = np.zeros(len(contexts.centres))
    if given is None:
        return np.full(shares.size, 1 / shares.size)
    if not are_shares(given.values()):
        raise InputError("context mix: give shares, none below 0 and at least one above, such as 0.7")
    total = sum(given.values())
    if all(abs(total / whole - 1.0) > SHARES_OFF + 1e-9 for whole in (1.0, 100.0)):
        raise InputError(
            f"context mix: shares sum to {total:g}: make them sum to 1, or to 100 as percentages"
        )
    for context, share in given.items():
        places = [place for place, (low, high) in enumerate(contexts.spans) if low <= context <= high]
        if not places:
            named = (f"{low:g}" if low == high else f"{low:g} to {high:g}" for low, high in contexts.spans)
            there = ", ".join(named) or "none: add a context column"
            raise InputError(f"context mix: the sweep has no context {context:g}; it has {there}")
        shares[places[0]] += share
    weights: Floats = shares / shares.sum()
    return weights


def _mix(
    batches: Ints, draft_lens: Ints, layers: list[tuple[Floats, Floats, NDArray[np.int8]]], weights: Floats
) -> GoodputTable:
    """Average the contexts of each batch size by seconds per token, which add up over tokens.

    A context counts at a batch size where it compares two draft lengths, and a draft length is known
    there where all such contexts know it: else it would be judged on an easier mix than the others.
    """
    means, sds, states = (np.stack(parts) for parts in zip(*layers, strict=True))
    known = states > CellState.UNKNOWN
    counts = (known.sum(axis=2) >= np.minimum(2, known.sum(axis=2).max(axis=0))) & known.any(axis=2)
    counts &= (weights > 0)[:, None]
    share = np.where(counts, weights[:, None], 0.0)
    share = share / np.maximum(share.sum(axis=0), 1e-300)
    complete: Bools = (known | ~counts[:, :, None]).all(axis=0) & counts.any(axis=0)[:, None]
    parts = np.where(known, share[:, :, None] * np.exp(-means), 0.0)
    cost = parts.sum(axis=0)
    safe = np.where(complete, cost, 1.0)
    sd = np.sqrt(((parts / safe * sds) ** 2).sum(axis=0))
    lowest = np.where(counts[:, :, None], states, CellState.MEASURED).min(axis=0)
    mixed = np.where(complete, lowest, CellState.UNKNOWN).astype(np.int8)
    return GoodputTable.from_moments(batches, draft_lens, -np.log(safe), sd, mixed)


def _missing_findings(table: GoodputTable, contexts: Contexts) -> list[Finding]:
    """Say which cells of the grid were filled and which stay unknown."""
    found = []
    filled = _cells_in(table, CellState.INTERPOLATED)
    if filled:
        message = (
            f"{len(filled)} cells were not measured and are filled from their neighbours: {_named(filled)}"
        )
        found.append(Finding("sweep_hole", "warning", message, {}, {"cells": filled, "filled": True}))
    unknown = _cells_in(table, CellState.UNKNOWN)
    if unknown:
        message = (
            f"{len(unknown)} cells stay unknown, because their draft length was not measured on both "
            f"sides of the batch size, or not at every context: {_named(unknown)}"
        )
        found.append(Finding("sweep_unknown_cells", "info", message, {}, {"cells": unknown}))
    if contexts.unstated:
        message = (
            f"{contexts.unstated} rows without a context were left out, as others state theirs: fill it in"
        )
        found.append(Finding("context_unstated", "warning", message, {}, {"rows": contexts.unstated}))
    return found


def _cells_in(table: GoodputTable, state: CellState) -> list[list[int]]:
    """Return ``[batch, draft_len]`` of the cells in a state."""
    rows, columns = np.nonzero(table.states == state)
    pairs = zip(table.batches[rows].tolist(), table.draft_lens[columns].tolist(), strict=True)
    return [[batch, draft_len] for batch, draft_len in pairs]


def _named(cells: list[list[int]]) -> str:
    by_len: dict[int, list[int]] = {}
    for batch, draft_len in cells:
        by_len.setdefault(draft_len, []).append(batch)
    return "; ".join(
        f"draft length {draft_len} at batch {listed(batches)}"
        for draft_len, batches in sorted(by_len.items())
    )
