"""The planner as a whole: refusals, switches, and what must hold for any table."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.tables import table_of
from tuner._exceptions import InputError
from tuner.fleet import NotEnoughData, Schedule
from tuner.plan.goodput import CellState, GoodputTable
from tuner.plan.options import PlanOptions
from tuner.plan.planner import Plan, plan
from tuner.plan.postprocess import NAMES

FALLING = [[100.0, 150, 170, 190], [200.0, 290, 310, 300], [400.0, 480, 470, 450], [800.0, 700, 650, 600]]


def lists(planned: Plan) -> list[list[int]]:
    assert isinstance(planned.schedule, Schedule), planned.schedule
    return planned.schedule.as_lists()


@pytest.mark.parametrize(
    ("speeds", "reason"),
    [
        ([[100, 0, 0, 0]] * 4, "only draft length 0 was measured"),
        ([[0, 0, 0, 120]] * 4, "only draft length 3 was measured"),
        ([[100, 0, 0, 0], [0, 150, 0, 0]], "no batch size has two draft lengths"),
        ([[0, 0, 0, 0]] * 2, "no batch size has two draft lengths"),
    ],
)
def test_nothing_to_compare_is_no_schedule(speeds: list[list[float]], reason: str) -> None:
    """With one draft length per batch size there is no choice to make: null, with the reason."""
    planned = plan(table_of(speeds))
    assert isinstance(planned.schedule, NotEnoughData)
    assert reason in planned.schedule.reason
    assert planned.explain == ()
    document = planned.as_dict()
    assert document["schedule"] is None
    assert "have" in document["not_enough_data"]
    assert [finding["code"] for finding in document["findings"]] == ["not_enough_data"]


def test_nothing_allowed_is_known() -> None:
    """Draft lengths that the engine can run, none of which was measured: null."""
    planned = plan(table_of(FALLING), PlanOptions(allowed_draft_lens=frozenset({7, 9})))
    assert isinstance(planned.schedule, NotEnoughData)
    assert "allowed" in planned.schedule.reason


def test_empty_table_is_no_schedule() -> None:
    """A table without any batch size says so."""
    empty = GoodputTable.from_moments([], [], np.zeros((0, 0)), np.zeros((0, 0)))
    assert isinstance(plan(empty).schedule, NotEnoughData)


def test_lone_draft_length_follows_its_neighbour_but_none_stands_alone() -> None:
    """Only 3 known at batch 4 tells nothing, so 1 carries on; only 0 known at 64 is safe, so 0 runs."""
    planned = plan(table_of([[100, 150, 140, 130], [0, 0, 0, 500], [400, 480, 470, 0], [800, 0, 0, 0]]))
    assert [planned.explain[row].draft_len for row in range(4)] == [1, 1, 1, 0]
    assert "taken over" in planned.explain[1].why
    (alone,) = [finding for finding in planned.findings if finding.code == "draft_len_0_uncompared"]
    assert alone.evidence == {"batches": [64]}


def test_the_whole_chain_on_a_falling_table() -> None:
    """Best cells, threshold by the crossing lines, the last range up to the largest batch."""
    rows = lists(plan(table_of(FALLING), PlanOptions(max_batch=128)))
    assert [draft_len for _, _, draft_len in rows] == [3, 2, 1, 0]
    assert rows[-1][1] == 128


@pytest.mark.parametrize("name", NAMES)
def test_every_post_processor_can_be_switched_off(name: str) -> None:
    """Without any one of them there is still a schedule, and no note of its making."""
    options = PlanOptions(
        without=frozenset({name}),
        allowed_draft_lens=frozenset({0, 1, 2}),
        floor=1,
        max_batch=64,
        max_ranges=2,
        max_tokens_in_flight=200,
        slo_tpot=0.1,
        kv_capacity_tokens=5000,
        context_tokens=50,
        active=Schedule.from_ranges([[1, 64, 1]]),
    )
    planned = plan(table_of(FALLING), options)
    assert isinstance(planned.schedule, Schedule)
    assert all(note.by != name for note in planned.proposal.notes)


def test_unknown_post_processor_is_refused() -> None:
    """A misspelt name is an error that lists the names."""
    with pytest.raises(InputError, match="'ties': choose from allowed, floor"):
        plan(table_of(FALLING), PlanOptions(without=frozenset({"ties"})))


def test_active_schedule_within_the_dead_band_stays_to_the_batch() -> None:
    """The active table is kept exactly, with its own thresholds, not re-derived ones."""
    first = plan(table_of(FALLING), PlanOptions(max_batch=64))
    rows = lists(first)
    rows[0][1] -= 1
    rows[1][0] -= 1
    active = Schedule.from_ranges(rows)
    again = plan(table_of(FALLING), PlanOptions(max_batch=64, active=active))
    assert again.schedule == active
    assert "so it stays" in again.explain[0].why
    wider = plan(table_of(FALLING), PlanOptions(max_batch=256, active=active))
    assert lists(wider) == [*rows[:-1], [rows[-1][0], 256, rows[-1][2]]]


def test_plans_do_not_chatter() -> None:
    """Planning again with 1 % of new noise against the active schedule changes nothing in 95 of 100 cases."""
    rng = np.random.default_rng(3)
    first = plan(table_of(FALLING, sd=0.02), PlanOptions(max_batch=64)).schedule
    assert isinstance(first, Schedule)
    options = PlanOptions(max_batch=64, active=first)
    changed = 0
    for _ in range(100):
        noisy = np.array(FALLING) * np.exp(0.01 * rng.standard_normal((4, 4)))
        changed += plan(table_of(noisy.tolist(), sd=0.02), options).schedule != first
    assert changed <= 5


def test_plan_is_a_value() -> None:
    """Equal inputs give equal plans, which survive pickling and JSON."""
    one, two = plan(table_of(FALLING)), plan(table_of(FALLING))
    assert json.dumps(one.as_dict(), allow_nan=False) == json.dumps(two.as_dict(), allow_nan=False)
    assert pickle.loads(pickle.dumps(one)).as_dict() == one.as_dict()  # noqa: S301  # our own bytes


speeds_or_holes = st.one_of(st.just(0.0), st.floats(1.0, 1e6))


@given(
    st.lists(st.lists(speeds_or_holes, min_size=4, max_size=4), min_size=1, max_size=4),
    st.sampled_from([0.0, 0.001, 0.02, 0.3]),
    st.integers(0, 2),
    st.one_of(st.none(), st.integers(1, 500)),
    st.sampled_from([0.0, 0.03, 0.5]),
)
def test_any_table_gives_a_schedule_or_a_reason(
    speeds: list[list[float]], sd: float, floor: int, max_batch: int | None, min_gain: float
) -> None:
    """No table breaks the planner; what runs is allowed, known somewhere, and within 1..max."""
    table = table_of(speeds, sd=sd)
    planned = plan(table, PlanOptions(floor=floor, max_batch=max_batch, min_gain=min_gain))
    json.dumps(planned.as_dict(), allow_nan=False)
    if isinstance(planned.schedule, NotEnoughData):
        return
    known = set(table.draft_lens[table.known.any(axis=0)].tolist())
    assert planned.schedule.draft_lens <= known
    assert min(planned.schedule.draft_lens) >= floor
    assert planned.schedule.max_batch == (max_batch or int(table.batches[-1]))


@given(st.lists(st.lists(st.floats(50.0, 200.0), min_size=4, max_size=4), min_size=4, max_size=4))
def test_speculation_never_runs_where_it_measured_less_than_min_gain(speeds: list[list[float]]) -> None:
    """At every measured batch size what runs reaches 1.03 of no speculation, or is no speculation."""
    planned = plan(table_of(speeds, sd=0.001), PlanOptions(max_batch=64))
    for entry in planned.explain:
        cells = {choice.draft_len: choice.tokens_per_second for choice in entry.choices}
        assert entry.draft_len == 0 or cells[entry.draft_len] >= 1.03 * cells[0] * (1 - 1e-9)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("min_gain", -0.1, "min_gain is -0.1: choose it between 0 and 10"),
        ("credibility", 1.0, "credibility is 1"),
        ("tie", float("nan"), "tie is nan"),
        ("floor", -1, "floor is -1: choose a whole number from 0"),
        ("max_batch", 0, "max_batch is 0: choose a whole number from 1"),
        ("slo_tpot", 0.0, "slo_tpot is 0: choose a number above 0"),
        ("kv_capacity_tokens", 100.0, "needs context_tokens"),
        ("batch_weights", {1: 0.0}, "at least one share above 0"),
        ("batch_weights", {1: float("nan")}, "at least one share above 0"),
        ("allowed_draft_lens", frozenset(), "at least one draft length"),
    ],
)
def test_options_out_of_range_are_refused(field: str, value: object, words: str) -> None:
    """An option that makes no sense is one line that names it and the remedy."""
    with pytest.raises(InputError, match=words):
        PlanOptions(**{field: value})  # type: ignore[arg-type]  # wrong on purpose


def test_floor_above_everything_allowed_is_refused() -> None:
    """A floor of 3 with drafts up to 2 cannot be met."""
    with pytest.raises(InputError, match="floor 3 is above every allowed draft length"):
        PlanOptions(floor=3, allowed_draft_lens=frozenset({0, 2}))


def test_table_refuses_axes_that_do_not_ascend() -> None:
    """Batches and draft lengths ascend, and cells fit them."""
    with pytest.raises(ValueError, match="must ascend"):
        table_of([[100, 110]], draft_lens=(1, 0))
    with pytest.raises(ValueError, match="must have shape"):
        GoodputTable.from_moments([1, 2], [0, 1], np.zeros((1, 2)), np.zeros((1, 2)))


def test_an_error_shared_by_all_draft_lengths_leaves_their_ratio_certain() -> None:
    """What is shared is in a cell's interval and not in a gain's; unknown cells hold minus infinity."""
    cov = np.full((1, 3, 3), 0.1**2) + 0.01**2 * np.eye(3)
    states = np.array([[CellState.MEASURED, CellState.MEASURED, CellState.UNKNOWN]], dtype=np.int8)
    table = GoodputTable.from_moments([8], [0, 1, 2], np.log([[100.0, 120.0, 130.0]]), cov, states)
    assert table.log_sd[0, 1] == pytest.approx(0.1, rel=0.1)
    gain, sd = table.gain_over_none()
    assert np.exp(gain[0, 1]) == pytest.approx(1.2, abs=0.002)
    assert sd[0, 1] == pytest.approx(0.01 * np.sqrt(2), rel=0.1)
    assert table.log_mean[0, 2] == -np.inf
    assert gain[0, 2] == -np.inf
