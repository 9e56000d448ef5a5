"""A route leans on its pool where its own evidence is thin."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tuner.fit.dispersion import Z95

if TYPE_CHECKING:
    from tuner.fit.acceptance import AcceptanceFit, PositionFit

BETWEEN_ROUTES_SD = 0.5
"""Standard deviation of acceptance between routes of a pool, in logits. First positions of coding, math and
summaries at one drafter read .81, .83 and .69 (speculators issue 563), a deviation of 0.4; tool calls at
.85 beside chat at .45 are 0.95. A route with 50 effective trials keeps 75 % of its own word, one with 5
keeps a quarter."""


def shrink_to_pool(
    route: AcceptanceFit, pool: AcceptanceFit, *, between_sd: float = BETWEEN_ROUTES_SD
) -> AcceptanceFit:
    """Return ``route`` with every position drawn towards ``pool`` by their precisions.

    In logits the pool's hazard, with its own error and the spread between routes, is the prior of the
    route's. A position that the route never measured takes the prior, and is called extrapolated; one
    that neither measured stays as it is.

    Args:
        route: fit of one route.
        pool: fit of all routes of the pool together.
        between_sd: standard deviation between routes, in logits.
    """
    depth = max(len(route.positions), len(pool.positions))
    mean, sd = np.zeros(depth), np.ones(depth)
    measured = np.zeros(depth, dtype=bool)
    positions: list[PositionFit] = []
    for position in range(depth):
        own = position < len(route.positions) and bool(route.posterior.measured[position])
        prior = position < len(pool.positions) and bool(pool.posterior.measured[position])
        if not own and not prior:
            positions.append((route if position < len(route.positions) else pool).positions[position])
            continue
        precision, weighted = 0.0, 0.0
        if own:
            precision = float(route.posterior.sd[position] ** -2)
            weighted = precision * float(route.posterior.mean[position])
        if prior:
            from_pool = 1.0 / (float(pool.posterior.sd[position]) ** 2 + between_sd**2)
            precision += from_pool
            weighted += from_pool * float(pool.posterior.mean[position])
        mean[position], sd[position], measured[position] = weighted / precision, precision**-0.5, True
        positions.append(_position(route, pool, position, mean[position], sd[position], own=own))
    base = route if len(route.positions) == depth else pool
    posterior = replace(base.posterior, mean=mean, sd=sd, measured=measured)
    return replace(route, positions=tuple(positions), posterior=posterior)


def _position(
    route: AcceptanceFit, pool: AcceptanceFit, position: int, mean: float, sd: float, *, own: bool
) -> PositionFit:
    low, hazard, high = (float(x) for x in 1.0 / (1.0 + np.exp(-(mean + sd * np.array([-Z95, 0.0, Z95])))))
    if own:
        return replace(route.positions[position], hazard=hazard, low=low, high=high)
    return replace(
        pool.positions[position],
        hazard=hazard,
        low=low,
        high=high,
        exposed=0.0,
        accepted=0.0,
        state="extrapolated",
        reason="not measured on this route: taken from the pool, with the spread between routes",
        weak=True,
    )
