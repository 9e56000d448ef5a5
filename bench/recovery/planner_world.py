"""Random serving engines whose goodput is known exactly, to hold a planner against.

A world has a cost shape, a drafter and hazards by position, all random within what published systems
show. It imports nothing of the project, so that it can contradict it. Seconds are in units of one
memory-bound step at batch 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Shape = Literal["roofline", "smooth", "linear", "experts", "ngram", "long_context"]
SHAPES: tuple[Shape, ...] = ("roofline", "smooth", "linear", "experts", "ngram", "long_context")
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
DRAFT_LENS = (0, 1, 2, 3, 4, 5, 6, 7)


@dataclass(frozen=True)
class World:
    """One engine: what a step costs and what its drafts are worth."""

    shape: Shape
    overhead: float
    """Time of a step beside the forward pass, in floors."""
    crossover: float
    """Tokens in flight at which compute time equals the floor."""
    sharpness: float
    """p of (floor^p + compute^p)^(1/p)."""
    kept_warm: float
    """What a loaded drafter costs at draft length 0."""
    draft_fixed: float
    draft_per_token: float
    expert_share: float
    """Share of the floor that is experts, read only when a token needs them; 0 for dense models."""
    expert_tokens: float
    """Tokens in flight that touch 63 % of the experts."""
    context_cost: float
    """Time of reading one request's context, once per step whatever the draft length."""
    hazards: Floats
    """Acceptance at each position given that it was reached."""

    def tokens_per_step(self, draft_lens: Floats) -> Floats:
        """Return emitted tokens per request and step at each draft length."""
        survival = np.concatenate(([0.0], np.cumsum(np.cumprod(self.hazards))))
        tokens: Floats = 1.0 + survival[draft_lens.astype(int)]
        return tokens

    def step_time(self, batch: Floats, draft_len: Floats) -> Floats:
        """Return the time of a step, arguments broadcast."""
        tokens = batch * (draft_len + 1)
        touched = 1.0 - np.exp(-tokens / self.expert_tokens)
        floor = (1.0 - self.expert_share) + self.expert_share * touched
        compute = tokens / self.crossover
        forward = (floor**self.sharpness + compute**self.sharpness) ** (1.0 / self.sharpness)
        drafting = np.where(draft_len > 0, self.draft_fixed + self.draft_per_token * draft_len, 0.0)
        seconds: Floats = self.overhead + forward + self.kept_warm + drafting + self.context_cost * batch
        return seconds

    def goodput(self, batches: Floats, draft_lens: Floats) -> Floats:
        """Return tokens per unit of time, shape (nb, nk)."""
        seconds = self.step_time(batches[:, None], draft_lens[None, :])
        speeds: Floats = batches[:, None] * self.tokens_per_step(draft_lens)[None, :] / seconds
        return speeds


def random_world(shape: Shape, rng: np.random.Generator) -> World:
    """Draw a world of one cost shape.

    Ranges: crossover 50 to 2000 tokens (4-bit weights to mixtures of experts), overhead up to a quarter
    of the floor, drafter 2 to 15 % of a target pass per token (or none, for n-gram lookup), hazards as in
    published profiles: a model's drift slowly, an n-gram's start low and stay high once a match holds.
    """
    ngram = shape == "ngram"
    context = float(np.exp(rng.uniform(np.log(0.01), np.log(0.1))))
    sharpness = {"roofline": 60.0, "linear": 1.0}.get(shape, float(rng.uniform(1.2, 5.0)))
    return World(
        shape=shape,
        overhead=float(rng.uniform(0.0, 0.25)),
        crossover=float(np.exp(rng.uniform(np.log(50), np.log(2000)))),
        sharpness=sharpness,
        kept_warm=0.0 if ngram else float(rng.uniform(0.0, 0.05)),
        draft_fixed=0.0 if ngram else float(rng.uniform(0.0, 0.15)),
        draft_per_token=0.0 if ngram else float(rng.uniform(0.02, 0.15)),
        expert_share=float(rng.uniform(0.5, 0.95)) if shape == "experts" else 0.0,
        expert_tokens=float(np.exp(rng.uniform(np.log(4), np.log(64)))),
        context_cost=context if shape == "long_context" else 0.0,
        hazards=_ngram_hazards(rng) if ngram else _model_hazards(rng),
    )


def _model_hazards(rng: np.random.Generator) -> Floats:
    """Start at 0.35 to 0.95 and drift, mostly down, by a few percent a position."""
    drift = rng.uniform(-0.08, 0.02) + 0.02 * rng.standard_normal(DRAFT_LENS[-1])
    return np.clip(rng.uniform(0.35, 0.95) + np.cumsum(drift), 0.05, 0.99)


def _ngram_hazards(rng: np.random.Generator) -> Floats:
    """Match seldom, then go on for long."""
    return np.concatenate(
        ([rng.uniform(0.05, 0.5)], rng.uniform(0.55, 0.95) + 0.03 * rng.standard_normal(DRAFT_LENS[-1] - 1))
    ).clip(0.02, 0.99)
