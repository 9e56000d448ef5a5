"""The landing page: what there is and how each pool is, in one small file without any outside part."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from tuner.fit.crossover import Crossover
from tuner.fleet import Estimate, Schedule
from tuner.serve.api import NO_DECISION, pool_names, pool_summary
from tuner.serve.estimates import route_fits
from tuner.serve.grouping import grouped
from tuner.serve.words import ranges_text

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
MOST_TABLES: Final = 3
"""Different tables of one pool's engines that the page writes out."""
NOT_YET: Final = "not known yet"
READ_BACK: Final = "admin in docs/configuration.md"


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
        findings = grouped(snapshot.findings)
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
    """Return what the page says of one pool: rows of a heading and a text."""
    decided = () if snapshot.decision is None else snapshot.decision.pools
    decision = next((found for found in decided if found.pool == name), None)
    versions = {state: _version(snapshot, name, state) for state in ("active", "proposed")}
    rows = [
        ("engines run", _running(snapshot, name)),
        ("active", versions["active"]),
        ("proposed", versions["proposed"] or NOT_YET),
        ("best by the last cycle", _chosen(decision)),
        *_estimates(decision),
    ]
    return {**pool_summary(snapshot, name), "rows": _merged([row for row in rows if row[1]])}


def _ranges(schedule: Schedule) -> str:
    return ranges_text(schedule.as_lists())


def _version(snapshot: Snapshot, name: str, state: str) -> str:
    found = next((s for s in snapshot.schedules if s.pool == name and s.state == state), None)
    return "" if found is None else f"{_ranges(found.schedule)} (version {found.version})"


def _running(snapshot: Snapshot, name: str) -> str:
    """Return what the engines of a pool say they run, each table with the number of its engines."""
    engines = [status.target.engine for status in snapshot.targets if status.target.pool == name]
    read = [snapshot.running[name, engine] for engine in engines if (name, engine) in snapshot.running]
    tables = Counter("no table" if schedule is None else _ranges(schedule) for schedule in read)
    if not tables:
        return f"not known: no engine was asked or told (see {READ_BACK})"
    told = [
        text if len(tables) == 1 and count == len(engines) else f"{text} (on {count} of {len(engines)})"
        for text, count in tables.most_common(MOST_TABLES)
    ]
    others = len(read) - sum(count for _, count in tables.most_common(MOST_TABLES))
    told += [f"other tables on {others}"] if others else []
    unread = len(engines) - len(read)
    return "; ".join([*told, *([f"not known of {unread}"] if unread else [])])


def _chosen(decision: PoolDecision | None) -> str:
    if decision is None:
        return str(NO_DECISION)
    schedule = decision.schedule
    return _ranges(schedule) if isinstance(schedule, Schedule) else f"cannot say: {schedule}"


def _estimates(decision: PoolDecision | None) -> list[tuple[str, str]]:
    if decision is None:
        return [(heading, NOT_YET) for heading in ("acceptance", "crossover", "predicted speed-up")]
    alphas: dict[str, list[str]] = {}
    for route, fit in sorted(route_fits(decision).items()):
        told = fit.alpha
        text = _interval(told, 2) if isinstance(told, Estimate) else f"cannot say: {told}"
        alphas.setdefault(text, []).append(route)
    at, gain = decision.crossover, decision.speedup
    crossover = (
        f"{at.tokens:.0f} tokens in flight ({at.low:.0f} to {at.high:.0f})"
        if isinstance(at, Crossover)
        else f"cannot say: {at}"
    )
    return [
        (
            "acceptance",
            "; ".join(f"{', '.join(routes)}: {text}" for text, routes in alphas.items())
            or f"cannot say: {decision.acceptance}",
        ),
        ("crossover", crossover),
        (
            "predicted speed-up",
            f"{_interval(gain, 2)} times" if isinstance(gain, Estimate) else f"cannot say: {gain}",
        ),
    ]


def _merged(rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return rows with each reason for want of an answer once, under all the headings that it stands for."""
    by_text: dict[tuple[str, str], list[str]] = {}
    for heading, text in rows:
        untold = text.startswith("cannot say") or text == NOT_YET
        by_text.setdefault(("" if untold else heading, text), []).append(heading)
    return [(", ".join(headings), text) for (_, text), headings in by_text.items()]


def _interval(estimate: Estimate, digits: int) -> str:
    return f"{estimate.value:.{digits}f} ({estimate.low:.{digits}f} to {estimate.high:.{digits}f})"
