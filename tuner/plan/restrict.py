"""Post-processors that close cells: what the engine, the operator or the evidence does not allow.

They run before the best cell is chosen. Each takes a proposal and the options and returns a
proposal; none looks at the choice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tuner.fleet import Finding
from tuner.plan.goodput import Z95
from tuner.plan.optimise import UNDECIDED, best_columns
from tuner.plan.words import listed

if TYPE_CHECKING:
    from tuner.plan.goodput import Bools
    from tuner.plan.options import PlanOptions
    from tuner.plan.proposal import Proposal


def allowed(proposal: Proposal, options: PlanOptions) -> Proposal:
    """Keep the draft lengths that the engine can run."""
    if options.allowed_draft_lens is None:
        return proposal
    lens = sorted(options.allowed_draft_lens)
    keep = np.isin(proposal.table.draft_lens, lens)[None, :]
    return proposal.restrict(keep, "allowed", f"only draft lengths {listed(lens)} are allowed")


def floor(proposal: Proposal, options: PlanOptions) -> Proposal:
    """Keep draft lengths from the floor up, where draft length 0 would harm the drafter's state."""
    keep = (proposal.table.draft_lens >= options.floor)[None, :]
    return proposal.restrict(keep, "floor", f"draft lengths below the floor {options.floor} are ruled out")


def support(proposal: Proposal, options: PlanOptions) -> Proposal:
    """Close cells that nothing measured stands behind.

    A draft length that never ran is closed everywhere: it is probed on purpose, not adopted, unless
    ``allow_unmeasured`` says otherwise. One that ran, but not near this batch size, stays open where the
    lower end of its interval beats the best supported cell. At a batch size where nothing is supported,
    what is supported elsewhere stays open with its wide intervals.
    """
    table = proposal.table
    solid = proposal.eligible & table.supported
    best = best_columns(table.log_mean, solid)
    backed = best != UNDECIDED
    column = np.where(backed, best, 0)
    reference = table.log_mean[np.arange(best.size), column]
    ran = table.supported.any(axis=0)
    keep = table.supported.copy()
    for place in np.flatnonzero(ran | options.allow_unmeasured).tolist():
        sd = table.difference_sd(np.full(best.size, place), column)
        keep[:, place] |= backed & (table.log_mean[:, place] - Z95 * sd > reference)
    keep[~backed] = ran
    return proposal.restrict(
        keep,
        "support",
        "draft lengths that were not measured here are left out: try them before they are used",
    )


def kv_headroom(proposal: Proposal, options: PlanOptions) -> Proposal:
    """Close cells whose sequences do not fit: each needs its context and ``draft_len + 1`` slots.

    Where even the shortest draft does not fit, the engine cannot reach that batch size, and the cells
    stay as they are.
    """
    if options.kv_capacity_tokens is None or options.context_tokens is None:
        return proposal
    table = proposal.table
    needed = table.batches[:, None] * (options.context_tokens + table.draft_lens[None, :] + 1)
    keep = _or_shortest(needed <= options.kv_capacity_tokens, proposal.eligible)
    return proposal.restrict(
        keep, "kv_headroom", f"longer drafts do not fit into {options.kv_capacity_tokens:g} KV-cache tokens"
    )


def tokens_in_flight(proposal: Proposal, options: PlanOptions) -> Proposal:
    """Close cells above ``max_tokens_in_flight``, where that is set."""
    if options.max_tokens_in_flight is None:
        return proposal
    table = proposal.table
    in_flight = table.batches[:, None] * (table.draft_lens[None, :] + 1)
    keep = _or_shortest(in_flight <= options.max_tokens_in_flight, proposal.eligible)
    return proposal.restrict(
        keep,
        "tokens_in_flight",
        f"longer drafts put more than {options.max_tokens_in_flight} tokens in flight",
    )


def slo(proposal: Proposal, options: PlanOptions) -> Proposal:
    """Close cells that miss the TPOT objective, where another one meets it.

    The best cell has the lowest TPOT of its batch size, so where that misses nothing can help, and a
    finding names the batch sizes.
    """
    if options.slo_tpot is None:
        return proposal
    table = proposal.table
    meets = np.greater_equal(table.log_mean, np.log(table.batches / options.slo_tpot)[:, None])
    met = np.any(meets & proposal.eligible, axis=1)
    missed = np.flatnonzero(~met & proposal.eligible.any(axis=1))
    milliseconds = options.slo_tpot * 1e3
    if missed.size:
        batches = table.batches[missed].tolist()
        finding = Finding(
            code="slo_out_of_reach",
            severity="warning",
            message=f"no draft length reaches a TPOT of {milliseconds:g} ms at batch {listed(batches)}: "
            "lower the largest batch, or relax the objective",
            subject=table.subject,
            evidence={"slo_tpot_ms": milliseconds, "batches": batches},
        )
        proposal = proposal.found(finding)
    return proposal.restrict(meets | ~met[:, None], "slo", f"others miss a TPOT of {milliseconds:g} ms")


def _or_shortest(keep: Bools, eligible: Bools) -> Bools:
    """Keep the shortest eligible draft of a batch size where nothing else is kept."""
    none_left = eligible.any(axis=1) & ~(keep & eligible).any(axis=1)
    rescued = np.zeros_like(eligible)
    rows = np.flatnonzero(none_left)
    rescued[rows, np.argmax(eligible, axis=1)[rows]] = True
    return keep | rescued
