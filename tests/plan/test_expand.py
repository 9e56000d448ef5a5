"""From choices at some batch sizes to a schedule over all: thresholds, gaps and edges."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.tables import proposal_of, table_of
from tuner.fleet import Schedule
from tuner.plan.expand import expand, extend
from tuner.plan.optimise import UNDECIDED
from tuner.plan.options import PlanOptions


def schedule_of(
    speeds: list[list[float]], batches: tuple[int, ...], choice: list[int] | None = None, max_batch: int = 64
) -> list[list[int]]:
    proposal = proposal_of(table_of(speeds, batches=batches))
    if choice is not None:
        proposal = replace(proposal, choice=np.array(choice))
    schedule, _ = expand(proposal, PlanOptions(max_batch=max_batch, without=frozenset({"confidence"})))
    return schedule.as_lists()


def test_threshold_lies_where_the_lines_cross() -> None:
    """3:1 in favour of 1 at batch 8, 1:3 at 16: they meet halfway in log batch, at 11.3."""
    assert schedule_of([[100, 300], [300, 100]], (8, 16)) == [[1, 11, 1], [12, 64, 0]]


def test_threshold_leans_towards_the_weaker_preference() -> None:
    """10 % at batch 8 against 40 % at 16: 1 ends a quarter of the way, at 8 * 2^0.22 = 9.3."""
    ahead, behind = math.log(1.1), math.log(1.4)
    last = math.floor(8 * 2 ** (ahead / (ahead + behind)))
    assert schedule_of([[100, 110], [140, 100]], (8, 16)) == [[1, last, 1], [last + 1, 64, 0]]


def test_threshold_of_a_tie_lies_where_it_became_one() -> None:
    """1 is 10 % ahead at batch 8 and 0.5 % at 16, where 0 was taken as a tie: from 1 % on, 14.8, 0 runs."""
    ahead, left, near = math.log(1.1), math.log(1.005), -math.log(0.99)
    last = math.floor(8 * 2 ** ((ahead - near) / (ahead - left)))
    assert schedule_of([[100, 110], [100, 100.5]], (8, 16), [1, 0]) == [[1, last, 1], [last + 1, 64, 0]]


def test_threshold_without_a_crossing_is_the_geometric_mean() -> None:
    """Where 1 leads by 1 % at both ends the choice was made by order, and the threshold is halfway."""
    assert schedule_of([[100, 101], [100, 101]], (8, 16), [1, 0]) == [[1, 11, 1], [12, 64, 0]]


def test_wide_gap_visits_the_draft_lengths_between() -> None:
    """3 at batch 1 and 0 at 64: 2 and 1 are best in between and get their ranges."""
    speeds = [[100.0, 180, 240, 280], [2000.0, 1800, 1300, 800]]
    rows = schedule_of(speeds, (1, 64))
    lens = [draft_len for _, _, draft_len in rows]
    assert lens[0] == 3
    assert lens[-1] == 0
    assert lens == sorted(lens, reverse=True)
    assert len(lens) > 2


def test_wide_gap_rises_one_way_too() -> None:
    """0 at batch 1 and 3 at 64 passes through what is best in between without falling back."""
    speeds = [[280.0, 240, 180, 100], [800.0, 1300, 1800, 2000]]
    lens = [draft_len for _, _, draft_len in schedule_of(speeds, (1, 64))]
    assert lens == sorted(lens)
    assert (lens[0], lens[-1]) == (0, 3)


def test_min_gain_moves_the_threshold_to_where_speculation_must_pay() -> None:
    """1 gains 20 % at 8 and loses 5 % at 16; it must clear 3 %, so it ends earlier than where lines cross."""
    proposal = proposal_of(table_of([[100, 120], [200, 190]], batches=(8, 16)))
    plain, _ = expand(proposal, PlanOptions(without=frozenset({"confidence"}), max_batch=16))
    safe, _ = expand(proposal, PlanOptions(max_batch=16))
    assert safe.ranges[0].last < plain.ranges[0].last


def test_neighbouring_batch_sizes_leave_no_room() -> None:
    """Batch 4 and 5 with different choices meet between them."""
    assert schedule_of([[100, 300], [300, 100]], (4, 5)) == [[1, 4, 1], [5, 64, 0]]


@pytest.mark.parametrize(
    ("max_batch", "rows"), [(2, [[1, 2, 1]]), (11, [[1, 11, 1]]), (12, [[1, 11, 1], [12, 12, 0]])]
)
def test_schedule_is_cut_at_the_largest_batch(max_batch: int, rows: list[list[int]]) -> None:
    """A smaller engine gets the part of the table that it can run."""
    assert schedule_of([[100, 300], [300, 100]], (8, 16), max_batch=max_batch) == rows


def test_undecided_batch_size_takes_its_neighbours_and_is_named() -> None:
    """A batch size without a choice is bridged."""
    proposal = proposal_of(table_of([[100, 300], [0, 0], [300, 100]], batches=(8, 12, 16)))
    assert proposal.choice.tolist() == [1, UNDECIDED, 0]
    schedule, findings = expand(proposal, PlanOptions(max_batch=16, without=frozenset({"confidence"})))
    assert schedule.as_lists() == [[1, 11, 1], [12, 16, 0]]
    assert {finding.code for finding in findings} == {"batch_undecided", "batch_below_measured"}


@pytest.mark.parametrize(
    ("batches", "max_batch", "expected"),
    [
        ((1, 16), 16, set()),
        ((1, 16), None, {"max_batch_unknown"}),
        ((1, 16), 64, {"batch_beyond_measured"}),
        ((4, 16), 16, {"batch_below_measured"}),
        ((4, 16), 8, {"batch_below_measured"}),
    ],
)
def test_edges_without_evidence_are_named(
    batches: tuple[int, ...], max_batch: int | None, expected: set[str]
) -> None:
    """What runs below the smallest and above the largest measured batch size is never silent."""
    proposal = proposal_of(table_of([[100, 300], [300, 100]], batches=batches))
    schedule, findings = expand(proposal, PlanOptions(max_batch=max_batch))
    assert schedule.max_batch == (max_batch or 16)
    assert {finding.code for finding in findings} == expected


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"max_tokens_in_flight": 60}, [[1, 20, 2], [21, 30, 1], [31, 64, 0]]),
        ({"kv_capacity_tokens": 1000.0, "context_tokens": 37.0}, [[1, 25, 2], [26, 64, 0]]),
        ({"kv_capacity_tokens": 1000.0, "context_tokens": 21.0}, [[1, 41, 2], [42, 43, 1], [44, 64, 0]]),
    ],
)
def test_limits_hold_between_and_beyond_the_measured(
    options: dict[str, float], rows: list[list[int]]
) -> None:
    """2 is best wherever it was measured; where it breaks a limit the longest draft that keeps it runs."""
    proposal = proposal_of(table_of([[100, 150, 200], [200, 300, 400]], batches=(4, 8)))
    schedule, _ = expand(proposal, PlanOptions(max_batch=64, **options))  # type: ignore[arg-type]  # by name
    assert schedule.as_lists() == rows


def test_extend_carries_or_cuts() -> None:
    """A schedule is carried on to a larger engine and cut for a smaller one."""
    schedule = Schedule.from_ranges([[1, 4, 3], [5, 16, 1]])
    assert extend(schedule, 64).as_lists() == [[1, 4, 3], [5, 64, 1]]
    assert extend(schedule, 3).as_lists() == [[1, 3, 3]]


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=8, unique=True).map(sorted),
    st.lists(st.integers(0, 3), min_size=8, max_size=8),
    st.lists(st.floats(1.0, 1000.0), min_size=32, max_size=32),
    st.one_of(st.none(), st.integers(1, 600)),
)
def test_any_choice_becomes_a_schedule_that_keeps_it(
    batches: list[int], choice: list[int], speeds: list[float], max_batch: int | None
) -> None:
    """Every measured batch size runs what was chosen for it, over 1..max without gaps."""
    table = table_of(np.array(speeds).reshape(8, 4)[: len(batches)].tolist(), batches=batches)
    proposal = replace(proposal_of(table), choice=np.array(choice[: len(batches)]))
    schedule, _ = expand(proposal, PlanOptions(max_batch=max_batch))
    assert schedule.max_batch == (max_batch or batches[-1])
    for batch, column in zip(batches, choice, strict=False):
        if batch <= schedule.max_batch:
            assert schedule.draft_len_at(batch) == column
