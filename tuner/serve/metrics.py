"""The tuner's own metrics, made from a snapshot when they are asked for; nothing here reads a clock.

The daemon is a controller with timers of its own, so a scrape shows its last state and starts no work.
"""

from __future__ import annotations

import platform
import threading
from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client.registry import Collector

from tuner.serve import labels
from tuner.serve.estimates import put_estimates, put_schedules
from tuner.serve.joining import by_target, target_names
from tuner.serve.page import Page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client import Metric as Family

    from tuner.serve.snapshot import Snapshot, TargetStatus


class TunerCollector(Collector):
    """Gives the families of the snapshot of the moment; the work is done once for each snapshot."""

    def __init__(self, view: Callable[[], Snapshot]) -> None:
        """Take ``view``, which returns the newest snapshot and never waits."""
        self._view = view
        self._lock = threading.Lock()
        self._shown: tuple[Snapshot, list[Family]] | None = None

    def describe(self) -> Iterable[Family]:
        """Return nothing: a registry needs not ask for names at registration."""
        return []

    def collect(self) -> list[Family]:
        """Return all families; those without a sample carry their help."""
        return self.collect_from(self._view())

    def collect_from(self, snapshot: Snapshot) -> list[Family]:
        """Return the families of one snapshot."""
        with self._lock:
            if self._shown is None or self._shown[0] is not snapshot:
                self._shown = snapshot, families_of(snapshot)
            return self._shown[1]


def families_of(snapshot: Snapshot) -> list[Family]:
    """Return every metric of a snapshot."""
    page = Page()
    put_estimates(page, snapshot)
    _put_observed(page, snapshot)
    _put_targets(page, snapshot.targets)
    put_schedules(page, snapshot)
    _put_findings(page, snapshot)
    _put_daemon(page, snapshot)
    _put_jobs(page, snapshot)
    for label, count in sorted(page.left_out.items()):
        page.put("tuner_label_values_left_out", count, label)
    return page.families


def _put_observed(page: Page, snapshot: Snapshot) -> None:
    seen = snapshot.observed
    pools, _ = labels.first((pool for pool, *_ in seen.accepted_steps), labels.MAX_POOLS)
    for (pool, route, draft_len), steps in sorted(seen.accepted_steps.items()):
        if pool in pools:
            page.put_histogram("tuner_accepted_tokens_per_step", steps, pool, route, str(draft_len))
    goodput = by_target(seen.goodput, target_names(snapshot.targets))
    for pool, engine in sorted(goodput)[: labels.MAX_ENGINES]:
        page.put("tuner_goodput_tokens_per_second", goodput[pool, engine], pool, engine)
    for pool, ratio in sorted(seen.efficiency.items())[: labels.MAX_POOLS]:
        page.put("tuner_goodput_efficiency_ratio", ratio, pool)
    for (pool, state), count in sorted(snapshot.windows_total.items()):
        page.put("tuner_windows_total", count, pool, state)
    for status in snapshot.pools[: labels.MAX_POOLS]:
        page.put("tuner_windows_held", status.windows_held, status.name)
    page.put("tuner_windows_buffered", snapshot.buffered)
    page.put("tuner_windows_dropped_total", snapshot.dropped_total)
    page.put("tuner_series_state", snapshot.series_state)
    sources, more = labels.first_sources(snapshot.sources_up, labels.MAX_SOURCES)
    page.leave_out("source", more)
    for source in sources:
        page.put("tuner_source_up", snapshot.sources_up[source], source)


def target_state(status: TargetStatus) -> str:
    """Return ``up``, ``down``, or ``unknown`` before the first scrape."""
    if status.last_scrape is None:
        return "unknown"
    return "up" if status.up else "down"


def _put_targets(page: Page, targets: Iterable[TargetStatus]) -> None:
    ordered = sorted(targets, key=lambda status: (status.target.pool, status.target.engine))
    counts = Counter((status.target.pool, target_state(status)) for status in ordered)
    for pool in sorted({pool for pool, _ in counts}):
        for state in ("up", "down", "unknown"):
            page.put("tuner_targets", counts[pool, state], pool, state)
    page.leave_out("engine", max(0, len(ordered) - labels.MAX_ENGINES))
    for status in ordered[: labels.MAX_ENGINES]:
        if status.last_scrape is not None:
            page.put("tuner_target_up", status.up, status.target.pool, status.target.engine)


def _put_findings(page: Page, snapshot: Snapshot) -> None:
    """Show each kind of finding once, the grave ones first where there are too many."""
    order = {"critical": 0, "warning": 1, "info": 2}
    kinds = sorted(
        {
            (f.code, f.severity, f.subject.get("pool", ""), f.subject.get("route", ""))
            for f in snapshot.findings
        },
        key=lambda kind: (order[kind[1]], kind),
    )
    page.leave_out("code", max(0, len(kinds) - labels.MAX_FINDINGS))
    for kind in kinds[: labels.MAX_FINDINGS]:
        page.put("tuner_finding_active", 1, *kind)


def _put_daemon(page: Page, snapshot: Snapshot) -> None:
    page.put("tuner_build_info", 1, snapshot.version, platform.python_version())
    page.put("tuner_start_timestamp_seconds", snapshot.started_at)
    page.put("tuner_snapshot_timestamp_seconds", snapshot.at)
    page.put("tuner_leader", snapshot.leader)
    page.put("tuner_fence", snapshot.fence)
    page.put("tuner_ready", not snapshot.not_ready)
    page.put("tuner_config_last_reload_successful", snapshot.config_reload_ok)
    page.put("tuner_config_last_reload_success_timestamp_seconds", snapshot.config_loaded_at)
    for stage, (runs, seconds) in sorted(snapshot.stage_seconds.items()):
        page.put_summary("tuner_cycle_duration_seconds", runs, seconds, stage)


def _put_jobs(page: Page, snapshot: Snapshot) -> None:
    for job in snapshot.jobs:
        for name in ("runs", "errors", "missed", "skipped"):
            page.put(f"tuner_job_{name}_total", getattr(job, name), job.name)
        page.put("tuner_job_duration_seconds", job.last_seconds, job.name)
        if job.last_success is not None:
            page.put("tuner_job_last_success_timestamp_seconds", job.last_success, job.name)
