"""A pool of the configuration as a cycle needs it. Wiring: it knows both the settings and the planner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.cycle import PoolSettings
from tuner.plan.options import PlanOptions
from tuner.theory.roofline import crossover_tokens

if TYPE_CHECKING:
    from tuner.config import Pool


def settings_of(pool: Pool, half_life: float | None = None) -> PoolSettings:
    """Turn a pool of the configuration into what a cycle needs.

    Args:
        pool: as configured.
        half_life: age in seconds at which a window counts half for acceptance; ``None``, as for a replay,
            counts all alike.
    """
    allowed = pool.allowed_draft_lens
    options = PlanOptions(
        min_gain=pool.guard.min_gain,
        tie=pool.guard.tie,
        allowed_draft_lens=None if allowed is None else frozenset(allowed),
        max_batch=pool.max_batch,
        objective=pool.objective,
        slo_tpot=pool.slo.tpot,
    )
    return PoolSettings(
        options,
        method=pool.drafter.method if pool.drafter is not None else "",
        prior_crossover=_sheet_crossover(pool),
        half_life_seconds=half_life,
    )


def _sheet_crossover(pool: Pool) -> float | None:
    """Return where the hardware sheet puts the crossover; none for a mixture of experts.

    Each verified token of such a model activates further experts, so the dense roofline is no prior.
    """
    if pool.hardware is None or pool.model is None:
        return None
    model = pool.model.roofline()
    if model.moe_factor > 1.0:
        return None
    return crossover_tokens(pool.hardware.roofline(), model)
