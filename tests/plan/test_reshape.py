"""The table as a whole: one constant draft length, few ranges, and what runs already."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.plan.tables import proposal_of, table_of
from tuner.fleet import NotEnoughData, Schedule
from tuner.plan import reshape
from tuner.plan.options import PlanOptions

FALLING = [[100, 150, 170, 190], [200, 290, 310, 300], [400, 480, 470, 450], [800, 700, 650, 600]]


def test_constant_draft_length_averages_time_not_speed() -> None:
    """With equal time at each batch size, 2 takes the least more time than the best at each."""
    proposal = proposal_of(table_of(FALLING))
    constant = reshape.best_constant(proposal, PlanOptions())
    assert not isinstance(constant, NotEnoughData)
    costs = [sum(max(row) / row[k] for row in FALLING) for k in range(4)]
    assert constant == int(np.argmin(costs)) == 2


@pytest.mark.parametrize(
    ("weights", "best"), [({1: 1.0}, 3), ({3: 1.0}, 2), ({50: 1.0}, 0), ({1: 0.1, 64: 0.9}, 0)]
)
def test_constant_draft_length_follows_the_load(weights: dict[int, float], best: int) -> None:
    """Time shares by batch size decide; a batch size counts for the nearest measured one."""
    proposal = proposal_of(table_of(FALLING))
    assert reshape.best_constant(proposal, PlanOptions(batch_weights=weights)) == best


def test_latency_counts_every_request_that_waits() -> None:
    """A second at batch 64 is a second of 64 requests: the constant moves to what is best there."""
    proposal = proposal_of(table_of(FALLING))
    assert reshape.best_constant(proposal, PlanOptions(objective="latency")) == 0


def test_constant_draft_length_must_be_known_everywhere() -> None:
    """A draft length with a hole is no candidate; with holes in all of them there is no answer."""
    proposal = proposal_of(table_of([[100, 150], [0, 300]]))
    assert reshape.best_constant(proposal, PlanOptions()) == 1
    nothing = reshape.best_constant(proposal_of(table_of([[100, 0], [0, 300]])), PlanOptions())
    assert isinstance(nothing, NotEnoughData)


def test_mode_is_silent_without_a_measured_tax() -> None:
    """Nobody measured a schedule arm: the table stays."""
    proposal = proposal_of(table_of(FALLING))
    assert reshape.mode(proposal, PlanOptions()) is proposal


@pytest.mark.parametrize(("tax", "stays"), [(0.0, True), (-0.02, True), (-0.30, False)])
def test_mode_weighs_the_tax_against_the_gain(tax: float, stays: bool) -> None:
    """The table gains 9 % over constant 2: it bears a tax of 2 %, not one of 30 %."""
    table = replace(table_of(FALLING), schedule_factor=np.full(4, tax))
    after = reshape.mode(proposal_of(table), PlanOptions())
    assert after.draft_lens() == ([3, 2, 1, 0] if stays else [2, 2, 2, 2])


def test_few_ranges_drop_the_cheapest_first() -> None:
    """Four ranges to three: the one whose neighbour loses least there, 0.5 %, goes."""
    speeds = [[1.0, 1, 1, 100], [1.0, 1, 100, 99.5], [1.0, 100, 80, 1], [100.0, 90, 1, 1]]
    after = reshape.merge(proposal_of(table_of(speeds)), PlanOptions(max_ranges=3))
    assert after.draft_lens() == [3, 3, 1, 0]
    assert after.findings == ()


def test_costly_merge_is_a_finding() -> None:
    """A bound that costs more than a tie says what it costs."""
    after = reshape.merge(proposal_of(table_of(FALLING)), PlanOptions(max_ranges=2))
    assert len(set(after.draft_lens())) == 2
    (finding,) = after.findings
    assert finding.code == "ranges_merged"
    assert finding.evidence["worst_loss"] > 0.01


def test_merge_never_opens_a_closed_cell() -> None:
    """A range whose neighbours are closed there is not absorbed by them."""
    proposal = proposal_of(table_of([[0, 0, 100], [0, 100, 0], [100, 0, 0]]))
    assert reshape.merge(proposal, PlanOptions(max_ranges=2)).draft_lens() == [2, 1, 0]


def active(*ranges: list[int]) -> Schedule:
    return Schedule.from_ranges(ranges)


def test_dead_band_keeps_what_runs() -> None:
    """A new table that is 0.5 % better at one batch size does not replace the active one."""
    table = table_of([[100, 150, 150.7], [200, 300, 290]])
    options = PlanOptions(active=active([1, 64, 1]))
    after = reshape.dead_band(proposal_of(table), options)
    assert after.held
    assert after.draft_lens() == [1, 1]


def test_dead_band_lets_a_real_gain_through() -> None:
    """5 % at one batch size, known to 1 % a cell, changes the table."""
    table = table_of([[100, 150, 157.5], [200, 300, 290]])
    after = reshape.dead_band(proposal_of(table), PlanOptions(active=active([1, 64, 1])))
    assert not after.held
    assert after.draft_lens() == [2, 1]


def test_dead_band_wants_a_longer_draft_to_be_credible() -> None:
    """The same 5 % known to 10 % a cell does not lengthen a draft."""
    table = table_of([[100, 150, 157.5], [200, 300, 290]], sd=0.1)
    assert reshape.dead_band(proposal_of(table), PlanOptions(active=active([1, 64, 1]))).held


def test_dead_band_lets_a_retreat_through_without_proof() -> None:
    """Back to no speculation needs only the mean: what is not shown to pay is not kept."""
    table = table_of([[100, 97]], sd=0.1)
    after = reshape.dead_band(proposal_of(table), PlanOptions(active=active([1, 64, 1])))
    assert not after.held
    assert after.draft_lens() == [0]


def test_dead_band_cannot_hold_what_is_not_known() -> None:
    """An active draft length outside the table, or closed, is no reason to stay."""
    table = table_of([[100, 150, 150.7]])
    assert not reshape.dead_band(proposal_of(table), PlanOptions(active=active([1, 64, 7]))).held
    closed = proposal_of(table).restrict(np.array([[True, False, True]]), "allowed", "")
    assert not reshape.dead_band(closed.optimised(), PlanOptions(active=active([1, 64, 1]))).held
