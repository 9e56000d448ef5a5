"""Post-processors that weigh the table as a whole: one constant draft length, few ranges, inertia."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from tuner.fleet import Finding, NotEnoughData
from tuner.plan.optimise import UNDECIDED
from tuner.plan.refine import not_paying
from tuner.plan.words import percent

if TYPE_CHECKING:
    from tuner.fleet import Schedule
    from tuner.plan.goodput import Bools, Floats, GoodputTable, Ints
    from tuner.plan.options import PlanOptions
    from tuner.plan.proposal import Proposal


def row_weights(table: GoodputTable, options: PlanOptions) -> Floats:
    """Return what each row counts, ``(nb,)``, summing to 1.

    Shares of engine time by batch size; a given batch size counts for the row nearest to it by ratio.
    With objective ``latency`` a second counts for every request that waits through it.
    """
    shares = np.zeros(table.batches.size)
    if options.batch_weights is None:
        shares[:] = 1.0
    else:
        logs = np.log(table.batches)
        for batch, share in options.batch_weights.items():
            shares[np.argmin(np.abs(logs - math.log(max(1, batch))))] += share
    if options.objective == "latency":
        shares = shares * table.batches
    normalised: Floats = shares / shares.sum()
    return normalised


def relative_cost(proposal: Proposal, options: PlanOptions, log_speed: Floats) -> Floats:
    """Return the time for the same tokens over that of the best cells, for log speeds ``(nd, ...)``.

    ``nd`` rows are those decided. Time adds up over tokens, tokens per second do not; and a second at
    batch 1 counts as much as one at batch 256, although it makes fewer tokens.
    """
    decided = proposal.choice != UNDECIDED
    weights = row_weights(proposal.table, options)[decided]
    if not weights.any():  # all the time is spent at batch sizes about which nothing is known
        weights = np.ones_like(weights)
    reference = np.where(proposal.eligible, proposal.table.log_mean, -np.inf)[decided].max(axis=1)
    extra = reference.reshape(-1, *[1] * (log_speed.ndim - 1)) - log_speed
    cost: Floats = np.asarray(np.tensordot(weights, np.exp(extra), axes=1)) / weights.sum()
    return cost


def best_constant(proposal: Proposal, options: PlanOptions) -> int | NotEnoughData:
    """Return the column that serves every decided batch size best as the only draft length.

    For engines that run one draft length, and as the yardstick of a schedule.
    """
    decided = proposal.choice != UNDECIDED
    usable = np.flatnonzero(proposal.eligible[decided].all(axis=0) & decided.any())
    if not usable.size:
        return NotEnoughData("no draft length is known at every batch size", have=0, need=1)
    speeds = proposal.table.log_mean[np.ix_(decided, usable)]
    return int(usable[np.argmin(relative_cost(proposal, options, speeds))])


def mode(proposal: Proposal, options: PlanOptions) -> Proposal:
    """Keep one constant draft length where what a schedule costs the engine eats what it gains.

    A schedule may switch the engine to another graph mode and tax every draft length, 0 included. The
    tax is charged to the mode, not to a draft length: {constant, schedule} are compared as wholes.
    """
    factor, decided = proposal.table.schedule_factor, np.flatnonzero(proposal.choice != UNDECIDED)
    if factor is None or np.unique(proposal.choice[decided]).size == 1:
        return proposal
    constant = best_constant(proposal, options)
    if isinstance(constant, NotEnoughData):
        return proposal
    speeds = proposal.table.log_mean[decided]
    scheduled = speeds[np.arange(decided.size), proposal.choice[decided]]
    alone = relative_cost(proposal, options, speeds[:, constant])
    gross = float(alone / relative_cost(proposal, options, scheduled)) - 1
    net = float(alone / relative_cost(proposal, options, scheduled + factor[decided])) - 1
    draft_len = int(proposal.table.draft_lens[constant])
    if net >= options.tie:
        text = (
            f"a schedule still pays after what its graph mode costs: {percent(net, signed=True)} over always "
            f"running draft length {draft_len}"
        )
        return proposal.noted("mode", decided, text)
    ratios = np.exp(factor[decided]).tolist()
    finding = Finding(
        code="schedule_not_worth_its_mode",
        severity="warning",
        message=f"a schedule would be {percent(gross)} faster than draft length {draft_len} throughout, but "
        f"its graph mode costs the engine more than that ({percent(net, signed=True)} in all): run draft "
        f"length {draft_len} throughout, or a runner with full graphs for schedules",
        subject=proposal.table.subject,
        evidence={
            "gross_gain": gross,
            "net_gain": net,
            "constant_draft_len": draft_len,
            "speed_ratio_by_batch": dict(zip(proposal.table.batches[decided].tolist(), ratios, strict=True)),
        },
    )
    choice = proposal.choice.copy()
    choice[decided] = constant
    text = f"any schedule costs more than it gains ({percent(net, signed=True)}): always {draft_len}"
    return proposal.chosen(choice, "mode", text).found(finding)


def merge(proposal: Proposal, options: PlanOptions) -> Proposal:
    """Reduce the table to ``max_ranges`` ranges, absorbing each time the range that costs least."""
    choice = proposal.choice.copy()
    rows = np.flatnonzero(choice != UNDECIDED)
    worst = 0.0
    losing = not_paying(proposal.table, options)
    while (runs := _runs(choice[rows])) and len(runs) > options.max_ranges:
        costs = [
            (_absorption_cost(proposal, losing, rows[first:last], choice[rows[other]]), first, last, other)
            for place, (first, last) in enumerate(runs)
            for other in _neighbours(runs, place)
        ]
        cost, first, last, other = min(costs)
        if math.isinf(cost):
            break
        choice[rows[first:last]] = choice[rows[other]]
        worst = max(worst, cost)
    if np.array_equal(choice, proposal.choice):
        return proposal
    proposal = proposal.chosen(
        choice, "merge", f"merged into a neighbour to keep {options.max_ranges} ranges"
    )
    if worst <= -math.log1p(-options.tie):
        return proposal
    finding = Finding(
        code="ranges_merged",
        severity="info",
        message=f"keeping to {options.max_ranges} ranges makes a batch size up to "
        f"{percent(-math.expm1(-worst))} slower: raise max_ranges if the engine can hold more",
        subject=proposal.table.subject,
        evidence={"worst_loss": -math.expm1(-worst), "max_ranges": options.max_ranges},
    )
    return proposal.found(finding)


def _runs(choice: Ints) -> list[tuple[int, int]]:
    """Return half-open spans of equal neighbours."""
    if not choice.size:
        return []
    edges = [0, *(np.flatnonzero(np.diff(choice)) + 1).tolist(), choice.size]
    return list(pairwise(edges))


def _neighbours(runs: list[tuple[int, int]], place: int) -> list[int]:
    """Return a row of the run before and of the run after."""
    return [runs[other][0] for other in (place - 1, place + 1) if 0 <= other < len(runs)]


def _absorption_cost(proposal: Proposal, losing: Bools, rows: Ints, column: int) -> float:
    """Return the largest log loss of taking ``column`` on ``rows``.

    Infinite where it is not eligible, or a draft whose gain over no speculation is below ``min_gain``: a
    schedule with one range more costs nothing against one that is slower than no speculation.
    """
    if losing[rows, column].any():
        return math.inf
    if not proposal.eligible[rows, column].all():
        return math.inf
    log_mean = proposal.table.log_mean[rows]
    return float((log_mean[np.arange(rows.size), proposal.choice[rows]] - log_mean[:, column]).max())


def dead_band(proposal: Proposal, options: PlanOptions) -> Proposal:
    """Keep the proposal that stands, else the active schedule, unless the new one beats it by ``dead_band``.

    At one batch size at least. A longer draft than the fallback must also be credibly better there; a
    retreat need not be. Where a draft length of the old table is not eligible or not known, there is nothing
    to hold on to.
    """
    old = {"the proposal that stands": options.proposed, "the active schedule": options.active}
    for name, schedule in old.items():
        if schedule is None:
            continue
        columns = _within_band(proposal, schedule, options)
        if columns is not None:
            return _hold(proposal, schedule, columns, name, options)
    return proposal


def _within_band(proposal: Proposal, old: Schedule, options: PlanOptions) -> Ints | None:
    """Return the columns of an old schedule at the decided rows, where none of them is beaten."""
    table = proposal.table
    decided = np.flatnonzero(proposal.choice != UNDECIDED)
    lens = [old.draft_len_at(min(batch, old.max_batch)) for batch in table.batches[decided].tolist()]
    column = np.searchsorted(table.draft_lens, lens)
    known = np.isin(lens, table.draft_lens)
    if not decided.size or not known.all() or not proposal.eligible[decided, column].all():
        return None
    new = proposal.choice[decided]
    gain = table.log_mean[decided, new] - table.log_mean[decided, column]
    firsts, seconds = np.zeros_like(proposal.choice), np.zeros_like(proposal.choice)
    firsts[decided], seconds[decided] = new, column
    reach = NormalDist().inv_cdf(options.credibility) * table.difference_sd(firsts, seconds)[decided]
    retreat = new == np.argmax(proposal.eligible[decided], axis=1)
    better = (gain >= math.log1p(options.dead_band)) & (retreat | (gain >= reach))
    return None if better.any() else column


def _hold(proposal: Proposal, old: Schedule, column: Ints, name: str, options: PlanOptions) -> Proposal:
    """Return the proposal with an old schedule in place of the new one."""
    decided = np.flatnonzero(proposal.choice != UNDECIDED)
    choice = proposal.choice.copy()
    choice[decided] = column
    text = f"no batch size gains {percent(options.dead_band)} over {name}, so it stays"
    held = proposal.chosen(choice, "dead_band", text) if (choice != proposal.choice).any() else proposal
    alike = decided[choice[decided] == proposal.choice[decided]]
    return replace(held.noted("dead_band", alike, text), held=old, wanted=proposal.choice)
