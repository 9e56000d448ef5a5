"""The jobs of the daemon in one table: what runs, when, and what happens when it cannot.

Both drivers read this table: production runs it by APScheduler, accelerated runs step through the same
triggers in virtual time. No job reads a clock; ``now`` is passed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from apscheduler.triggers.interval import IntervalTrigger  # type: ignore[import-untyped]  # ships no types

if TYPE_CHECKING:
    from collections.abc import Callable

    from tuner.config import Config

LEASE_SECONDS = 5.0
"""Time between two renewals of the lease: three may fail before its 20 s are over."""
WATCH_SECONDS = 5.0
"""Time between two notices to systemd. WatchdogSec must be at least twice that."""
ROLLUP_SECONDS = 60.0
"""Minute sums are made once a minute."""
RETENTION_SECONDS = 3600.0
"""What is too old is deleted hourly: raw windows live at most 7 h where 6 h are asked for."""
LATE_SECONDS = 3600.0
"""Grace of the jobs that sum and delete: run late rather than not at all, and a real miss gives an event."""
DISCOVERY_JITTER = 0.05
"""Share of the interval by which refreshes of discovery are spread, so that replicas do not ask in step."""
SETTLE_SECONDS = 1.0
"""The first scrape waits this long, so that the first lease and the first discovery are over."""


class Every(IntervalTrigger):  # type: ignore[misc]  # a base without types
    """Every so many seconds, in phase; run times that have passed are left out, not listed.

    APScheduler's own lists each missed one before it merges them: 30 days of 5 s are half a million.
    """

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime | None:
        """Return the first time of the series that is still to come."""
        following: datetime | None = super().get_next_fire_time(previous_fire_time, now)
        if previous_fire_time is None or following is None or following > now:
            return following
        behind = (now - following).total_seconds()
        whole = (behind // self.interval_length + 1) * self.interval_length
        return datetime.fromtimestamp(following.timestamp() + whole, tz=UTC)


def every(seconds: float, first: float, *, jitter: float = 0.0) -> Every:
    """Return a trigger for every ``seconds`` from ``first``, unix seconds."""
    return Every(
        seconds=seconds,
        start_date=datetime.fromtimestamp(first, tz=UTC),
        timezone=UTC,
        jitter=jitter or None,
    )


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One row of the table."""

    name: str
    interval: Callable[[Config], float]
    """Seconds between two runs."""
    function: str
    """Method of the service, called with ``now``."""
    first: Callable[[Config], float]
    """Seconds from the start to the first run."""
    grace: Callable[[Config], float]
    """Seconds by which a run may be late; one that is later is left out and counted."""
    jitter: Callable[[Config], float] = lambda _: 0.0
    coalesce: bool = True
    """Runs that are due together run once."""
    max_instances: int = 1
    """Runs at the same time; one that comes while the last is going is left out and counted."""
    workers: int = 1
    """Threads of its own executor: no hung job takes the thread of another."""

    def trigger(self, config: Config, now: float) -> Every:
        """Return when it runs, for a start at ``now``."""
        return every(self.interval(config), now + self.first(config), jitter=self.jitter(config))


def _fixed(seconds: float) -> Callable[[Config], float]:
    return lambda _: seconds


JOBS: tuple[JobSpec, ...] = (
    JobSpec("lease", _fixed(LEASE_SECONDS), "lead", _fixed(0.0), _fixed(LEASE_SECONDS)),
    JobSpec(
        "discovery",
        lambda config: config.discovery.interval,
        "discover",
        _fixed(0.0),
        lambda config: config.discovery.interval,
        jitter=lambda config: DISCOVERY_JITTER * config.discovery.interval,
    ),
    JobSpec(
        "readback",
        lambda config: config.cycle.interval,
        "read_schedules",
        _fixed(SETTLE_SECONDS / 2),
        lambda config: config.cycle.interval,
    ),
    JobSpec(
        "scrape",
        lambda config: config.scrape.interval,
        "scrape",
        _fixed(SETTLE_SECONDS),
        lambda config: config.scrape.interval,
    ),
    JobSpec(
        "cycle",
        lambda config: config.cycle.interval,
        "cycle",
        lambda config: config.cycle.interval,
        lambda config: config.cycle.interval,
    ),
    JobSpec("rollup", _fixed(ROLLUP_SECONDS), "roll_up", _fixed(ROLLUP_SECONDS), _fixed(LATE_SECONDS)),
    JobSpec("retention", _fixed(RETENTION_SECONDS), "retain", _fixed(ROLLUP_SECONDS), _fixed(LATE_SECONDS)),
    JobSpec("watch", _fixed(WATCH_SECONDS), "watch", _fixed(WATCH_SECONDS), _fixed(WATCH_SECONDS)),
)
"""In the order in which jobs run that are due at the same moment of virtual time."""


def job(name: str) -> JobSpec:
    """Return one row by its name."""
    return next(spec for spec in JOBS if spec.name == name)
