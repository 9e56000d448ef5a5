"""What a change against the schedule that runs now is worth, batch by batch and on average."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plan.tables import table_of
from tuner.fleet import Finding, Schedule
from tuner.plan.options import PlanOptions
from tuner.plan.planner import Plan, plan

FALLING = [[100, 150, 170, 190], [200, 290, 310, 300], [400, 480, 470, 450], [800, 700, 650, 600]]
BEST = [190, 310, 480, 800]


def planned_against(active: list[list[int]], **options: Any) -> Plan:
    """Plan a falling table while a schedule runs."""
    return plan(table_of(FALLING), PlanOptions(active=Schedule.from_ranges(active), max_batch=64, **options))


def comparison(planned: Plan) -> Finding:
    """Return the finding on the active schedule."""
    (found,) = [finding for finding in planned.findings if finding.code.startswith("active_")]
    return found


def test_a_change_says_what_it_gains_at_each_batch_and_on_average() -> None:
    """Against constant 2: batch 1, 16 and 64 change; the mean is over time for the same tokens."""
    found = comparison(planned_against([[1, 64, 2]]))
    assert found.code == "active_replaced"
    changes = [(c["batch"], c["from"], c["to"]) for c in found.evidence["changes"]]
    assert changes == [(1, 2, 3), (16, 2, 1), (64, 2, 0)]
    gains = [c["gain"] for c in found.evidence["changes"]]
    assert gains == pytest.approx([190 / 170 - 1, 480 / 470 - 1, 800 / 650 - 1])
    for change in found.evidence["changes"]:
        assert change["low"] < change["gain"] < change["high"]
    active = [170, 310, 470, 650]
    mean = sum(best / speed for best, speed in zip(BEST, active, strict=True)) / 4 - 1
    assert found.evidence["mean_gain"] == pytest.approx(mean)
    assert "batch 64 from draft length 2 to 0 (23.1 % faster)" in found.message
    assert f"on average over the batch sizes {100 * mean:.1f} % faster" in found.message


def test_a_held_schedule_says_what_was_not_worth_it() -> None:
    """Within the dead band the active table stays, and the message names the change that it forgoes."""
    planned = planned_against([[1, 3, 3], [4, 15, 2], [16, 40, 2], [41, 64, 0]], dead_band=0.05)
    assert isinstance(planned.schedule, Schedule)
    assert planned.schedule.draft_len_at(16) == 2
    found = comparison(planned)
    assert found.code == "active_kept"
    assert [(c["batch"], c["to"]) for c in found.evidence["changes"]] == [(16, 1)]
    assert "no change gains 5.0 %" in found.message
    assert found.evidence["held"]


def test_an_active_schedule_that_is_the_best_is_confirmed() -> None:
    """Nothing would change, and that is what it says."""
    found = comparison(
        planned_against(plan(table_of(FALLING), PlanOptions(max_batch=64)).as_dict()["schedule"])
    )
    assert found.code == "active_kept"
    assert found.evidence["changes"] == []
    assert found.evidence["mean_gain"] == pytest.approx(0.0)


def test_an_active_draft_length_that_was_not_measured_has_no_gain() -> None:
    """Nobody knows what 9 is worth: the change is named, its gain and the mean are not made up."""
    found = comparison(planned_against([[1, 64, 9]]))
    assert {c["gain"] for c in found.evidence["changes"]} == {None}
    assert found.evidence["mean_gain"] is None
    assert "gain not known" in found.message


def test_without_an_active_schedule_nothing_is_compared() -> None:
    """No finding speaks of a schedule that nobody gave."""
    planned = plan(table_of(FALLING), PlanOptions(max_batch=64))
    assert not [finding for finding in planned.findings if finding.code.startswith("active_")]


def test_a_mere_proposal_is_not_called_active() -> None:
    """Nobody runs it: its finding has words and a code of its own, and nothing is said of an active table."""
    standing = Schedule.from_ranges([[1, 64, 2]])
    planned = plan(table_of(FALLING), PlanOptions(proposed=standing, max_batch=64))
    (found,) = [one for one in planned.findings if one.code.startswith(("active_", "proposal_"))]
    assert found.code == "proposal_outdone"
    assert "active" not in found.message
    assert found.message.startswith("against the proposal that stands: batch 1 ")


def test_what_runs_and_what_was_proposed_are_compared_apart() -> None:
    """A proposal within the dead band stays; against what runs it is told what it would gain."""
    standing = Schedule.from_ranges([[1, 3, 3], [4, 15, 2], [16, 40, 2], [41, 64, 0]])
    running = Schedule.from_ranges([[1, 64, 2]])
    options = PlanOptions(active=running, proposed=standing, max_batch=64, dead_band=0.05)
    planned = plan(table_of(FALLING), options)
    assert isinstance(planned.schedule, Schedule)
    assert planned.schedule.draft_len_at(16) == 2
    told = {one.code: one for one in planned.findings if one.code.startswith(("active_", "proposal_"))}
    assert set(told) == {"active_replaced", "proposal_kept"}
    assert [(c["batch"], c["to"]) for c in told["active_replaced"].evidence["changes"]] == [(1, 3), (64, 0)]
    assert [(c["batch"], c["to"]) for c in told["proposal_kept"].evidence["changes"]] == [(16, 1)]
    assert "the proposal that stands stays" in told["proposal_kept"].message


def test_a_proposal_that_engines_run_is_the_active_schedule() -> None:
    """Once it runs it is spoken of as what runs, once."""
    table = Schedule.from_ranges([[1, 64, 2]])
    planned = plan(table_of(FALLING), PlanOptions(active=table, proposed=table, max_batch=64))
    codes = [one.code for one in planned.findings if one.code.startswith(("active_", "proposal_"))]
    assert codes == ["active_replaced"]


def test_a_table_that_is_held_reaches_as_far_as_the_measurements() -> None:
    """Where the largest batch is not given, a held table that ends early reaches what was measured."""
    short = Schedule.from_ranges([[1, 3, 3], [4, 15, 2], [16, 40, 1], [41, 50, 0]])
    planned = plan(table_of(FALLING), PlanOptions(proposed=short))
    assert isinstance(planned.schedule, Schedule)
    assert planned.schedule.max_batch == 64
