"""The truth about a pool, from its own cost model: for tests to compare with, never for the tuner.

Step times are means over what the engine meets at a fixed batch: prompts arrive in lumps (a Poisson number
per step, at the steady rate that the batch's own output implies) and noise is left out.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.simulate.acceptance import Acceptance
from tuner.simulate.cost import Costs, draft_seconds
from tuner.simulate.state import reference_draft_len

if TYPE_CHECKING:
    from tuner.simulate.cost import Floats
    from tuner.simulate.spec import PoolSpec, RouteSpec

MOST_PROMPTS = 12
"""Prompts in one step whose chance is still counted; at one prompt a step 12 have a chance of 1e-10."""


class PoolTruth:
    """What is true of one pool, whatever its load and noise."""

    def __init__(self, pool: PoolSpec) -> None:
        """Derive from the description of a pool."""
        self.pool = pool
        self.reference = reference_draft_len(pool)
        self.acceptance = [Acceptance.of(r, pool.max_draft_len, self.reference) for r in pool.routes]
        self.costs = Costs.of([pool.cost], pool.max_draft_len)

    def hazards(self, route: str, draft_len: int | None = None) -> tuple[float, ...]:
        """Return the hazards by position that counters of a route show at a draft length."""
        at = draft_len or self.pool.max_draft_len
        index = [r.name for r in self.pool.routes].index(route)
        return tuple(self.acceptance[index].counted_hazards(at).tolist())

    def alpha(self, route: str, draft_len: int | None = None) -> float:
        """Return accepted over exposed draft tokens of a route: the alpha of the truncated geometric."""
        index = [r.name for r in self.pool.routes].index(route)
        survival = self.acceptance[index].counted_survival(draft_len or self.pool.max_draft_len)
        return float(survival.sum() / (1.0 + survival[:-1].sum()))

    def shares(self, draft_len: int) -> Floats:
        """Return each route's share of the request steps, (routes,), at a draft length."""
        steps = np.array(
            [
                r.share * _steps(r, a, draft_len)
                for r, a in zip(self.pool.routes, self.acceptance, strict=True)
            ]
        )
        return np.asarray(steps / steps.sum())

    def emitted_per_step(self, draft_len: int) -> float:
        """Return the tokens per request step that reach users: what a stop cuts off is not counted."""
        routes = list(zip(self.pool.routes, self.acceptance, strict=True))
        per_step = np.array([(r.output - 1.0) / _steps(r, a, draft_len) for r, a in routes])
        return float(self.shares(draft_len) @ per_step)

    def prompts_per_step(self, batch: float, draft_len: int) -> float:
        """Return the prompts that a step computes where a batch is held: as many begin as end."""
        shares = [r.share for r in self.pool.routes]
        steps = [
            r.share * _steps(r, a, draft_len) for r, a in zip(self.pool.routes, self.acceptance, strict=True)
        ]
        return batch * sum(shares) / sum(steps)

    def context(self, batch: float) -> float:
        """Return the mean tokens in the KV cache at a batch: prompts and half of outputs, by length."""
        total = sum(r.share * r.output for r in self.pool.routes)
        mean = sum(r.share * r.output * (r.prompt + _residual(r)) for r in self.pool.routes) / total
        return batch * mean

    def step_seconds(
        self,
        batch: float,
        draft_len: int,
        *,
        prompt_tokens: float | None = None,
        context: float | None = None,
    ) -> float:
        """Return the mean seconds of a step.

        Args:
            batch: decoding requests.
            draft_len: K, verified and drafted.
            prompt_tokens: prompt tokens in the step; the steady mix of none, one, two, ... prompts if None.
            context: tokens in the KV cache; what the batch holds on average if None.
        """
        held = self.context(batch) if context is None else context
        if prompt_tokens is not None:
            counts, weights = np.array([prompt_tokens]), np.ones(1)
        else:
            rate = self.prompts_per_step(batch, draft_len)
            n = np.arange(MOST_PROMPTS)
            weights = np.exp(n * math.log(max(rate, 1e-12)) - rate - [math.lgamma(i + 1.0) for i in n])
            weights /= weights.sum()
            counts = n * self.prompt_length()
        tokens = np.minimum(batch * (draft_len + 1) + counts, float(self.pool.max_step_tokens))
        same = np.ones(len(tokens))
        costs = self.costs.at(np.zeros(len(tokens), dtype=np.int64))
        seconds, _, _ = costs.step(tokens, held * same, (draft_len * same).astype(np.int64), batch * same)
        return float(weights @ seconds)

    def prompt_length(self) -> float:
        """Return the mean prompt tokens of a request."""
        return sum(r.share * r.prompt for r in self.pool.routes) / sum(r.share for r in self.pool.routes)

    def goodput(self, batch: float, draft_len: int) -> float:
        """Return emitted tokens per second at a batch and a draft length."""
        first = self.prompts_per_step(batch, draft_len)
        emitted = batch * self.emitted_per_step(draft_len) + first
        return emitted / self.step_seconds(batch, draft_len)

    def oracle(self, max_batch: int | None = None) -> list[list[int]]:
        """Return the schedule ``[[first, last, K], ...]`` with the highest goodput at every batch."""
        choices = self.allowed_draft_lens()
        rows: list[list[int]] = []
        for batch in range(1, (max_batch or self.pool.max_batch) + 1):
            best = max(choices, key=lambda k: self.goodput(batch, k))
            if rows and rows[-1][2] == best:
                rows[-1][1] = batch
            else:
                rows.append([batch, batch, best])
        return rows

    def allowed_draft_lens(self) -> list[int]:
        """Return the draft lengths that the engine was started to run."""
        return sorted({row[2] for row in self.pool.schedule} or {self.pool.max_draft_len})

    def crossover(self) -> dict[str, float]:
        """Return the crossover in tokens, and what it is made of in seconds.

        ``tokens``: fixed time over time per token, (o + m + drafter at K = 0)/c, all experts active.
        ``excluding_overhead``: m/c.
        """
        cost = self.pool.cost
        warm = draft_seconds(cost, 0)
        return {
            "tokens": (cost.overhead + warm + cost.floor) / cost.per_token,
            "excluding_overhead": cost.floor / cost.per_token,
            "overhead_seconds": cost.overhead,
            "floor_seconds": cost.floor,
            "seconds_per_token": cost.per_token,
            "drafter_at_zero_seconds": warm,
            "sharpness": cost.sharpness,
        }

    def as_dict(self) -> dict[str, Any]:
        """Return everything in JSON's types."""
        pool = self.pool
        lens = list(range(pool.max_draft_len + 1))
        batches = [b for b in (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256) if b <= pool.max_batch]
        return {
            "pool": pool.name,
            "reference_draft_len": self.reference,
            "routes": {
                route.name: {
                    "hazards": [route.hazard_at(i) for i in range(pool.max_draft_len)],
                    "hazards_by_draft_len": {str(k): list(self.hazards(route.name, k)) for k in lens if k},
                    "alpha_by_draft_len": {str(k): self.alpha(route.name, k) for k in lens if k},
                }
                for route in pool.routes
            },
            "crossover": self.crossover(),
            "step_seconds": {str(b): {str(k): self.step_seconds(b, k) for k in lens} for b in batches},
            "goodput": {str(b): {str(k): self.goodput(b, k) for k in lens} for b in batches},
            "emitted_per_step": {str(k): self.emitted_per_step(k) for k in lens},
            "allowed_draft_lens": self.allowed_draft_lens(),
            "oracle": self.oracle(),
            "startup_schedule": [list(row) for row in pool.schedule],
        }


def _steps(route: RouteSpec, acceptance: Acceptance, draft_len: int) -> float:
    """Return the mean verify steps of a request: the last one overshoots by what is trimmed.

    A renewal process that passes n tokens in steps of mean m and mean square q needs
    (n + q/(2m) - 1/2)/m of them.
    """
    survival = acceptance.counted_survival(draft_len) if draft_len else np.zeros(0)
    mean = 1.0 + float(survival.sum())
    # E[(a+1)^2] = 1 + sum over i of (2i + 3) S_{i+1}, i from 0.
    square = 1.0 + float(((2 * np.arange(draft_len) + 3) * survival).sum())
    return (route.output - 1.0 + square / (2 * mean) - 0.5) / mean


def _residual(route: RouteSpec) -> float:
    """Return the mean output tokens so far of a request seen at random: half its length, by length."""
    return route.output * math.exp(route.output_spread**2) / 2
