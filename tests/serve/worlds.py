"""Snapshots of small fleets whose decisions come of real fits to synthetic windows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from tests.plan.engine_windows import engine_windows
from tuner.cycle import Decision, Evidence, State, run_once
from tuner.fleet import Finding, Schedule, Target, Window
from tuner.serve.observed import Totals
from tuner.serve.snapshot import JobStatus, PoolStatus, ScheduleStatus, Snapshot, TargetStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner._exceptions import TunerError

NOW = 1e9 + 100_000.0
HAZARDS = (0.8, 0.72, 0.66, 0.6)
"""Acceptance of the pool ``chat`` by position."""
CROSSOVER = 100.0
"""Of the pool ``chat``: 20 ms fixed, 0.2 ms a token."""


def _step_seconds(tokens: float, draft_len: int) -> float:
    return 0.02 + 0.0002 * tokens + 0.001 * draft_len


@cache
def chat_windows() -> tuple[Window, ...]:
    """Windows of a pool that everything can be said about, one engine, two routes beside the whole."""
    found = engine_windows((0, 1, 2, 4), (1, 4, 16, 64, 128), HAZARDS, _step_seconds, seed=1)
    pooled = [replace(window, pool="chat", engine="e0") for window in found]
    routed = [replace(window, route=route) for window in pooled for route in ("tool", "web")]
    return tuple(pooled + routed)


@cache
def decision() -> Decision:
    """Two pools: ``chat`` is known well, ``thin`` ran one draft length at one batch size."""
    thin = engine_windows((3,), (8,), HAZARDS, _step_seconds, seed=2)
    windows = [*chat_windows(), *(replace(window, pool="thin", engine="t0") for window in thin)]
    return run_once(Evidence(tuple(windows)), State(), NOW)


def finding(code: str = "source_down", **subject: str) -> Finding:
    """Return a finding about ``subject``."""
    return Finding(code, "warning", f"{code} was noticed. Look at it.", subject, {"have": float("nan")})


def target(pool: str, engine: str, *, up: bool | None = True) -> TargetStatus:
    """Return an engine that is up, down, or (``None``) not scraped yet."""
    url = f"http://127.0.0.1:8000/{pool}/{engine}"
    return TargetStatus(
        Target(pool, engine, url, labels=(("rack", "r1"),)),
        up=bool(up),
        last_scrape=None if up is None else NOW - 3.0,
        seconds=0.02,
        error="" if up else "connection refused",
    )


def snapshot(**changed: Any) -> Snapshot:
    """Return a snapshot of a fleet of three pools; ``new`` has no window yet."""
    totals = Totals()
    totals.add(chat_windows())
    last = max(window.end for window in chat_windows())
    table = Schedule.from_ranges([[1, 8, 4], [9, 64, 2], [65, 256, 0]])
    older = Schedule.from_ranges([[1, 256, 3]])
    given: dict[str, Any] = {
        "at": NOW,
        "started_at": NOW - 3600.0,
        "version": "1.2.3",
        "leader": True,
        "fence": 7,
        "not_ready": (),
        "config_loaded_at": NOW - 3600.0,
        "pools": tuple(
            PoolStatus(name, "observe", "vllm", engines, 100)
            for name, engines in (("chat", 2), ("thin", 1), ("new", 1))
        ),
        "targets": (
            target("chat", "e0"),
            target("chat", "e1", up=False),
            target("thin", "t0"),
            target("new", "n0", up=None),
        ),
        "sources_up": {"main": True, "store": True, "discovery:chat": False},
        "windows_total": {("chat", "good"): 160, ("chat", "idle"): 3, ("thin", "good"): 8},
        "decision": decision(),
        "findings": (
            finding(pool="chat"),
            finding("clock_stepped"),
            finding("drift", pool="chat", route="web"),
        ),
        "schedules": (
            ScheduleStatus("chat", table.version, "active", table, NOW - 600.0),
            ScheduleStatus("chat", older.version, "superseded", older, NOW - 6000.0),
        ),
        "stage_seconds": {"fit": (10, 3.5), "plan": (10, 0.5)},
        "jobs": (
            JobStatus("scrape", 240, 1, 2, 3, NOW - 10.0, 0.5, NOW - 9.5),
            JobStatus("retention"),
        ),
        "buffered": 4,
        "dropped_total": 5,
        "series_state": 120,
        "observed": totals.observed(last),
        "drift": {("chat", "e0"): False, ("chat", "e1"): True},
        "pushes": {("chat", "applied"): 2},
    }
    return Snapshot(**{**given, **changed})


@dataclass(frozen=True)
class ScheduleRow:
    """A schedule as the database gives it."""

    pool: str
    version: str
    number: int
    state: str
    schedule: Schedule
    created_at: float
    why: str = "first"


@dataclass(frozen=True)
class FindingRow:
    """A finding as the database gives it."""

    finding: Finding
    first_seen: float
    last_seen: float
    resolved_at: float | None


@dataclass(frozen=True)
class EventRow:
    """An event as the database gives it."""

    at: float
    actor: str
    action: str
    subject: dict[str, str]
    why: str
    detail: dict[str, Any]


@dataclass
class Ledger:
    """A history in memory; ``fails`` is raised by every method."""

    fails: TunerError | None = None
    stored: Sequence[Window] = field(default_factory=chat_windows)

    def _check(self) -> None:
        if self.fails is not None:
            raise self.fails

    def schedules(self, pool: str | None = None, limit: int = 50) -> list[ScheduleRow]:
        """Return one version."""
        self._check()
        table = Schedule.from_ranges([[1, 8, 4], [9, 64, 2]])
        rows = [ScheduleRow("chat", table.version, 1, "active", table, NOW)]
        return [row for row in rows if pool in (None, row.pool)][:limit]

    def findings(self, *, active_only: bool = True) -> list[FindingRow]:
        """Return one finding that is active, and one that is over."""
        self._check()
        rows = [
            FindingRow(finding(pool="chat"), NOW - 60.0, NOW, None),
            FindingRow(finding("clock_stepped"), NOW - 600.0, NOW - 300.0, NOW - 240.0),
        ]
        return [row for row in rows if row.resolved_at is None or not active_only]

    def events(self, limit: int) -> list[EventRow]:
        """Return one event."""
        self._check()
        return [EventRow(NOW, "tuner", "propose", {"pool": "chat"}, "why", {"n": 1})][:limit]

    def recent_windows(self, pool: str, since: float, limit: int) -> list[Window]:
        """Return the newest windows that begin at ``since`` or later, oldest first."""
        self._check()
        found = [window for window in self.stored if window.pool == pool and window.start >= since]
        return sorted(found, key=lambda window: (window.start, window.route))[-limit:]
