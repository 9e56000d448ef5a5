"""Merging ranges: few thresholds, but never a draft where it is slower than none."""

from __future__ import annotations

import numpy as np

from tuner.fleet import Schedule
from tuner.plan.goodput import GoodputTable
from tuner.plan.options import PlanOptions
from tuner.plan.planner import plan


def test_the_last_range_without_speculation_is_not_merged_away() -> None:
    """With room for two ranges, the middle one goes, not the one in which any draft loses."""
    gains = np.log([[1.0, 1.2, 1.6], [1.0, 1.3, 1.29], [1.0, 1.1, 1.02], [1.0, 0.985, 0.9]])
    table = GoodputTable.from_moments([1, 8, 64, 128], [0, 1, 2], gains, np.full((4, 3), 0.002))
    schedule = plan(table, PlanOptions(max_ranges=2, max_batch=128)).schedule
    assert isinstance(schedule, Schedule)
    assert schedule.draft_len_at(128) == 0
    assert schedule.draft_len_at(1) > 0
