"""Noise of repeats: pooled over cells, except for a cell that is alone with it."""

from __future__ import annotations

import numpy as np

from tuner.fleet import Schedule
from tuner.observe.sweep import read_sweep
from tuner.plan.planner import plan
from tuner.plan.sweep import from_sweep

HEADER = "batch,draft_len,tokens_per_second\n"
FAILED_REPEAT = HEADER + "8,0,300\n8,0,300\n8,2,450\n8,2,452\n8,2,45\n8,4,430\n8,4,428\n"


def test_one_failed_repeat_says_nothing_of_other_cells() -> None:
    """A repeat at a tenth makes its own cell uncertain; a draft that repeats well is scheduled instead."""
    table = from_sweep(read_sweep(FAILED_REPEAT).rows)
    low, high = table.interval(0, 2)[1:]
    assert high / low < 1.1
    low, high = table.interval(0, 1)[1:]
    assert high / low > 4
    schedule = plan(table).schedule
    assert isinstance(schedule, Schedule)
    assert schedule.as_lists() == [[1, 8, 4]]


def test_noise_that_all_cells_share_stays_pooled() -> None:
    """Repeats that differ by 10 % everywhere are the machine's noise, and no cell is singled out."""
    rng = np.random.default_rng(5)
    rows = [
        f"{batch},{k},{1000 * float(np.exp(rng.normal(0, 0.1)))}"
        for batch in (1, 8, 64)
        for k in (0, 2, 4)
        for _ in range(4)
    ]
    table = from_sweep(read_sweep(HEADER + "\n".join(rows)).rows)
    assert np.ptp(table.log_sd) < 1e-9
    assert 0.03 < table.log_sd[0, 0] < 0.08
