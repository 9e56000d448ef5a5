"""Fits of a cycle as the database keeps them: numbers, where they came from, what they rest on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tuner import __version__
from tuner.fit.acceptance import AcceptanceFit
from tuner.fleet import POOLED_ROUTE, Estimate, NotEnoughData, WindowState
from tuner.store import FitRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.cycle import PoolDecision
    from tuner.fleet import Window


def fit_records(decision: PoolDecision, source: str) -> list[FitRecord]:
    """Return the acceptance of the pool and of each route, and the step time with its crossover.

    Args:
        decision: of one pool.
        source: where its samples come from.
    """
    good = [window for window in decision.windows if window.state is WindowState.GOOD]
    if not good:
        return []
    known = {"source": source, "code_version": __version__, **_span(good)}
    fits: dict[str, AcceptanceFit | NotEnoughData] = {POOLED_ROUTE: decision.acceptance, **decision.routes}
    records = [
        FitRecord(
            decision.pool,
            "acceptance",
            parameters=_acceptance(fit),
            counts=_exposures(fit),
            residuals={"dispersion": fit.dispersion} if isinstance(fit, AcceptanceFit) else {},
            route=route,
            **known,
        )
        for route, fit in fits.items()
    ]
    step = decision.step_time
    if isinstance(step, NotEnoughData):
        return [*records, FitRecord(decision.pool, "step_time", parameters=_unknown(step), **known)]
    crossover = decision.crossover
    known |= {"fingerprint": step.fingerprint}
    return [
        *records,
        FitRecord(
            decision.pool,
            "step_time",
            parameters={
                **step.as_dict(),
                "crossover": _unknown(crossover)
                if isinstance(crossover, NotEnoughData)
                else crossover.as_dict(),
            },
            counts={"cells": len(step.cells), "windows_left_out": dict(step.cells.left_out)},
            residuals={"within": step.cells.within},
            **known,
        ),
    ]


def _span(good: Sequence[Window]) -> dict[str, Any]:
    """Return the time that windows span, their number and their newest fingerprint."""
    newest = max(good, key=lambda window: window.end)
    return {
        "span_start": min(window.start for window in good),
        "span_end": newest.end,
        "windows": len(good),
        "fingerprint": newest.fingerprint,
    }


def _acceptance(fit: AcceptanceFit | NotEnoughData) -> dict[str, Any]:
    if isinstance(fit, NotEnoughData):
        return _unknown(fit)
    return {
        "alpha": _estimate(fit.alpha),
        "positions": [
            {"position": p.position, "hazard": p.hazard, "low": p.low, "high": p.high, "state": p.state}
            for p in fit.positions
        ],
    }


def _exposures(fit: AcceptanceFit | NotEnoughData) -> dict[str, Any]:
    if isinstance(fit, NotEnoughData):
        return {}
    return {
        "drafts": fit.drafts,
        "blocks": fit.blocks,
        "positions": [[p.exposed, p.accepted] for p in fit.positions],
    }


def _estimate(value: Estimate | NotEnoughData) -> dict[str, Any]:
    if isinstance(value, NotEnoughData):
        return _unknown(value)
    return {"value": value.value, "low": value.low, "high": value.high}


def _unknown(reason: NotEnoughData) -> dict[str, Any]:
    return {"not_enough_data": str(reason)}
