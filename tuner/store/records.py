"""What the store gives back: frozen values, no sessions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tuner.fleet import POOLED_ROUTE, Fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tuner.fleet import Finding, Schedule

ScheduleState = Literal["proposed", "active", "superseded"]


@dataclass(frozen=True, slots=True)
class FitRecord:
    """A fit and where it came from."""

    pool: str
    kind: str
    """``acceptance`` or ``step_time``."""
    source: str
    """``direct`` or ``prometheus:<name>``; several are joined by commas."""
    span_start: float
    """Unix seconds of the first window that it was made from."""
    span_end: float
    windows: int
    """How many windows it was made from."""
    parameters: Mapping[str, Any]
    """The fit itself, as JSON; where it cannot be given, ``{"not_enough_data": reason}``."""
    counts: Mapping[str, Any] = field(default_factory=dict)
    """Drafts, exposures by position, cells: what it rests on."""
    residuals: Mapping[str, Any] = field(default_factory=dict)
    """What it leaves unexplained."""
    fingerprint: Fingerprint = field(default_factory=Fingerprint)
    code_version: str = ""
    route: str = POOLED_ROUTE
    id: int = 0
    """Number in the database, 0 before it is saved."""
    created_at: float = 0.0
    """Unix seconds, set when it is saved."""


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """One version of a pool's schedule. Content never changes; ``state`` does."""

    pool: str
    version: str
    """First 12 hex digits of the content hash."""
    number: int
    """1, 2, 3, ... per pool."""
    state: ScheduleState
    schedule: Schedule
    created_at: float
    why: str
    fit_ids: tuple[int, ...] = ()
    """Fits that it follows from."""
    state_since: float = 0.0


@dataclass(frozen=True, slots=True)
class FindingRecord:
    """A finding from when it was first seen to when it was gone."""

    finding: Finding
    first_seen: float
    last_seen: float
    resolved_at: float | None
    """``None`` while it is active."""


@dataclass(frozen=True, slots=True)
class EventRecord:
    """One line of the audit trail."""

    id: int
    at: float
    actor: str
    action: str
    subject: Mapping[str, str]
    why: str
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RollUp:
    """What one roll-up did."""

    read: int = 0
    """Rows of the finer tiers."""
    minutes: int = 0
    """Rows written by minute."""
    hours: int = 0
    """Rows written by hour."""
    late: int = 0
    """Buckets rolled up again because windows came late."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """Rows that retention deleted."""

    raw: int = 0
    minute: int = 0
    hour: int = 0
    fits: int = 0
    findings: int = 0
    job_runs: int = 0
    series: int = 0
