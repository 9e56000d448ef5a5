"""What fits and plans say, as samples. An estimate that cannot be given has no sample at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tuner.fit.acceptance import AcceptanceFit
from tuner.fit.crossover import Crossover
from tuner.fit.step_time import StepTimeFit
from tuner.fleet import POOLED_ROUTE, Estimate, Schedule
from tuner.plan.goodput import Z95
from tuner.serve import labels
from tuner.serve.catalogue import CANNOT_SAY

if TYPE_CHECKING:
    from tuner.cycle import PoolDecision
    from tuner.serve.page import Page
    from tuner.serve.snapshot import ScheduleStatus, Snapshot


def put_estimates(page: Page, snapshot: Snapshot) -> None:
    """Add acceptance, step time, crossover and speed-up of every pool, and what cannot be said."""
    decisions = {} if snapshot.decision is None else {d.pool: d for d in snapshot.decision.pools}
    pools, more = labels.first({*decisions, *(p.name for p in snapshot.pools)}, labels.MAX_POOLS)
    page.leave_out("pool", more)
    for pool in pools:
        decision = decisions.get(pool)
        known = {} if decision is None else _put_pool(page, decision)
        for what in CANNOT_SAY:
            page.put("tuner_cannot_say", not known.get(what, False), pool, what)


def _put_pool(page: Page, decision: PoolDecision) -> dict[str, bool]:
    """Add one pool, and return which estimates it has."""
    pooled = decision.acceptance
    known = {
        "acceptance": isinstance(pooled, AcceptanceFit)
        and any(position.state == "measured" for position in pooled.positions),
        "alpha": isinstance(pooled, AcceptanceFit) and isinstance(pooled.alpha, Estimate),
        "step_time": isinstance(decision.step_time, StepTimeFit),
        "crossover": isinstance(decision.crossover, Crossover),
        "schedule": isinstance(decision.schedule, Schedule),
        "speedup": isinstance(decision.speedup, Estimate),
    }
    shown = shown_routes(page, decision)
    for fit in shown:
        _put_acceptance(page, fit)
    if isinstance(decision.crossover, Crossover):
        at = decision.crossover
        page.put_interval("tuner_crossover_tokens", at.tokens, at.low, at.high, decision.pool)
    if isinstance(decision.step_time, StepTimeFit):
        _put_step_time(page, decision.pool, decision.step_time)
    for fit in shown:
        gain = decision.speedup if fit.route == POOLED_ROUTE else decision.route_speedups.get(fit.route)
        if isinstance(gain, Estimate):
            ends = (gain.value, gain.low, gain.high)
            page.put_interval("tuner_predicted_speedup_ratio", *ends, decision.pool, fit.route)
    return known


def route_fits(decision: PoolDecision) -> dict[str, AcceptanceFit]:
    """Return route -> fit of a pool, ``"*"`` for all its traffic; routes that cannot be told are left out."""
    all_routes = {POOLED_ROUTE: decision.acceptance, **decision.routes}
    return {route: fit for route, fit in all_routes.items() if isinstance(fit, AcceptanceFit)}


def shown_routes(page: Page, decision: PoolDecision) -> list[AcceptanceFit]:
    """Return the pool's fit and those of its busiest routes, as many as are shown."""
    fits = route_fits(decision)
    busy = sorted((route for route in fits if route != POOLED_ROUTE), key=lambda r: (-fits[r].drafts, r))
    page.leave_out("route", max(0, len(busy) - labels.MAX_ROUTES))
    return [fits[route] for route in (POOLED_ROUTE, *busy[: labels.MAX_ROUTES]) if route in fits]


def _put_acceptance(page: Page, fit: AcceptanceFit) -> None:
    if isinstance(fit.alpha, Estimate):
        page.put_interval(
            "tuner_acceptance_alpha_ratio",
            fit.alpha.value,
            fit.alpha.low,
            fit.alpha.high,
            fit.pool,
            fit.route,
        )
    page.leave_out("position", max(0, len(fit.positions) - labels.MAX_POSITIONS))
    for position in fit.positions[: labels.MAX_POSITIONS]:
        if position.hazard is None or position.state != "measured":
            continue
        where = (fit.pool, fit.route, str(position.position))
        page.put_interval("tuner_acceptance_ratio", position.hazard, position.low, position.high, *where)


def _put_step_time(page: Page, pool: str, fit: StepTimeFit) -> None:
    """Add the median of the same moments that the plan is made of, for the grid of batches within reach."""
    seen = np.unique(np.round(fit.cells.draft_len)).astype(int)
    draft_lens = [int(length) for length in seen if 0 <= length < labels.MAX_DRAFT_LENS]
    reach = float(fit.cells.batch.max())
    batches = [batch for batch in labels.BATCHES if batch <= reach]
    if not draft_lens or not batches:
        return
    no_prompt = np.zeros((len(batches), len(draft_lens)))
    mean, covariance = fit.log_seconds_moments(batches, draft_lens, no_prompt)
    spread = Z95 * np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    outside = fit.extrapolating(np.array(batches)[:, None], np.array(draft_lens)[None, :])
    for row, batch in enumerate(batches):
        for column, draft_len in enumerate(draft_lens):
            if outside[row, column]:
                continue
            centre, width = mean[row, column], spread[row, column]
            value, low, high = (float(np.exp(centre + side * width)) for side in (0, -1, 1))
            where = (pool, str(batch), str(draft_len))
            page.put_interval("tuner_step_time_seconds", value, low, high, *where)


def put_schedules(page: Page, snapshot: Snapshot) -> None:
    """Add versions, the table that counts at the grid of batches, drift and pushes."""
    by_pool: dict[str, list[ScheduleStatus]] = {}
    for status in snapshot.schedules:
        by_pool.setdefault(status.pool, []).append(status)
    for statuses in by_pool.values():
        page.leave_out("version", max(0, len(statuses) - labels.MAX_VERSIONS))
        for status in statuses[: labels.MAX_VERSIONS]:
            page.put("tuner_schedule_info", 1, status.pool, status.version, status.state)
    chosen = {} if snapshot.decision is None else {d.pool: d.schedule for d in snapshot.decision.pools}
    for pool in sorted({*by_pool, *chosen})[: labels.MAX_POOLS]:
        schedule = schedule_in_force(by_pool.get(pool, [])) or chosen.get(pool)
        if isinstance(schedule, Schedule):
            for batch in (size for size in labels.BATCHES if size <= schedule.max_batch):
                page.put("tuner_schedule_draft_len", schedule.draft_len_at(batch), pool, str(batch))
    for pool, engine in sorted(snapshot.drift)[: labels.MAX_ENGINES]:
        page.put("tuner_schedule_drift", snapshot.drift[pool, engine], pool, engine)
    for (pool, result), count in sorted(snapshot.pushes.items()):
        page.put("tuner_push_total", count, pool, result)


def schedule_in_force(statuses: list[ScheduleStatus]) -> Schedule | None:
    """Return the newest active schedule, else the newest proposed one."""
    for state in ("active", "proposed"):
        for status in statuses:
            if status.state == state:
                return status.schedule
    return None
