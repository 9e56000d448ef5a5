"""When a plan becomes a proposal: once it holds, and not again before the last one had time to be used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.fleet import Schedule
from tuner.plan.apart import apart, loses, used

if TYPE_CHECKING:
    from tuner.cycle import PoolDecision
    from tuner.serve.snapshot import ScheduleStatus

CYCLES = 3
"""Cycles in a row that must choose the same: on the simulated fleet plans of a minute's windows lose up to
7 % at some batch size, and change from one to the next."""
SEVERE = 0.05
"""Loss of the standing proposal, at a batch size that is used and beyond doubt, that another one does not
wait for ``guard.dwell``: five ties of 1 %, which no noise of a fit makes."""


@dataclass(frozen=True, slots=True)
class _Streak:
    """A schedule that the last cycles chose, up to a tie."""

    first: Schedule
    cycles: int


class Proposer:
    """Remembers by pool what the last cycles chose."""

    def __init__(self) -> None:
        self._streaks: dict[str, _Streak] = {}

    def forget(self, pool: str) -> None:
        """Begin a pool anew: another daemon may have proposed since."""
        self._streaks.pop(pool, None)

    def wanted(
        self, one: PoolDecision, standing: ScheduleStatus | None, *, tie: float, dwell: float, now: float
    ) -> Schedule | None:
        """Return the schedule to be proposed after this cycle, ``None`` where what stands, stands.

        Two schedules whose mean speeds, over the time that was spent at each batch size, differ by less than
        ``tie`` are the same one, however their texts differ.

        Args:
            one: what the cycle decided of a pool.
            standing: the last proposal.
            tie: ratio of speeds that counts as equal.
            dwell: seconds that a proposal stands at least.
            now: unix seconds.
        """
        chosen, table = one.schedule, one.table
        if not isinstance(chosen, Schedule) or table is None:
            self._streaks.pop(one.pool, None)
            return None
        shares = used(table, one.windows)
        before = self._streaks.get(one.pool)
        lasts = before is not None and apart(table, before.first, chosen, shares) < tie
        streak = _Streak(before.first, before.cycles + 1) if before and lasts else _Streak(chosen, 1)
        self._streaks[one.pool] = streak
        if streak.cycles < CYCLES:
            return None
        if standing is None:
            return chosen
        if standing.schedule == chosen or apart(table, standing.schedule, chosen, shares) < tie:
            return None
        young = 0.0 <= now - standing.created_at < dwell
        if young and not loses(table, standing.schedule, chosen, shares, SEVERE):
            return None
        return chosen
