"""Which jobs hang, which are only slow, and how one is told from the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.daemon.jobs import JOBS

if TYPE_CHECKING:
    from tuner.daemon.book import JobBook
    from tuner.daemon.jobs import Cadence
    from tuner.daemon.logs import Logger

WATCHED_JOBS = ("scrape", "cycle")
"""Jobs whose ends are signs of life."""
HANG_INTERVALS = 2.0
"""Intervals without an end of a run after which a job is taken to hang: one run may take a whole interval
and the next one too."""
LEAST_HANG = 10.0
"""Seconds below which no job is said to hang, however short its interval."""
MOST_HANG = 600.0
"""Seconds after which a job that is no sign of life is said to hang, however long its interval: sums and
deletions of a day's windows take seconds."""
WORKING_SHARE = 0.05
"""Part of its time for which a run that is late must have had a processor to be slow and not hung: one that
computes has all of it on an idle host and a tenth on one with ten busy processes for each processor; one
that waits for an answer or a lock has less than a thousandth."""
SLOW_TIMES = 10.0
"""Times the limit after which a run that computes is taken to hang too: a loop without end computes."""


class Hangs:
    """Looks at the book of jobs; what is only slow is told in the log, once for each run."""

    def __init__(self, book: JobBook, log: Logger) -> None:
        self._book = book
        self._log = log
        self._told: frozenset[str] = frozenset()

    def hanging(self, cadence: Cadence) -> dict[str, float]:
        """Return the jobs that hang -> seconds since a run last ended, or for the others since it began."""
        late = self._late(cadence)
        slow = self._slow(cadence, late)
        return {name: seconds for name, seconds in late.items() if name not in slow}

    def tell_slow(self, cadence: Cadence) -> None:
        """Log which jobs are late and compute still."""
        late = self._late(cadence)
        slow = self._slow(cadence, late)
        for name in sorted(slow - self._told):
            self._log.warning("job slow, it computes still", job=name, seconds=round(late[name], 1))
        self._told = slow

    def _late(self, cadence: Cadence) -> dict[str, float]:
        found = {}
        for spec in JOBS:
            limit = _limit(spec.interval(cadence))
            if spec.name in WATCHED_JOBS:
                seconds = self._book.idle_for(spec.name)
            else:
                seconds, limit = self._book.running_for(spec.name), min(limit, MOST_HANG)
            if seconds > limit:
                found[spec.name] = seconds
        return found

    def _slow(self, cadence: Cadence, late: dict[str, float]) -> frozenset[str]:
        """Return those of the late jobs that compute: a restart would only begin them anew."""
        limits = {spec.name: _limit(spec.interval(cadence)) for spec in JOBS}
        return frozenset(
            name
            for name, seconds in late.items()
            if seconds < SLOW_TIMES * limits[name] and self._book.working_share(name) >= WORKING_SHARE
        )


def _limit(interval: float) -> float:
    return max(HANG_INTERVALS * interval, LEAST_HANG)
