"""The landing page: what there is and how each pool is, in one small file without any outside part."""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from tuner.fit.crossover import Crossover
from tuner.fleet import Estimate, Schedule
from tuner.serve.api import pool_names, pool_summary
from tuner.serve.estimates import route_fits, schedule_in_force

if TYPE_CHECKING:
    from tuner.cycle import PoolDecision
    from tuner.serve.snapshot import Snapshot

LINKS: Final = (
    ("/metrics", "metrics of the tuner"),
    ("/api/v1/status", "status"),
    ("/api/v1/pools", "pools"),
    ("/api/v1/engines", "engines"),
    ("/api/v1/findings", "findings"),
    ("/api/v1/schedules", "schedules"),
    ("/api/v1/events", "events"),
    ("/api/v1/openapi.json", "OpenAPI document"),
    ("/-/healthy", "health"),
    ("/-/ready", "readiness"),
)
MAX_FINDINGS: Final = 20
"""Findings that the page lists; the API has all."""


class Pages:
    """Renders pages; their style is named by its hash, so that no other style or script is run."""

    def __init__(self) -> None:
        """Load the templates."""
        self._templates = Environment(
            loader=PackageLoader("tuner.serve"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._style = self._templates.get_template("style.css").render().strip()
        digest = base64.b64encode(hashlib.sha256(self._style.encode()).digest()).decode()
        self.policy = (
            f"default-src 'none'; style-src 'sha256-{digest}'; frame-ancestors 'none'; base-uri 'none'"
        )

    def landing(self, snapshot: Snapshot) -> str:
        """Return the landing page."""
        rank = {"critical": 0, "warning": 1, "info": 2}
        findings = sorted(snapshot.findings, key=lambda finding: rank[finding.severity])
        return self._templates.get_template("index.html").render(
            style=self._style,
            snapshot=snapshot,
            at=_time(snapshot.at),
            pools=[_pool(snapshot, name) for name in pool_names(snapshot)],
            links=LINKS,
            findings=findings[:MAX_FINDINGS],
            more=max(0, len(findings) - MAX_FINDINGS),
        )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _pool(snapshot: Snapshot, name: str) -> dict[str, Any]:
    """Return what the page says of one pool: texts, each a number with its interval or a reason."""
    summary = pool_summary(snapshot, name)
    decided = () if snapshot.decision is None else snapshot.decision.pools
    decision = next((found for found in decided if found.pool == name), None)
    running = schedule_in_force([status for status in snapshot.schedules if status.pool == name])
    return {**summary, "running": _ranges(running), "proposed": _proposed(decision), **_estimates(decision)}


def _ranges(schedule: Schedule | None) -> str:
    if schedule is None:
        return ""
    return ", ".join(f"{first}–{last}: {draft_len}" for first, last, draft_len in schedule.ranges)


def _proposed(decision: PoolDecision | None) -> str:
    if decision is None:
        return "no cycle has looked at this pool yet"
    schedule = decision.schedule
    return _ranges(schedule) if isinstance(schedule, Schedule) else f"cannot say: {schedule}"


def _estimates(decision: PoolDecision | None) -> dict[str, str]:
    if decision is None:
        return {"alpha": "", "crossover": "", "speedup": ""}
    alphas = []
    for route, fit in sorted(route_fits(decision).items()):
        told = fit.alpha
        text = _interval(told, 2) if isinstance(told, Estimate) else f"cannot say: {told}"
        alphas.append(f"{route}: {text}")
    at, gain = decision.crossover, decision.speedup
    return {
        "alpha": "; ".join(alphas) or f"cannot say: {decision.acceptance}",
        "crossover": (
            f"{at.tokens:.0f} tokens in flight ({at.low:.0f}–{at.high:.0f})"
            if isinstance(at, Crossover)
            else f"cannot say: {at}"
        ),
        "speedup": f"{_interval(gain, 2)} times" if isinstance(gain, Estimate) else f"cannot say: {gain}",
    }


def _interval(estimate: Estimate, digits: int) -> str:
    return f"{estimate.value:.{digits}f} ({estimate.low:.{digits}f}–{estimate.high:.{digits}f})"
