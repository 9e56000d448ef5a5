"""What a new table changes against the one that runs or was proposed last, and what that is worth."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.fleet import Finding
from tuner.plan.goodput import Z95
from tuner.plan.optimise import UNDECIDED
from tuner.plan.reshape import relative_cost
from tuner.plan.words import percent

if TYPE_CHECKING:
    from tuner.fleet import Schedule
    from tuner.plan.goodput import Ints
    from tuner.plan.options import PlanOptions
    from tuner.plan.proposal import Proposal

SHOWN = 6
"""Changes that the message names; the evidence holds them all."""


def against(proposal: Proposal, options: PlanOptions) -> tuple[Finding, ...]:
    """Return what the plan changes against what engines run, and against the proposal that stands.

    The two are told apart: what was only proposed has cost or gained nobody anything.
    """
    active, proposed = options.active, options.proposed
    found = []
    if active is not None:
        found.append(_compared(proposal, active, options, runs=True))
    if proposed is not None and proposed != active:
        found.append(_compared(proposal, proposed, options, runs=False))
    return tuple(found)


def _compared(proposal: Proposal, old: Schedule, options: PlanOptions, *, runs: bool) -> Finding:
    """Return the finding that compares the table chosen with an old one, batch size by batch size.

    Where the old one was held, with the table that was wanted in its place. Where its draft length has no
    evidence, the change has no known gain and the mean leaves that batch size out.
    """
    table = proposal.table
    name = "the active schedule" if runs else "the proposal that stands"
    held = proposal.held == old
    wanted = proposal.wanted if held and proposal.wanted is not None else proposal.choice
    decided = np.flatnonzero(wanted != UNDECIDED)
    shown = [row for row in decided.tolist() if row in (table.explained or decided)]
    changes = [each for row in shown if (each := _change(proposal, old, row, int(wanted[row])))]
    mean = _mean_gain(proposal, old, wanted, options)
    evidence = {"changes": changes, "mean_gain": mean, "held": held}
    if not changes:
        message = f"{name} is what these measurements choose: nothing would change"
        return Finding("active_kept" if runs else "proposal_kept", "info", message, table.subject, evidence)
    named = "; ".join(_told(change) for change in changes[:SHOWN])
    more = f" and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
    average = "" if mean is None else f"; on average over the batch sizes {_gain(mean)}"
    if held:
        message = (
            f"{name} stays: no change gains {percent(options.dead_band)} beyond doubt. "
            f"Without it: {named}{more}{average}"
        )
        return Finding("active_kept" if runs else "proposal_kept", "info", message, table.subject, evidence)
    message = f"against {name}: {named}{more}{average}"
    return Finding(
        "active_replaced" if runs else "proposal_outdone", "info", message, table.subject, evidence
    )


def _change(proposal: Proposal, active: Schedule, row: int, column: int) -> dict[str, Any] | None:
    """Return what changes at one batch size, nothing where nothing does."""
    table = proposal.table
    batch, new = int(table.batches[row]), int(table.draft_lens[column])
    old = active.draft_len_at(min(batch, active.max_batch))
    if old == new:
        return None
    change: dict[str, Any] = {"batch": batch, "from": old, "to": new, "gain": None}
    place = int(np.searchsorted(table.draft_lens, old))
    if old not in table.draft_lens or not table.known[row, place]:
        return change
    gain = float(table.log_mean[row, column] - table.log_mean[row, place])
    pair = (np.full(table.batches.size, each) for each in (column, place))
    reach = Z95 * float(table.difference_sd(*pair)[row])
    ends = {"low": math.expm1(gain - reach), "high": math.expm1(gain + reach)}
    return {**change, "gain": math.expm1(gain), **ends}


def _mean_gain(proposal: Proposal, active: Schedule, wanted: Ints, options: PlanOptions) -> float | None:
    """Return the gain over all decided batch sizes, by time for the same tokens; none if one is unknown."""
    table = proposal.table
    decided = np.flatnonzero(proposal.choice != UNDECIDED)
    lens = [active.draft_len_at(min(batch, active.max_batch)) for batch in table.batches[decided].tolist()]
    columns = np.minimum(np.searchsorted(table.draft_lens, lens), table.draft_lens.size - 1)
    if not np.isin(lens, table.draft_lens).all() or not table.known[decided, columns].all():
        return None
    old, new = (
        relative_cost(proposal, options, table.log_mean[decided, each]) for each in (columns, wanted[decided])
    )
    return float(old / new) - 1.0


def _told(change: dict[str, Any]) -> str:
    gain = "gain not known" if change["gain"] is None else _gain(change["gain"])
    return f"batch {change['batch']} from draft length {change['from']} to {change['to']} ({gain})"


def _gain(gain: float) -> str:
    return f"{percent(abs(gain))} {'faster' if gain >= 0 else 'slower'}"
