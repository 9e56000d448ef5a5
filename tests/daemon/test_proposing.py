"""A plan is proposed once it holds, and another one once the last had its time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.cycle.world import pool_windows
from tests.plan.tables import table_of
from tuner.cycle import Evidence, PoolDecision, State, run_once
from tuner.daemon.proposing import CYCLES, Proposer
from tuner.fleet import NotEnoughData, Schedule
from tuner.plan.options import PlanOptions
from tuner.plan.planner import plan
from tuner.serve.snapshot import ScheduleStatus

if TYPE_CHECKING:
    from tuner.plan.goodput import GoodputTable

Rows = list[list[float]]
NOTHING = NotEnoughData("not looked at")
WINDOWS = tuple(w for w in pool_windows() if w.batch in {5, 12, 30, 100})
"""Load at the batch sizes 4, 16 and 64 of the tables below."""
LONG: Rows = [[100, 150, 152], [200, 290, 310], [400, 480, 440], [800, 700, 600]]
NEARLY: Rows = [[100, 150, 152], [200, 306, 305], [400, 480, 440], [800, 700, 600]]
"""As above, but at batch 4 a draft length less is half a percent faster."""
SHORT: Rows = [[100, 150, 152], [200, 290, 310], [400, 360, 340], [800, 700, 600]]
"""As the first, but drafts lose at batch 16, by 10 % and more."""


def _decision(goodput: Rows | None) -> PoolDecision:
    """Return what a cycle made of a table, or of nothing."""
    table: GoodputTable | None = None if goodput is None else table_of(goodput)
    planned = NOTHING if table is None else plan(table, PlanOptions(max_batch=64, without=WITHOUT))
    return PoolDecision("p", WINDOWS, NOTHING, NOTHING, planned, table, ())


WITHOUT = frozenset({"tie"})


class Pool:
    """A pool whose cycles come each minute."""

    def __init__(self) -> None:
        self.proposer = Proposer()
        self.standing: ScheduleStatus | None = None
        self.now = 1e9
        self.proposed: list[Schedule] = []

    def cycle(self, goodput: Rows | None, times: int = 1, **settings: Any) -> None:
        """Let cycles come to the same result."""
        for _ in range(times):
            self.now += 60.0
            wanted = self.proposer.wanted(
                _decision(goodput),
                self.standing,
                **{"tie": 0.01, "dwell": 600.0, "now": self.now, **settings},
            )
            if wanted is not None:
                self.proposed.append(wanted)
                self.standing = ScheduleStatus("p", wanted.version, "proposed", wanted, self.now)


def test_a_plan_is_proposed_once_three_cycles_agree() -> None:
    """Not the first and not the second; and once only."""
    pool = Pool()
    pool.cycle(LONG, CYCLES - 1)
    assert pool.proposed == []
    pool.cycle(LONG)
    assert pool.proposed == [_decision(LONG).schedule]
    pool.cycle(LONG, 30)
    assert len(pool.proposed) == 1


@pytest.mark.parametrize("between", [SHORT, None])
def test_a_cycle_that_says_something_else_begins_the_count_anew(between: Rows | None) -> None:
    """So does one that says nothing."""
    pool = Pool()
    pool.cycle(LONG, CYCLES - 1)
    pool.cycle(between)
    pool.cycle(LONG, CYCLES - 1)
    assert pool.proposed == []
    pool.cycle(LONG)
    assert len(pool.proposed) == 1


def test_differences_within_the_tie_are_the_same_plan() -> None:
    """Tables that differ in text and by a sixth of a percent count on, and the standing text is kept."""
    assert _decision(LONG).schedule != _decision(NEARLY).schedule
    pool = Pool()
    for goodput in (LONG, NEARLY, LONG):
        pool.cycle(goodput)
    assert len(pool.proposed) == 1
    pool.cycle(NEARLY, 30)
    assert len(pool.proposed) == 1


def test_another_plan_waits_for_the_dwell() -> None:
    """A change worth 3 % on average waits until the standing proposal is ten minutes old."""
    pool = Pool()
    pool.cycle(LONG, CYCLES)
    begun = pool.now
    milder: Rows = [LONG[0], LONG[1], [400, 480, 500], LONG[3]]
    pool.cycle(milder, 9)
    assert len(pool.proposed) == 1
    pool.cycle(milder)
    assert len(pool.proposed) == 2
    assert pool.now - begun == 600.0


def test_a_severe_loss_does_not_wait_for_the_dwell() -> None:
    """Where the standing proposal loses more than 5 % beyond doubt, three cycles are enough."""
    pool = Pool()
    pool.cycle(LONG, CYCLES)
    pool.cycle(SHORT, CYCLES)
    assert pool.proposed == [_decision(LONG).schedule, _decision(SHORT).schedule]


def test_a_clock_that_was_set_back_delays_nothing_for_ever() -> None:
    """A proposal that is dated in the future has no age, and does not hold up the next."""
    pool = Pool()
    pool.cycle(LONG, CYCLES)
    pool.now -= 86_400.0
    pool.cycle([LONG[0], LONG[1], [400, 480, 500], LONG[3]], CYCLES)
    assert len(pool.proposed) == 2


def test_one_draft_length_is_nothing_to_choose_from() -> None:
    """Where only one ran there is no plan, so no proposal ever comes of it."""
    alone = [w for w in pool_windows() if w.draft_lens == frozenset({2})]
    (one,) = run_once(Evidence(tuple(alone)), State(), 2e9).pools
    assert isinstance(one.schedule, NotEnoughData)
    assert "only draft length 2 was measured" in one.schedule.reason
    proposer = Proposer()
    for cycle in range(10):
        assert proposer.wanted(one, None, tie=0.01, dwell=0.0, now=60.0 * cycle) is None
