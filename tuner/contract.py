"""A decision in the JSON form that others script against; fields may be added, never renamed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tuner.cycle import count_states
from tuner.fit.acceptance import AcceptanceFit
from tuner.fleet import POOLED_ROUTE, Estimate, NotEnoughData, Schedule
from tuner.plan.planner import Plan

if TYPE_CHECKING:
    from tuner.cycle import Decision, PoolDecision
    from tuner.fit.acceptance import PositionFit


def decision_dict(decision: Decision) -> dict[str, Any]:
    """Return a decision: the only pool's keys, or sums over several, and every pool under ``pools``."""
    pools = {pool.pool: pool_dict(pool) for pool in decision.pools}
    elsewhere = [finding.as_dict() for finding in decision.findings]
    if len(decision.pools) == 1:
        only = pools[decision.pools[0].pool]
        return {**only, "findings": [*only["findings"], *elsewhere], "pools": pools}
    several = _unknown(NotEnoughData(f"{len(pools)} pools: read them under pools"))
    return {
        "windows": count_states([window for pool in decision.pools for window in pool.windows]),
        "acceptance": [fit for pool in pools.values() for fit in pool["acceptance"]],
        "step_time": several,
        "crossover": several,
        "accepted_lengths": [entry for pool in pools.values() for entry in pool["accepted_lengths"]],
        "schedule": None,
        "explain": [],
        "findings": [*(finding for pool in pools.values() for finding in pool["findings"]), *elsewhere],
        "pools": pools,
    }


def pool_dict(decision: PoolDecision) -> dict[str, Any]:
    """Return one pool's decision."""
    plan = decision.plan
    out: dict[str, Any] = {
        "windows": count_states(decision.windows),
        "acceptance": [],
        "step_time": _known_or_reason(decision.step_time),
        "crossover": _known_or_reason(decision.crossover),
        "accepted_lengths": [],
        "schedule": None,
        "explain": [entry.as_dict() for entry in plan.explain] if isinstance(plan, Plan) else [],
        "findings": [finding.as_dict() for finding in decision.findings],
    }
    if isinstance(decision.schedule, Schedule):
        out["schedule"] = decision.schedule.as_lists()
    else:
        out["schedule_unknown"] = str(decision.schedule)
    if isinstance(decision.acceptance, NotEnoughData):
        out["acceptance_unknown"] = str(decision.acceptance)
    for route, fit in {POOLED_ROUTE: decision.acceptance, **decision.routes}.items():
        if isinstance(fit, AcceptanceFit):
            out["acceptance"].append(_acceptance_dict(fit))
        elif route != POOLED_ROUTE:
            out.setdefault("routes_unknown", {})[route] = str(fit)
    out["accepted_lengths"] = [
        {"route": route, "draft_len": k, "histogram": list(histogram)}
        for (route, k), histogram in sorted(decision.accepted_lengths.items())
    ]
    out["predicted_speedup"] = [
        {"route": route, **_speedup_dict(gain)}
        for route, gain in {POOLED_ROUTE: decision.speedup, **decision.route_speedups}.items()
    ]
    return out


def _speedup_dict(gain: Estimate | NotEnoughData) -> dict[str, Any]:
    """Return times as fast as without speculation, or why that cannot be told."""
    if isinstance(gain, NotEnoughData):
        return _unknown(gain)
    return {"ratio": gain.value, "low": gain.low, "high": gain.high}


def _acceptance_dict(fit: AcceptanceFit) -> dict[str, Any]:
    """Return one route's acceptance; ``alpha`` is null where it cannot be told."""
    alpha = fit.alpha
    out: dict[str, Any] = {"pool": fit.pool, "route": fit.route, "alpha": None}
    if isinstance(alpha, Estimate):
        out |= {"alpha": alpha.value, "alpha_low": alpha.low, "alpha_high": alpha.high}
    else:
        out["alpha_unknown"] = str(alpha)
    out |= {"dispersion": fit.dispersion, "blocks": fit.blocks}
    out["positions"] = [_position_dict(position) for position in fit.positions]
    return out


def _position_dict(fit: PositionFit) -> dict[str, Any]:
    """Return one position; a censored one has hazard null, low 0, high 1 and a reason."""
    out: dict[str, Any] = {
        "position": fit.position,
        "hazard": fit.hazard,
        "low": fit.low,
        "high": fit.high,
        "exposed": fit.exposed,
        "accepted": fit.accepted,
        "state": fit.state,
    }
    if fit.weak:
        out["weak"] = True
    if fit.reason:
        out["reason"] = fit.reason
    return out


def _known_or_reason(value: Any) -> dict[str, Any]:  # noqa: ANN401  # any fit with as_dict, or a reason
    """Return a fit's JSON form, or why there is none."""
    if isinstance(value, NotEnoughData):
        return _unknown(value)
    known: dict[str, Any] = value.as_dict()
    return known


def _unknown(reason: NotEnoughData) -> dict[str, Any]:
    return {"not_enough_data": str(reason)}
