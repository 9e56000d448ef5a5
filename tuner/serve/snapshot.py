"""What the daemon knows at one moment: an immutable value that every request is answered from.

The daemon swaps in a new one after each job, so no request waits for a fit or a scrape.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tuner.serve.observed import Observed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tuner.cycle import Decision
    from tuner.fleet import Finding, Schedule, Target


@dataclass(frozen=True, slots=True)
class TargetStatus:
    """How one engine answered last."""

    target: Target
    up: bool
    last_scrape: float | None
    """Unix seconds of the last answer, good or bad; ``None`` before the first."""
    seconds: float
    """Duration of the last scrape."""
    error: str
    """Why it is down, one line; empty while it is up."""


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """One version of a pool's schedule."""

    pool: str
    version: str
    """First 12 hex digits of the content hash."""
    state: str
    """``proposed``, ``active``, ``superseded``, ...; what the database says."""
    schedule: Schedule
    created_at: float


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Counts of one job since the start."""

    name: str
    runs: int = 0
    errors: int = 0
    missed: int = 0
    skipped: int = 0
    """Runs left out because the one before was still going."""
    last_start: float | None = None
    last_seconds: float = 0.0
    last_success: float | None = None


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """What is configured for one pool and what is remembered of it."""

    name: str
    mode: str
    engine: str
    engines: int
    """Engines that discovery knows now."""
    windows_held: int
    """Windows that the next cycle looks at."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that ``/metrics``, the health pages and the API are answered from."""

    at: float
    """Unix seconds of the snapshot, by the daemon's clock."""
    started_at: float
    version: str
    leader: bool = False
    fence: int = 0
    not_ready: tuple[str, ...] = ("starting",)
    """Why the daemon is not ready; empty when it is."""
    unhealthy: tuple[str, ...] = ()
    """Why a restart would help (a hung job); empty when healthy."""
    config_loaded_at: float = 0.0
    """Unix seconds of the last successful load."""
    config_reload_ok: bool = True
    pools: tuple[PoolStatus, ...] = ()
    targets: tuple[TargetStatus, ...] = ()
    sources_up: Mapping[str, bool] = field(default_factory=dict)
    """Source -> up: Prometheus servers by name, ``store``, ``discovery:<pool>``, ``scrape:<pool>``."""
    windows_total: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(pool, state) -> windows since the start."""
    decision: Decision | None = None
    """The last cycle."""
    findings: tuple[Finding, ...] = ()
    """All that are active: of the cycle, of sources, of the daemon itself."""
    schedules: tuple[ScheduleStatus, ...] = ()
    """Versions in force or proposed, newest first."""
    stage_seconds: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    """Stage of a cycle -> (runs, seconds in all)."""
    jobs: tuple[JobStatus, ...] = ()
    buffered: int = 0
    """Windows that wait for the database."""
    dropped_total: int = 0
    """Windows dropped from a full buffer."""
    series_state: int = 0
    """Series that live observation holds state for."""
    observed: Observed = field(default_factory=Observed)
    """Accepted tokens per step and goodput, from :class:`tuner.serve.observed.Totals`."""
    drift: Mapping[tuple[str, str], bool] = field(default_factory=dict)
    """(pool, engine) -> it runs another schedule than the active one; only engines that were read back."""
    running: Mapping[tuple[str, str], Schedule | None] = field(default_factory=dict)
    """(pool, engine) -> the table that it says it runs, if any; only engines that were read back."""
    pushes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(pool, result) -> pushes of a schedule since the start."""
