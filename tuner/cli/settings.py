"""What the operator said about a pool, from a configuration file and options of the command line."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tuner.cycle import PoolSettings
from tuner.plan.options import PlanOptions

if TYPE_CHECKING:
    from pathlib import Path

    from tuner.config import Pool


class NamedSettings(NamedTuple):
    """A pool's settings and its name, empty where nothing names it."""

    name: str
    pool: PoolSettings


def pool_settings(
    config_file: Path | None,
    name: str | None,
    max_batch: int | None,
    allowed_draft_lens: tuple[int, ...] | None,
) -> NamedSettings:
    """Return the settings of one pool; an option outvotes the file.

    Raises:
        InputError: the file is faulty, has no such pool, or an option is out of range.
    """
    named = NamedSettings(name or "", PoolSettings())
    if config_file is not None:
        from tuner.config import load_config

        pool = load_config(config_file).pool(name)
        named = NamedSettings(pool.name, settings_of(pool))
    options = named.pool.options
    if max_batch is not None:
        options = replace(options, max_batch=max_batch)
    if allowed_draft_lens is not None:
        options = replace(options, allowed_draft_lens=frozenset(allowed_draft_lens))
    return named._replace(pool=replace(named.pool, options=options))


def settings_of(pool: Pool) -> PoolSettings:
    """Turn a pool of the configuration into what a cycle needs."""
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
    )


def _sheet_crossover(pool: Pool) -> float | None:
    """Return where the hardware sheet puts the crossover; none for a mixture of experts.

    Each verified token of such a model activates further experts, so the dense roofline is no prior.
    """
    if pool.hardware is None or pool.model is None:
        return None
    from tuner.theory.roofline import crossover_tokens

    model = pool.model.roofline()
    if model.moe_factor > 1.0:
        return None
    return crossover_tokens(pool.hardware.roofline(), model)
