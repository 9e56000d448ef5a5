"""One cycle: evidence in, decision out. Pure; the daemon, ``replay`` and the tests call it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tuner.fit.acceptance import AcceptanceFit, fit_acceptance
from tuner.fit.acceptance_routes import shrink_to_pool
from tuner.fit.corroborate import corroborate
from tuner.fit.current import current_windows
from tuner.fit.step_time import StepTimeFit, fit_step_time
from tuner.fit.throughput import goodput_by_engine, goodput_efficiency, recent_windows
from tuner.fleet import POOLED_ROUTE, Estimate, Finding, NotEnoughData, Schedule, Window, WindowState
from tuner.plan.from_fits import table_from_fits
from tuner.plan.options import PlanOptions
from tuner.plan.planner import Plan, plan
from tuner.plan.speedup import predicted_speedup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tuner.fit.crossover import Crossover
    from tuner.fit.current import Current
    from tuner.plan.goodput import GoodputTable

STALE_SECONDS = 900.0
"""Age of the last good window from which a pool's evidence is called stale: 15 cycles of a minute, longer
than a restarted engine takes to load its weights."""

NO_WINDOWS = NotEnoughData("no window was looked at", 0, 1)


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
    latest: tuple[Window, ...] = ()
    """The newest window of each engine, where ``windows`` is a thinned memory that may miss it."""


@dataclass(frozen=True, slots=True)
class State:
    """What stays from cycle to cycle."""

    pools: Mapping[str, PoolSettings] = field(default_factory=dict)
    default: PoolSettings = field(default_factory=PoolSettings)
    """For pools that have no settings of their own."""
    active: Mapping[str, Schedule] = field(default_factory=dict)
    """Pool -> schedule that engines run. Outvotes ``options.active`` of the settings."""
    proposed: Mapping[str, Schedule] = field(default_factory=dict)
    """Pool -> schedule that was proposed last, whether or not an engine runs it. Another one must beat it, or
    else the active one, by the dead band. Outvotes ``options.proposed`` of the settings."""
    stale_after: float = STALE_SECONDS
    """Seconds without a good window after which a pool's evidence is called stale."""

    def settings_of(self, pool: str) -> PoolSettings:
        """Return the settings of a pool, with the schedules that are active and proposed there."""
        settings = self.pools.get(pool, self.default)
        options = settings.options
        active = self.active.get(pool, options.active)
        proposed = self.proposed.get(pool, options.proposed)
        return replace(settings, options=replace(options, active=active, proposed=proposed))


@dataclass(frozen=True, slots=True, eq=False)
class PoolDecision:
    """What is known about one pool and what follows from it."""

    pool: str
    windows: tuple[Window, ...]
    """Pooled windows; those of routes are left out."""
    acceptance: AcceptanceFit | NotEnoughData
    step_time: StepTimeFit | NotEnoughData
    plan: Plan | NotEnoughData
    table: GoodputTable | None
    findings: tuple[Finding, ...]
    routes: Mapping[str, AcceptanceFit | NotEnoughData] = field(default_factory=dict)
    """Route -> its acceptance, leaning on the pool's where its own evidence is thin."""
    speedup: Estimate | NotEnoughData = NO_WINDOWS
    """Times as fast as without speculation, at the batch sizes of the last 10 minutes, under the active
    schedule, else under the planned one."""
    route_speedups: Mapping[str, Estimate | NotEnoughData] = field(default_factory=dict)
    goodput: Mapping[str, float] = field(default_factory=dict)
    """Engine -> tokens per second in its newest window; engines without a fresh one are missing."""
    efficiency: float | NotEnoughData = NO_WINDOWS
    """Tokens emitted per token verified over the last 10 minutes."""

    @property
    def crossover(self) -> Crossover | NotEnoughData:
        """The crossover, or why it cannot be told."""
        return self.step_time.crossover if isinstance(self.step_time, StepTimeFit) else self.step_time

    @property
    def schedule(self) -> Schedule | NotEnoughData:
        """The schedule, or why there is none."""
        return self.plan.schedule if isinstance(self.plan, Plan) else self.plan

    @property
    def accepted_lengths(self) -> dict[tuple[str, int], tuple[float, ...]]:
        """(route, draft length) -> verify steps by accepted count, of the evidence of this cycle."""
        fits = {POOLED_ROUTE: self.acceptance, **self.routes}
        return {
            (route, length): histogram
            for route, fit in fits.items()
            if isinstance(fit, AcceptanceFit)
            for length, histogram in fit.accepted_lengths.items()
        }


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
        state: settings and active schedules by pool.
        now: unix seconds; windows that end later are not looked at.
    """
    by_pool = _by_pool(evidence.windows, now)
    latest = _by_pool(evidence.latest, now)
    noticed: dict[str, list[Finding]] = {}
    for finding in evidence.findings:
        noticed.setdefault(finding.subject.get("pool", ""), []).append(finding)
    decisions = []
    for pool, windows in sorted(by_pool.items()):
        decided = _decide(pool, windows, state.settings_of(pool), noticed.get(pool, []))
        newest = latest.get(pool) or _newest(decided.windows)
        stale = _stale(pool, [*decided.windows, *newest], state.stale_after, now)
        decided = replace(
            decided, goodput=goodput_by_engine(newest, now), findings=(*decided.findings, *stale)
        )
        decisions.append(decided)
    elsewhere = tuple(f for pool, found in noticed.items() if pool not in by_pool for f in found)
    return Decision(now, tuple(decisions), elsewhere)


def _by_pool(windows: Sequence[Window], now: float) -> dict[str, list[Window]]:
    by_pool: dict[str, list[Window]] = {}
    for window in windows:
        if window.end <= now:
            by_pool.setdefault(window.pool, []).append(window)
    return by_pool


def _newest(windows: Sequence[Window]) -> list[Window]:
    """Return the newest window of each engine."""
    newest: dict[str, Window] = {}
    for window in windows:
        if window.engine not in newest or window.end > newest[window.engine].end:
            newest[window.engine] = window
    return list(newest.values())


def _decide(
    pool: str, windows: Sequence[Window], settings: PoolSettings, noticed: Sequence[Finding]
) -> PoolDecision:
    """Fit one pool's current fingerprint and plan from the fits."""
    pooled = [window for window in windows if window.route == POOLED_ROUTE] or windows
    current = current_windows(pool, pooled)
    acceptance = fit_acceptance(
        current.windows, pool=pool, method=settings.method, half_life_seconds=settings.half_life_seconds
    )
    step_time = fit_step_time(current.windows, prior_crossover=settings.prior_crossover)
    findings = [*noticed, *current.findings, *corroborate(step_time, current.windows).findings]
    for fit in (acceptance, step_time):
        findings += () if isinstance(fit, NotEnoughData) else fit.findings
    table = _table(acceptance, step_time, current.windows, settings.options)
    planned = table if isinstance(table, NotEnoughData) else plan(table, settings.options)
    findings += () if isinstance(planned, NotEnoughData) else planned.findings
    routes = _fit_routes(pool, windows, current, settings, acceptance)
    load = recent_windows(current.windows)
    runs = settings.options.active or (planned.schedule if isinstance(planned, Plan) else planned)
    speedups = {
        route: predicted_speedup(fit, step_time, table, load, runs)
        for route, fit in {POOLED_ROUTE: acceptance, **routes}.items()
    }
    return PoolDecision(
        pool,
        tuple(pooled),
        acceptance,
        step_time,
        planned,
        None if isinstance(table, NotEnoughData) else table,
        tuple(replace(finding, subject={"pool": pool, **finding.subject}) for finding in findings),
        routes=routes,
        speedup=speedups.pop(POOLED_ROUTE),
        route_speedups=speedups,
        efficiency=goodput_efficiency(load),
    )


def _fit_routes(
    pool: str,
    windows: Sequence[Window],
    current: Current,
    settings: PoolSettings,
    pooled: AcceptanceFit | NotEnoughData,
) -> dict[str, AcceptanceFit | NotEnoughData]:
    """Fit the acceptance of each route, drawn to the pool's where its own evidence is thin."""
    by_route: dict[str, list[Window]] = {}
    for window in windows:
        if window.route != POOLED_ROUTE and current.holds(window):
            by_route.setdefault(window.route, []).append(window)
    routes: dict[str, AcceptanceFit | NotEnoughData] = {}
    for route, own in sorted(by_route.items()):
        fit = fit_acceptance(
            own,
            pool=pool,
            route=route,
            method=settings.method,
            half_life_seconds=settings.half_life_seconds,
            pool_dispersion=pooled.dispersion if isinstance(pooled, AcceptanceFit) else None,
        )
        if isinstance(fit, AcceptanceFit) and isinstance(pooled, AcceptanceFit):
            fit = shrink_to_pool(fit, pooled)
        routes[route] = fit
    return routes


def _stale(pool: str, windows: Sequence[Window], after: float, now: float) -> tuple[Finding, ...]:
    """Return a finding where a pool had no good window for too long: its fits rest on old evidence."""
    good = max((window.end for window in windows if window.state is WindowState.GOOD), default=None)
    if good is None or now - good <= after:
        return ()
    since = Counter(
        f"{window.state.value}: {window.reason}"
        for window in windows
        if window.end > good and window.state is not WindowState.GOOD
    )
    why = since.most_common(1)[0][0] if since else "no window at all"
    return (
        Finding(
            code="evidence_stale",
            severity="warning",
            message=f"no window that can be fitted for {(now - good) / 60:.0f} minutes ({why}): fits and "
            "schedule are of before and stay as they are",
            subject={"pool": pool},
            evidence={"last_good": good, "since": dict(since)},
        ),
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


def count_states(windows: Sequence[Window]) -> dict[str, Any]:
    """Return ``windows`` of the JSON contract."""
    by_state = Counter(window.state.value for window in windows)
    return {
        "total": len(windows),
        "good": by_state[WindowState.GOOD.value],
        "by_state": dict(sorted(by_state.items())),
    }
