"""The planner against the true optimum of random engines: fewer repetitions of the benchmark."""

from __future__ import annotations

import pytest

from bench.recovery.planner import CASES, run
from bench.recovery.planner_world import SHAPES


def test_bounds_hold_in_random_worlds() -> None:
    """Mean regret under 1 %, 95th percentile under 3 %, never worse than none by 1 % at bounded errors."""
    rows = run(15)
    assert len(rows) == len(CASES) * (len(SHAPES) + 1)
    assert [row["broken"] for row in rows] == [""] * len(rows)


@pytest.mark.long
def test_bounds_hold_in_many_worlds() -> None:
    """The same with ten times the worlds of the benchmark's default."""
    assert [row["broken"] for row in run(2000)] == [""] * len(CASES) * (len(SHAPES) + 1)
