"""One cycle: evidence in, decision out. Pure; the daemon, ``replay`` and the tests call it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tuner.fit.acceptance import AcceptanceFit, fit_acceptance
from tuner.fit.restart import shifts_at_restarts
from tuner.fit.step_time import StepTimeFit, fit_step_time, group_by_fingerprint
from tuner.fleet import Finding, NotEnoughData, Schedule, Window, WindowState
from tuner.plan.from_fits import table_from_fits
from tuner.plan.options import PlanOptions
from tuner.plan.planner import Plan, plan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tuner.fit.crossover import Crossover
    from tuner.fleet import Fingerprint
    from tuner.plan.goodput import GoodputTable


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What the operator says about one pool."""

    options: PlanOptions = field(default_factory=PlanOptions)
    method: str = ""
    """How drafts are made, where the engine does not tell."""
    prior_crossover: float | None = None
    """Tokens in flight where the hardware sheet puts the crossover; outvoted by data."""
    half_life_seconds: float | None = None
    """Age at which a window counts half for acceptance; ``None`` counts all alike."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was observed: windows of any pools, and what was noticed while they were made."""

    windows: tuple[Window, ...]
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """What stays from cycle to cycle."""

    pools: Mapping[str, PoolSettings] = field(default_factory=dict)
    default: PoolSettings = field(default_factory=PoolSettings)
    """For pools that have no settings of their own."""


@dataclass(frozen=True, slots=True, eq=False)
class PoolDecision:
    """What is known about one pool and what follows from it."""

    pool: str
    windows: tuple[Window, ...]
    acceptance: AcceptanceFit | NotEnoughData
    step_time: StepTimeFit | NotEnoughData
    plan: Plan | NotEnoughData
    table: GoodputTable | None
    findings: tuple[Finding, ...]

    @property
    def crossover(self) -> Crossover | NotEnoughData:
        """The crossover, or why it cannot be told."""
        return self.step_time.crossover if isinstance(self.step_time, StepTimeFit) else self.step_time

    @property
    def schedule(self) -> Schedule | NotEnoughData:
        """The schedule, or why there is none."""
        return self.plan.schedule if isinstance(self.plan, Plan) else self.plan


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """The outcome of one cycle."""

    at: float
    """Unix seconds that the cycle was run for."""
    pools: tuple[PoolDecision, ...]
    findings: tuple[Finding, ...]
    """Findings that belong to no pool."""


def run_once(evidence: Evidence, state: State, now: float) -> Decision:
    """Fit and plan every pool.

    Args:
        evidence: all windows that are remembered, in any order.
        state: settings by pool.
        now: unix seconds; windows that end later are not looked at.
    """
    by_pool: dict[str, list[Window]] = {}
    for window in evidence.windows:
        if window.end <= now:
            by_pool.setdefault(window.pool, []).append(window)
    noticed: dict[str, list[Finding]] = {}
    for finding in evidence.findings:
        noticed.setdefault(finding.subject.get("pool", ""), []).append(finding)
    decisions = tuple(
        _decide(pool, windows, state.pools.get(pool, state.default), noticed.get(pool, []))
        for pool, windows in sorted(by_pool.items())
    )
    elsewhere = tuple(f for pool, found in noticed.items() if pool not in by_pool for f in found)
    return Decision(now, decisions, elsewhere)


def _decide(
    pool: str, windows: Sequence[Window], settings: PoolSettings, noticed: Sequence[Finding]
) -> PoolDecision:
    """Fit one pool's current fingerprint and plan from the fits."""
    current, changed = _current(pool, windows)
    acceptance = fit_acceptance(
        current, pool=pool, method=settings.method, half_life_seconds=settings.half_life_seconds
    )
    step_time = fit_step_time(current, prior_crossover=settings.prior_crossover)
    findings = [*noticed, *changed]
    for fit in (acceptance, step_time):
        findings += () if isinstance(fit, NotEnoughData) else fit.findings
    table = _table(acceptance, step_time, current, settings.options)
    planned = table if isinstance(table, NotEnoughData) else plan(table, settings.options)
    findings += () if isinstance(planned, NotEnoughData) else planned.findings
    return PoolDecision(
        pool,
        tuple(windows),
        acceptance,
        step_time,
        planned,
        None if isinstance(table, NotEnoughData) else table,
        tuple(replace(finding, subject={"pool": pool, **finding.subject}) for finding in findings),
    )


def _table(
    acceptance: AcceptanceFit | NotEnoughData,
    step_time: StepTimeFit | NotEnoughData,
    windows: Sequence[Window],
    options: PlanOptions,
) -> GoodputTable | NotEnoughData:
    """Return goodput by batch and draft length, or why draft lengths cannot be compared.

    Where draft length followed acceptance, each K was seen on traffic of its own: a table would rank the
    traffic, and send long drafts to requests that reject them.
    """
    if isinstance(acceptance, AcceptanceFit) and acceptance.selection is not None:
        return NotEnoughData(
            "draft lengths ran on traffic of different acceptance and cannot be compared (k_confounded): "
            "hold what runs, and run each draft length at every batch size for a few minutes"
        )
    return table_from_fits(acceptance, step_time, windows, options)


def _current(pool: str, windows: Sequence[Window]) -> tuple[list[Window], list[Finding]]:
    """Return the windows of the fingerprint that ran last, with a finding where there were others."""
    groups = group_by_fingerprint(windows)

    def recency(fingerprint: Fingerprint) -> tuple[float, int]:
        group = groups[fingerprint]
        return max(window.end for window in group), len(group)

    newest = max(groups, key=recency)
    if len(groups) == 1:
        return _since_shift(pool, groups[newest])
    finding = _several_fingerprints(pool, groups, newest)
    kept, shifted = _since_shift(pool, groups[newest])
    return kept, [finding, *shifted]


def _several_fingerprints(
    pool: str, groups: Mapping[Fingerprint, list[Window]], newest: Fingerprint
) -> Finding:
    """Say whose windows are left out, and whether they are of the past or of a neighbour that still runs."""
    others = [window for fingerprint, group in groups.items() if fingerprint != newest for window in group]
    began = min(window.start for window in groups[newest])
    beside = max(window.end for window in others) > began
    text = (
        "set-ups of the engine run at the same time in one pool: only the windows of the latest are "
        "fitted, {left_out} of others are left out. Give each its own pool."
        if beside
        else "set-ups of the engine are in the evidence: {left_out} windows of earlier ones are left out, "
        "costs and acceptance are fitted afresh from the latest."
    )
    return Finding(
        code="fingerprints_mixed" if beside else "fingerprint_changed",
        severity="warning" if beside else "info",
        message=f"{len(groups)} {text.format(left_out=len(others))}",
        subject={"pool": pool},
        evidence={"current": newest.as_dict(), "windows_left_out": len(others)},
    )


def _since_shift(pool: str, windows: list[Window]) -> tuple[list[Window], list[Finding]]:
    """Leave out what engines showed before a restart from which they came back as others."""
    findings: list[Finding] = []
    kept = windows
    for shift in shifts_at_restarts(windows):
        last = max(window.restarts for window in windows if window.engine == shift.engine)
        kept = [w for w in kept if w.engine != shift.engine or w.restarts == last]
        findings.append(
            Finding(
                code="config_maybe_changed",
                severity="info",
                message=f"{shift.quantity} moved by {shift.relative:+.1%} at a restart of engine "
                f"{shift.engine} though its metrics name the same set-up: what was seen before is left "
                "out. If nothing was changed, look at the machine.",
                subject={"pool": pool, "engine": shift.engine},
                evidence={"at": shift.at, "before": shift.before, "after": shift.after},
            )
        )
    return kept, findings


def count_states(windows: Sequence[Window]) -> dict[str, Any]:
    """Return ``windows`` of the JSON contract."""
    by_state = Counter(window.state.value for window in windows)
    return {
        "total": len(windows),
        "good": by_state[WindowState.GOOD.value],
        "by_state": dict(sorted(by_state.items())),
    }
