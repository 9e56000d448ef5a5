"""Answers that need the database: schedules, findings, events, windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tuner.serve.api import History, decision_of
from tuner.serve.plain import plain, window_dict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tuner.serve.snapshot import Snapshot


def schedules(history: History, snapshot: Snapshot, query: Mapping[str, Any]) -> dict[str, Any]:
    """Return schedule versions, newest first."""
    wanted = query["pool"]
    if wanted is not None:
        decision_of(snapshot, wanted)
    return {"schedules": [plain(record) for record in history.schedules(wanted, query["limit"])]}


def findings(history: History, snapshot: Snapshot, query: Mapping[str, Any]) -> dict[str, Any]:
    """Return findings with when they were seen, those that are over only if asked for."""
    wanted, severity = query["pool"], query["severity"]
    if wanted is not None:
        decision_of(snapshot, wanted)
    out = []
    for record in history.findings(active_only=query["active"] == "true"):
        finding = record.finding
        if wanted not in (None, finding.subject.get("pool")) or severity not in (None, finding.severity):
            continue
        out.append(
            {
                **plain(finding.as_dict()),
                "first_seen": plain(record.first_seen),
                "last_seen": plain(record.last_seen),
                "resolved_at": plain(record.resolved_at),
            }
        )
    start, most = query["offset"], query["limit"]
    return {"findings": out[start : start + most], "total": len(out), "offset": start}


def events(history: History, _snapshot: Snapshot, query: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was done and by whom, newest first."""
    return {"events": [plain(record) for record in history.events(query["limit"])]}


def windows(history: History, snapshot: Snapshot, query: Mapping[str, Any]) -> dict[str, Any]:
    """Return windows of a pool that end after a moment, oldest first.

    ``next_since`` is there when more may follow: ask again with it.
    """
    decision_of(snapshot, query["pool"])
    limit = query["limit"]
    found = sorted(
        history.recent_windows(query["pool"], query["since"], limit),
        key=lambda window: (window.end, window.engine, window.route),
    )
    out: dict[str, Any] = {"windows": [window_dict(window) for window in found[:limit]]}
    if len(found) >= limit:
        out["next_since"] = plain(found[limit - 1].end)
    return out
