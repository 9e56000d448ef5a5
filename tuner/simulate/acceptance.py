"""Acceptance of a route: log odds that vary across requests and passages, tuned to given hazards.

A passage accepts position i with probability ``logistic(base_i + z)``, z normal with the variance of
requests plus that of passages. Counters add up request steps, and passages that accept little take more
steps for their tokens, so each z weighs ``1 / E[tokens per step | z]`` beside its density. The base of each
position is solved so that the counters of an engine at the reference draft length show exactly the hazards
that the route was given. At another draft length they show slightly others, as in real engines.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tuner.simulate.spec import RouteSpec

Floats = NDArray[np.float64]

NODES = 41
"""Points of the Gauss-Hermite rule over z: the hazards are exact to 1e-9 for spreads up to 1."""
ROUNDS = 8
"""Rounds of weights and bases: each shrinks the error about tenfold."""


@dataclass(frozen=True, slots=True, eq=False)
class Acceptance:
    """One route at draft lengths up to ``len(base)``."""

    base: Floats
    """(longest,) log odds by position at z = 0."""
    request_sd: float
    passage_sd: float

    @staticmethod
    @functools.lru_cache(maxsize=256)  # solving takes milliseconds, and pools share routes
    def of(route: RouteSpec, longest: int, reference: int) -> Acceptance:
        """Solve the log odds of a route.

        Args:
            route: hazards and spreads.
            longest: longest draft length.
            reference: draft length at which counters show the hazards as given.
        """
        hazards = np.array([route.hazard_at(i) for i in range(longest)])
        base = np.log(hazards / (1 - hazards))
        solved = Acceptance(base, *_spreads(route))
        if solved.spread == 0:
            return solved
        z, density = solved.nodes()
        for _ in range(ROUNDS):
            weight = density / solved.tokens_at(z, reference)
            solved = Acceptance(_solve(hazards, z, weight / weight.sum()), *_spreads(route))
        return solved

    @property
    def spread(self) -> float:
        """Standard deviation of z."""
        return math.hypot(self.request_sd, self.passage_sd)

    def nodes(self) -> tuple[Floats, Floats]:
        """Return values of z (n,) and their weights, which sum to 1."""
        points, weights = _rule()
        return points * self.spread, weights

    def survival(self, z: Floats) -> Floats:
        """Return the chance (len(z), longest) that the first 1, 2, ... draft tokens are all accepted."""
        return np.asarray(np.cumprod(logistic(self.base[None, :] + z[:, None]), axis=1))

    def tokens_at(self, z: Floats, draft_len: int) -> Floats:
        """Return the mean tokens per step (len(z),) at a draft length, bonus included."""
        return np.asarray(1.0 + self.survival(z)[:, :draft_len].sum(axis=1))

    def counted_survival(self, draft_len: int) -> Floats:
        """Return the survival (draft_len,) that counters of many requests show at a draft length."""
        z, density = self.nodes()
        weight = density / self.tokens_at(z, draft_len)
        weight /= weight.sum()
        return np.asarray(weight @ self.survival(z)[:, :draft_len])

    def counted_hazards(self, draft_len: int) -> Floats:
        """Return the hazards (draft_len,) that counters of many requests show at a draft length."""
        survival = self.counted_survival(draft_len)
        return np.asarray(survival / np.concatenate([[1.0], survival[:-1]]))

    def tokens_per_step(self, draft_len: int) -> float:
        """Return the mean tokens per request step, bonus included, nothing trimmed."""
        return 1.0 + float(self.counted_survival(draft_len).sum())


def logistic(x: Floats) -> Floats:
    """Return 1 / (1 + exp(-x))."""
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


@functools.cache
def _rule() -> tuple[Floats, Floats]:
    """Return points and weights of the standard normal."""
    points, weights = np.polynomial.hermite_e.hermegauss(NODES)
    return np.asarray(points, dtype=np.float64), np.asarray(weights / weights.sum(), dtype=np.float64)


def _spreads(route: RouteSpec) -> tuple[float, float]:
    return route.request_spread, route.passage_spread


def _solve(hazards: Floats, z: Floats, weight: Floats) -> Floats:
    """Return log odds by position such that the weighted survival has the given hazards."""
    reached = weight
    base = np.empty_like(hazards)
    for i, hazard in enumerate(hazards):
        low, high = -20.0, 20.0
        for _ in range(45):  # 45 halvings of 40: 1e-12
            middle = (low + high) / 2
            if reached @ logistic(middle + z) < hazard * reached.sum():
                low = middle
            else:
                high = middle
        base[i] = (low + high) / 2
        reached = reached * logistic(base[i] + z)
    return base
