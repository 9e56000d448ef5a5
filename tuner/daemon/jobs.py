"""The jobs of the daemon in one table: what runs, when, and what happens when it cannot.

Both drivers read this table: production runs it by APScheduler, accelerated runs step through the same
triggers in virtual time. No job reads a clock; ``now`` is passed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from apscheduler.triggers.interval import IntervalTrigger  # type: ignore[import-untyped]  # ships no types

if TYPE_CHECKING:
    from collections.abc import Callable

    from tuner.config import Config

LEASE_TTL = 20.0
"""Seconds for which a silent leader keeps the lease. A stand-by that looks every 5 s has it 25 s after the
last renewal, within the 30 s that are promised."""
RENEWALS = 4
"""Renewals of the lease within its life: three may fail before it is lost."""
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
RECALL_SECONDS = 2.0
"""The first cycle over windows that the database remembers waits this long after they were read, so that the
first discovery and read-back are over where they are quick."""


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
class Cadence:
    """The intervals that are settings, in seconds."""

    scrape: float
    cycle: float
    discovery: float
    lease: float = LEASE_TTL / RENEWALS

    @classmethod
    def of(cls, config: Config, lease_ttl: float = LEASE_TTL) -> Self:
        """Return the intervals of a configuration."""
        return cls(
            config.scrape.interval, config.cycle.interval, config.discovery.interval, lease_ttl / RENEWALS
        )


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One row of the table."""

    name: str
    function: str
    """Method of the service, called with ``now``."""
    interval: Callable[[Cadence], float]
    """Seconds between two runs."""
    first: Callable[[Cadence], float]
    """Seconds from the start to the first run."""
    grace: Callable[[Cadence], float]
    """Seconds by which a run may be late; one that is later is left out and counted."""
    jitter: Callable[[Cadence], float] = lambda _: 0.0
    coalesce: bool = True
    """Runs that are due together run once."""
    max_instances: int = 1
    """Runs at the same time; one that comes while the last is going is left out and counted."""
    workers: int = 1
    """Threads of its own executor: no hung job takes the thread of another."""

    def trigger(self, cadence: Cadence, now: float) -> Every:
        """Return when it runs, for a start at ``now``."""
        return every(self.interval(cadence), now + self.first(cadence), jitter=self.jitter(cadence))


def _fixed(seconds: float) -> Callable[[Cadence], float]:
    return lambda _: seconds


def _scrape(cadence: Cadence) -> float:
    return cadence.scrape


def _cycle(cadence: Cadence) -> float:
    return cadence.cycle


def _discovery(cadence: Cadence) -> float:
    return cadence.discovery


def _lease(cadence: Cadence) -> float:
    return cadence.lease


def _spread(cadence: Cadence) -> float:
    return DISCOVERY_JITTER * cadence.discovery


JOBS: tuple[JobSpec, ...] = (
    JobSpec("lease", "lead", _lease, first=_fixed(0.0), grace=_lease),
    JobSpec("discovery", "discover", _discovery, first=_fixed(0.0), grace=_discovery, jitter=_spread),
    JobSpec("readback", "read_back", _cycle, first=_fixed(SETTLE_SECONDS / 2), grace=_cycle),
    JobSpec("scrape", "scrape", _scrape, first=_fixed(SETTLE_SECONDS), grace=_scrape),
    JobSpec("cycle", "cycle", _cycle, first=_cycle, grace=_cycle),
    JobSpec(
        "rollup", "roll_up", _fixed(ROLLUP_SECONDS), first=_fixed(ROLLUP_SECONDS), grace=_fixed(LATE_SECONDS)
    ),
    JobSpec(
        "retention",
        "retain",
        _fixed(RETENTION_SECONDS),
        first=_fixed(ROLLUP_SECONDS),
        grace=_fixed(LATE_SECONDS),
    ),
    JobSpec(
        "watch", "watch", _fixed(WATCH_SECONDS), first=_fixed(WATCH_SECONDS), grace=_fixed(WATCH_SECONDS)
    ),
)
"""In the order in which jobs run that are due at the same moment of virtual time."""


def job(name: str) -> JobSpec:
    """Return one row by its name."""
    return next(spec for spec in JOBS if spec.name == name)
