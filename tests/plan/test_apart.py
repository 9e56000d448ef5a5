"""How far schedules lie apart is told by speed where they are used, whatever their texts say."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.cycle.world import pool_windows
from tests.plan.tables import table_of
from tuner.fleet import Schedule, WindowState
from tuner.plan.apart import apart, loses, used
from tuner.plan.goodput import GoodputTable

TABLE = table_of([[100, 150, 152], [200, 290, 310], [400, 480, 440], [800, 700, 600]])
"""Batch sizes 1, 4, 16 and 64 at draft lengths 0, 1 and 2."""
EVENLY = np.full(4, 0.25)


def _schedule(*rows: list[int]) -> Schedule:
    return Schedule.from_ranges(rows)


def test_another_text_of_the_same_draft_lengths_is_no_distance() -> None:
    """An edge that moves between two batch sizes of the table changes nothing that is known."""
    one, other = _schedule([1, 5, 2], [6, 64, 1]), _schedule([1, 15, 2], [16, 64, 1])
    assert apart(TABLE, one, other, EVENLY) == 0.0


def test_a_difference_counts_for_the_time_that_is_spent_there() -> None:
    """1.3 % at one of four batch sizes is a quarter of that, and all of it where only that one is used."""
    one, other = _schedule([1, 3, 1], [4, 64, 1]), _schedule([1, 3, 2], [4, 64, 1])
    gain = 152 / 150
    assert apart(TABLE, one, other, EVENLY) == pytest.approx(gain**0.25 - 1)
    assert apart(TABLE, other, one, EVENLY) == pytest.approx(gain**0.25 - 1)
    assert apart(TABLE, one, other, np.array([1.0, 0, 0, 0])) == pytest.approx(gain - 1)
    assert apart(TABLE, one, other, np.array([0, 0, 0, 1.0])) == 0.0


def test_gains_and_losses_do_not_cancel() -> None:
    """Better at one batch size and worse at another is another schedule."""
    one, other = _schedule([1, 15, 1], [16, 64, 1]), _schedule([1, 15, 2], [16, 64, 2])
    assert apart(TABLE, one, other, EVENLY) > 0.05


def test_what_is_not_known_is_no_tie() -> None:
    """A draft length outside the table, or the silence beyond a schedule's end, is infinitely far."""
    plain = _schedule([1, 64, 1])
    assert apart(TABLE, plain, _schedule([1, 64, 7]), EVENLY) == math.inf
    assert apart(TABLE, plain, _schedule([1, 20, 1]), EVENLY) == math.inf
    assert apart(TABLE, plain, _schedule([1, 20, 1]), np.array([0.5, 0.5, 0, 0])) == 0.0
    assert apart(TABLE, plain, _schedule([1, 60, 1]), EVENLY) == 0.0, "its end is the load at batch 64"


def test_a_loss_counts_beyond_doubt_and_where_it_is_used() -> None:
    """12 % at batch 64 is a severe loss while its interval is narrow and the engine runs there."""
    old, new = _schedule([1, 64, 1]), _schedule([1, 16, 1], [17, 64, 0])
    assert loses(TABLE, old, new, EVENLY, 0.05)
    assert not loses(TABLE, new, old, EVENLY, 0.05)
    assert not loses(TABLE, old, new, np.array([0.5, 0.5, 0, 0]), 0.05)
    assert not loses(TABLE, old, new, EVENLY, 0.13)
    vague = GoodputTable.from_moments(
        TABLE.batches, TABLE.draft_lens, TABLE.log_mean, np.full(TABLE.log_mean.shape, 0.05)
    )
    assert not loses(vague, old, new, EVENLY, 0.05)
    assert not loses(TABLE, _schedule([1, 64, 7]), new, EVENLY, 0.05)


def test_the_load_is_read_from_good_windows() -> None:
    """Shares of time go to the nearest batch size of the table; other windows do not count."""
    windows = [w for w in pool_windows() if w.batch in {5, 30}]
    bad = [replace(w, state=WindowState.SUSPECT) for w in pool_windows() if w.batch == 200]
    shares = used(TABLE, [*windows, *bad])
    assert shares.sum() == pytest.approx(1.0)
    assert (shares > 0).tolist() == [False, True, True, False]
    assert not used(TABLE, bad).any()
