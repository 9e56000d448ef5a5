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
