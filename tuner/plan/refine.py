"""Post-processors that turn the best cells into a table: proof of gain, ties, order.

They run after the best cell was chosen, in the order of :mod:`tuner.plan.postprocess`. Each takes a
proposal and the options and returns a proposal.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from tuner.fleet import Finding
from tuner.plan.optimise import UNDECIDED, fewest_rises, most_plausible, rises, within_tie
from tuner.plan.words import listed, percent

if TYPE_CHECKING:
    from tuner.plan.goodput import Bools, Floats, GoodputTable, Ints
    from tuner.plan.options import PlanOptions
    from tuner.plan.proposal import Proposal

LEAST_SD = 1e-4
"""Smallest standard deviation of a log ratio: 0.01 %, far below any measurement; exact inputs stay finite."""

VAGUE = 2.0
"""Ratio of standard deviations from which a cell counts as far less certain than another."""


def confidence(proposal: Proposal, options: PlanOptions) -> Proposal:
    """Fall back where speculation is not shown to beat no speculation by ``min_gain``.

    Where a cell without speculation is supported, the best draft length must exceed it by ``min_gain``
    with posterior probability ``credibility``; else the shortest eligible draft is taken, 0 or the
    engine's floor. Between positive draft lengths nothing is tested: a ladder of tests costs more than
    it saves. Without such a cell no gain is claimed, and a finding says so.
    """
    table, zero = proposal.table, proposal.table.zero_column
    decided = proposal.choice != UNDECIDED
    baseline = decided & (table.trusted[:, zero] if zero is not None else False)
    proposal = _note_missing_baseline(proposal, decided & ~baseline)
    if zero is None or not baseline.any():
        return proposal
    shortest = np.argmax(proposal.eligible, axis=1)
    proofs = _lacking_proof(table, options) <= 0
    proposal = _best_proven(proposal, proofs & proposal.eligible & (table.draft_lens > 0), baseline)
    proven = _at(proofs, proposal.choice)
    unproven = baseline & ~proven & (table.draft_lens[proposal.choice] > 0)
    fallback = np.where(unproven, shortest, proposal.choice)
    ties = proposal.ties.copy()
    ties[unproven] = False
    ties[unproven, shortest[unproven]] = True
    text = (
        f"no draft is {percent(options.min_gain)} faster than no speculation with a probability of "
        f"{100 * options.credibility:g} %, so the shortest one allowed runs"
    )
    proposal = proposal.chosen(fallback, "confidence", text)
    return _note_costly_floor(replace(proposal, ties=ties, unproven=unproven), baseline)


def _best_proven(proposal: Proposal, proven: Bools, baseline: Bools) -> Proposal:
    """Take the fastest draft whose gain is proven where the fastest of all is far less certain.

    A cell whose repeats differ widely may have the highest mean and prove nothing. Between cells that
    are known about equally well nothing changes: the second best is not taken for its luck.
    """
    rows, choice, table = np.arange(proposal.choice.size), np.maximum(proposal.choice, 0), proposal.table
    best = np.argmax(np.where(proven, table.log_mean, -np.inf), axis=1)
    vague = table.log_sd[rows, choice] > VAGUE * table.log_sd[rows, best]
    swap = baseline & proven.any(axis=1) & ~proven[rows, choice] & (table.draft_lens[choice] > 0) & vague
    if not swap.any():
        return proposal
    keep = ~swap[:, None] | proven
    text = "the fastest draft is too uncertain to prove a gain, so the fastest that proves one runs"
    narrowed = replace(proposal, eligible=proposal.eligible & keep, ties=proposal.ties & keep)
    return narrowed.chosen(np.where(swap, best, proposal.choice), "confidence", text)


def _lacking_proof(table: GoodputTable, options: PlanOptions) -> Floats:
    """Return ``(nb, nk)``: standard deviations that the gain lacks to be proven, at most 0 where it is."""
    gain, sd = table.gain_over_none()
    reach = NormalDist().inv_cdf(options.credibility)
    excess = gain - math.log1p(options.min_gain) + 1e-12  # an exact min_gain counts as reached
    lacking: Floats = reach - excess / np.maximum(sd, LEAST_SD)
    return lacking


def not_paying(table: GoodputTable, options: PlanOptions) -> Bools:
    """Return ``(nb, nk)``: drafts whose gain over none, where that is known, is below ``min_gain``."""
    if "confidence" in options.without or table.zero_column is None:
        return np.zeros(table.log_mean.shape, dtype=np.bool_)
    gain, _ = table.gain_over_none()
    known = np.isfinite(gain) & table.trusted[:, table.zero_column, None]
    below: Bools = known & (gain < math.log1p(options.min_gain) - 1e-12) & (table.draft_lens > 0)
    return below


def _at(values: Bools, choice: Ints) -> Bools:
    """Return the value of each row at its chosen column."""
    return values[np.arange(choice.size), choice]


def tie(proposal: Proposal, options: PlanOptions) -> Proposal:
    """Among cells within ``tie`` of their best, take a table that does not rise, then the shortest drafts."""
    sets = within_tie(proposal.table.log_mean, proposal.eligible, options.tie)
    paying = sets & ~not_paying(proposal.table, options)
    sets = np.where(paying.any(axis=1, keepdims=True), paying, sets)
    sets[proposal.unproven] = proposal.ties[proposal.unproven]
    text = (
        f"several draft lengths are as fast to within {percent(options.tie)}: the shortest of them runs that "
        "keeps drafts from getting longer at larger batches"
    )
    return replace(proposal, ties=sets).chosen(fewest_rises(sets), "tie", text)


def monotone(proposal: Proposal, options: PlanOptions) -> Proposal:
    """Undo rises of the draft length with the batch that the data do not insist on.

    A penalty of half the squared shortfall beyond a tie, in standard deviations, is a log likelihood;
    a rise costs ``log(rise_odds)``. Where the cheapest table still rises, the data contradict the rule
    (mixtures of experts do that) and the rise stays, with a finding.
    """
    if not rises(proposal.choice).size:
        return proposal
    penalty = _shortfall_penalty(proposal, options)
    choice = most_plausible(penalty, math.log(options.rise_odds))
    proposal = proposal.chosen(
        choice,
        "monotone",
        "a longer draft than at smaller batches is not proven to pay: the difference is within the noise",
    )
    left = rises(choice)
    if not left.size:
        return proposal
    batches = proposal.table.batches[left].tolist()
    finding = Finding(
        code="draft_len_rises_with_batch",
        severity="info",
        message=f"longer drafts pay more above batch {listed(batches)} than below: usual for mixtures of "
        "experts and long contexts, else measure these cells again",
        subject=proposal.table.subject,
        evidence={"above_batches": batches},
    )
    return proposal.noted("monotone", left, "the next larger batch clearly wants a longer draft").found(
        finding
    )


def _shortfall_penalty(proposal: Proposal, options: PlanOptions) -> Floats:
    """Return ``(nb, nk)``: minus the log likelihood that a cell is as good as the row's reference.

    The reference is the best cell, or the fallback where speculation was not proven; there, cells that
    reach ``min_gain`` on average may be taken at the price of the proof they lack. Drafts that do not
    reach it are never taken for the sake of order.
    """
    table, rows = proposal.table, np.arange(proposal.table.batches.size)
    best = np.argmax(np.where(proposal.eligible, table.log_mean, -np.inf), axis=1)
    means = np.where(proposal.eligible, table.log_mean, 0.0)
    loss = np.where(proposal.eligible, means[rows, best][:, None] - means, np.inf)
    sd = np.stack([table.difference_sd(np.full(rows.size, k), best) for k in range(loss.shape[1])], axis=1)
    shortfall = np.maximum(loss + math.log1p(-options.tie), 0.0) / np.maximum(sd, LEAST_SD)
    price = np.maximum(_lacking_proof(table, options), 0.0)
    shortfall = np.where(proposal.unproven[:, None] & proposal.eligible, price, shortfall)
    kept = proposal.choice[:, None] == np.arange(table.draft_lens.size)
    shortfall[not_paying(table, options) & ~kept] = np.inf
    shortfall[proposal.unproven[:, None] & kept] = 0.0
    penalty: Floats = 0.5 * shortfall**2 * _octaves(table.batches)[:, None]
    return penalty


def _octaves(batches: Ints) -> Floats:
    """Return the weight of each row as evidence: its share of an octave of batch sizes, at most 1.

    Cells of a fitted curve at neighbouring batch sizes are one piece of evidence, not many; measured
    sweeps step by factors of 2 and keep weight 1.
    """
    if batches.size == 1:
        return np.ones(1)
    gaps = np.log2(batches[1:] / batches[:-1])
    spans: Floats = np.concatenate((gaps[:1], (gaps[1:] + gaps[:-1]) / 2, gaps[-1:]))
    return np.clip(spans, 0.0, 1.0)


def _note_missing_baseline(proposal: Proposal, rows: Bools) -> Proposal:
    if not rows.any():
        return proposal
    batches = proposal.table.batches[rows].tolist()
    finding = Finding(
        code="no_baseline",
        severity="warning",
        message="no measurement without speculation"
        + (f" at batch {listed(batches)}" if not rows.all() else "")
        + ": whether speculation pays at all is not known; measure draft length 0",
        subject=proposal.table.subject,
        evidence={"batches": batches},
    )
    text = "no measurement without speculation, so no gain over it is claimed"
    return proposal.noted("confidence", np.flatnonzero(rows), text).found(finding)


def _note_costly_floor(proposal: Proposal, baseline: Bools) -> Proposal:
    """Say where no speculation would be faster but is not allowed."""
    table = proposal.table
    gains, _ = table.gain_over_none()
    gain = gains[np.arange(proposal.choice.size), proposal.choice]
    losing = np.flatnonzero(baseline & (gain < 0))
    if not losing.size:
        return proposal
    batches = table.batches[losing].tolist()
    finding = Finding(
        code="floor_loses",
        severity="warning",
        message=f"at batch {listed(batches)} no speculation is faster than every draft length that is "
        "allowed: allow 0, or take these loads to engines without a drafter",
        subject=table.subject,
        evidence={"batches": batches, "worst_gain": float(np.expm1(gain[losing].min()))},
    )
    return proposal.found(finding)
