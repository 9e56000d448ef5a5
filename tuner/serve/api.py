"""``/api/v1``: what the snapshot and the database tell, read only; keys agree with ``replay``."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

from tuner._exceptions import TunerError
from tuner.contract import pool_dict
from tuner.fleet import NotEnoughData
from tuner.serve.grouping import grouped
from tuner.serve.joining import by_target, target_names, window_names
from tuner.serve.metrics import target_state
from tuner.serve.plain import plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tuner.cycle import PoolDecision
    from tuner.fleet import Window
    from tuner.serve.joining import Named
    from tuner.serve.snapshot import Snapshot, TargetStatus

WORST = 20
"""Findings that the status tells of; ``/api/v1/findings`` has all."""
NO_DECISION = NotEnoughData("no cycle has looked at this pool yet")


class NotFoundError(TunerError):
    """What was asked for does not exist."""


class History(Protocol):
    """What the database is asked for; the methods of the store."""

    def schedules(self, pool: str | None = None, limit: int = 50) -> Sequence[Any]:
        """Return schedule versions, newest first."""

    def findings(self, *, active_only: bool = True) -> Sequence[Any]:
        """Return findings, with when they were first and last seen."""

    def events(self, limit: int) -> Sequence[Any]:
        """Return events, newest first."""

    def recent_windows(self, pool: str, since: float, limit: int) -> Sequence[Window]:
        """Return the newest windows that begin at ``since`` or later, oldest first."""


def page_of(entries: Sequence[Any], query: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return one page of a list, and how many there are in all."""
    start = query["offset"]
    return {name: list(entries[start : start + query["limit"]]), "total": len(entries), "offset": start}


def status(snapshot: Snapshot, _query: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an operator asks first."""
    targets = Counter(target_state(target) for target in snapshot.targets)
    return {
        "version": snapshot.version,
        "at": snapshot.at,
        "started_at": snapshot.started_at,
        "uptime_seconds": max(0.0, snapshot.at - snapshot.started_at),
        "leader": snapshot.leader,
        "fence": snapshot.fence,
        "ready": not snapshot.not_ready,
        "not_ready": list(snapshot.not_ready),
        "healthy": not snapshot.unhealthy,
        "unhealthy": list(snapshot.unhealthy),
        "config": {"loaded_at": snapshot.config_loaded_at, "reload_ok": snapshot.config_reload_ok},
        "sources": dict(sorted(snapshot.sources_up.items())),
        "targets": {state: targets[state] for state in ("up", "down", "unknown")},
        "windows": {
            "buffered": snapshot.buffered,
            "dropped": snapshot.dropped_total,
            "by_state": _by_state(snapshot),
        },
        "findings": dict(Counter(finding.severity for finding in snapshot.findings)),
        "worst_findings": [plain(each.as_dict()) for each in grouped(snapshot.findings)[:WORST]],
        "cycle_at": None if snapshot.decision is None else snapshot.decision.at,
        "jobs": [plain(job) for job in snapshot.jobs],
        "pools": [pool.name for pool in snapshot.pools],
    }


def _by_state(snapshot: Snapshot) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for (_, state), count in snapshot.windows_total.items():
        counts[state] += count
    return dict(sorted(counts.items()))


def decision_of(snapshot: Snapshot, pool: str) -> PoolDecision | None:
    """Return what the last cycle said of a pool, ``None`` where it said nothing yet.

    Raises:
        NotFoundError: there is no such pool.
    """
    decided = () if snapshot.decision is None else snapshot.decision.pools
    found = next((decision for decision in decided if decision.pool == pool), None)
    if found is None and pool not in {status.name for status in snapshot.pools}:
        # Names of others are not told: whoever may read this may read /api/v1/pools.
        raise NotFoundError("no such pool: /api/v1/pools lists them")
    return found


def pool_names(snapshot: Snapshot) -> list[str]:
    """Return the pools that are configured or decided about."""
    decided = () if snapshot.decision is None else snapshot.decision.pools
    return sorted({*(p.name for p in snapshot.pools), *(d.pool for d in decided)})


def pools(snapshot: Snapshot, query: Mapping[str, Any]) -> dict[str, Any]:
    """Return each pool in short."""
    return page_of([pool_summary(snapshot, name) for name in pool_names(snapshot)], query, "pools")


def pool_summary(snapshot: Snapshot, name: str) -> dict[str, Any]:
    """Return one pool in short."""
    configured = next((pool for pool in snapshot.pools if pool.name == name), None)
    decision = decision_of(snapshot, name)
    states = Counter(target_state(t) for t in snapshot.targets if t.target.pool == name)
    wanted = NO_DECISION if decision is None else decision.schedule
    known = not isinstance(wanted, NotEnoughData)
    return {
        "pool": name,
        "mode": None if configured is None else configured.mode,
        "engine": None if configured is None else configured.engine,
        "engines": 0 if configured is None else configured.engines,
        "targets": {state: states[state] for state in ("up", "down", "unknown")},
        "windows_held": 0 if configured is None else configured.windows_held,
        "schedule": plain(wanted) if known else None,
        **({} if known else {"schedule_unknown": str(wanted)}),
        "versions": [
            {"version": s.version, "state": s.state, "created_at": s.created_at}
            for s in snapshot.schedules
            if s.pool == name
        ],
        "findings": sum(finding.subject.get("pool") == name for finding in snapshot.findings),
    }


def pool(snapshot: Snapshot, query: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that is known of one pool: its summary and the keys of ``replay``."""
    name = query["pool"]
    decision = decision_of(snapshot, name)
    summary = pool_summary(snapshot, name)
    if decision is None:
        return {**summary, **_undecided(), "at": None}
    assert snapshot.decision is not None
    return {**summary, **plain(pool_dict(decision)), "at": snapshot.decision.at}


def _undecided() -> dict[str, Any]:
    unknown = {"not_enough_data": str(NO_DECISION)}
    return {
        "windows": {"total": 0, "good": 0, "by_state": {}},
        "acceptance": [],
        "acceptance_unknown": str(NO_DECISION),
        "step_time": unknown,
        "crossover": unknown,
        "accepted_lengths": [],
        "predicted_speedup": [],
        "schedule": None,
        "schedule_unknown": str(NO_DECISION),
        "explain": [],
        "findings": [],
    }


def explain(snapshot: Snapshot, query: Mapping[str, Any]) -> dict[str, Any]:
    """Return why a pool's schedule is what it is, or why there is none."""
    whole = pool(snapshot, query)
    keys = ("pool", "at", "schedule", "schedule_unknown", "explain", "crossover", "findings")
    return {key: whole[key] for key in keys if key in whole}


def engines(snapshot: Snapshot, query: Mapping[str, Any]) -> dict[str, Any]:
    """Return engines, as discovery knows them and as they answered last."""
    wanted, state = query["pool"], query["state"]
    if wanted is not None:
        decision_of(snapshot, wanted)
    found = [
        target
        for target in sorted(snapshot.targets, key=lambda t: (t.target.pool, t.target.engine))
        if wanted in (None, target.target.pool) and state in (None, target_state(target))
    ]
    page = page_of(found, query, "engines")
    names = target_names(snapshot.targets)
    goodput = by_target(snapshot.observed.goodput, names)
    windows = window_names(snapshot.observed.goodput, names)
    return {**page, "engines": [_engine(snapshot, each, goodput, windows) for each in page["engines"]]}


def _engine(
    snapshot: Snapshot,
    status: TargetStatus,
    goodput: Mapping[Named, float],
    windows: Mapping[Named, list[str]],
) -> dict[str, Any]:
    target = status.target
    key = (target.pool, target.engine)
    running = snapshot.running.get(key)
    return {
        "pool": target.pool,
        "engine": target.engine,
        "url": target.url,
        "origin": target.origin,
        "labels": dict(target.labels),
        "state": target_state(status),
        "last_scrape": status.last_scrape,
        "seconds": status.seconds,
        "error": status.error,
        "tokens_per_second": plain(goodput.get(key)),
        "window_engines": windows.get(key, []),
        "read_back": key in snapshot.running,
        "running": plain(running),
        "drift": snapshot.drift.get(key),
    }


def acceptance(snapshot: Snapshot, query: Mapping[str, Any]) -> dict[str, Any]:
    """Return acceptance of every pool and route, and of which pools it cannot be told."""
    out: list[Any] = []
    unknown: list[dict[str, str]] = []
    for name in _chosen(snapshot, query):
        decision = decision_of(snapshot, name)
        told = _undecided() if decision is None else pool_dict(decision)
        out += told["acceptance"]
        if "acceptance_unknown" in told:
            unknown.append({"pool": name, "route": "*", "not_enough_data": told["acceptance_unknown"]})
        for route, reason in told.get("routes_unknown", {}).items():
            unknown.append({"pool": name, "route": route, "not_enough_data": reason})
    return {"acceptance": plain(out), "cannot_say": unknown}


def crossover(snapshot: Snapshot, query: Mapping[str, Any]) -> dict[str, Any]:
    """Return the crossover of every pool, or why it cannot be told."""
    out: list[dict[str, Any]] = []
    for name in _chosen(snapshot, query):
        decision = decision_of(snapshot, name)
        found = NO_DECISION if decision is None else decision.crossover
        told = {"not_enough_data": str(found)} if isinstance(found, NotEnoughData) else found.as_dict()
        out.append({"pool": name, **plain(told)})
    return {"crossover": out}


def _chosen(snapshot: Snapshot, query: Mapping[str, Any]) -> list[str]:
    """Return the pool asked for, or all.

    Raises:
        NotFoundError: there is no such pool.
    """
    wanted: str | None = query["pool"]
    if wanted is None:
        return pool_names(snapshot)
    decision_of(snapshot, wanted)
    return [wanted]
