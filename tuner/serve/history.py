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
    """Return the newest windows of a pool that begin at a moment or later, oldest first.

    ``truncated`` says that there are as many as were asked for, so older ones may be left out.
    """
    decision_of(snapshot, query["pool"])
    limit = query["limit"]
    found = history.recent_windows(query["pool"], query["since"], limit)
    return {"windows": [window_dict(window) for window in found], "truncated": len(found) >= limit}
