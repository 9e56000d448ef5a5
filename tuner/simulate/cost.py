"""Seconds per step, the same for the engines and for the truth about them; arrays over engines.

``t = overhead + (memory^p + compute^p)^(1/p) + kv * context + draft(K)``. Tokens are padded to tiles, so
that step time is a staircase; in a mixture of experts the weights that are read grow with the distinct
experts that the tokens of a step activate: ``E (1 - (1 - k/E)^N)`` of E for N tokens of k experts each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.simulate.spec import CostSpec

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

AS_MAXIMUM = 64.0
"""Sharpness from which the norm is computed as the maximum: 2^(1/64) is 1 % above it at most."""
DRAM_CEILING = 0.8
"""DRAM activity of a step that only reads memory: what copying kernels reach in practice."""
TENSOR_CEILING = 0.75
"""Tensor pipe activity of a step that only computes."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of n engines; each field (n,), ``draft`` (n, longest K + 1)."""

    overhead: Floats
    dense: Floats
    """Seconds to read the weights that every token needs."""
    experts: Floats
    """Seconds to read all experts; 0 for a dense model."""
    miss: Floats
    """log(1 - k/E): chance that one token leaves one expert idle."""
    per_token: Floats
    sharpness: Floats
    tile: Floats
    per_context: Floats
    draft: Floats
    draft_per_token: Floats

    @classmethod
    def of(cls, specs: Sequence[CostSpec], longest: int) -> Costs:
        """Return the costs of engines, one spec each, for draft lengths up to ``longest``."""

        def each(values: list[float]) -> Floats:
            return np.array(values, dtype=np.float64)

        return cls(
            overhead=each([s.overhead for s in specs]),
            dense=each([s.floor * (1 - s.expert_share if s.experts else 1.0) for s in specs]),
            experts=each([s.floor * s.expert_share if s.experts else 0.0 for s in specs]),
            miss=each([_log_miss(s) for s in specs]),
            per_token=each([s.per_token for s in specs]),
            sharpness=each([s.sharpness for s in specs]),
            tile=each([float(s.tile) for s in specs]),
            per_context=each([s.per_context_token for s in specs]),
            draft=np.array([[draft_seconds(s, k) for k in range(longest + 1)] for s in specs]),
            draft_per_token=each([s.draft_per_token for s in specs]),
        )

    def at(self, rows: slice | Ints) -> Costs:
        """Return the costs of some of the engines."""
        if isinstance(rows, slice):
            return self
        return Costs(*(getattr(self, name)[rows] for name in self.__slots__))

    def step(
        self, tokens: Floats, context: Floats, draft_len: Ints, drafting: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """Return seconds, seconds of reading memory and seconds of computing of one step, each (n,).

        Args:
            tokens: (n,) tokens verified and prompt tokens computed.
            context: (n,) tokens in the KV cache of the batch.
            draft_len: (n,) K drafted in this step, for the next one to verify.
            drafting: (n,) requests that draft.
        """
        padded = np.ceil(tokens / self.tile) * self.tile
        memory = self.dense + self.experts * -np.expm1(self.miss * tokens)
        compute = self.per_token * padded
        drafter = self.draft[np.arange(len(tokens)), draft_len] + self.draft_per_token * drafting * draft_len
        reads = self.per_context * context
        seconds = self.overhead + norm(memory, compute, self.sharpness) + reads + drafter
        return seconds, memory + reads, compute


def norm(a: Floats, b: Floats, sharpness: Floats) -> Floats:
    """Return (a^p + b^p)^(1/p), (n,); the maximum from p = 64 on."""
    high, low = np.maximum(a, b), np.minimum(a, b)
    power = np.minimum(sharpness, AS_MAXIMUM)
    grown = high * np.exp(np.log1p((low / np.maximum(high, 1e-300)) ** power) / power)
    return np.where(sharpness >= AS_MAXIMUM, high, grown)


def draft_seconds(spec: CostSpec, draft_len: int) -> float:
    """Return the drafter's seconds per step at one draft length."""
    if draft_len == 0:
        return spec.draft_zero
    growth = {"linear": float(draft_len), "concave": math.sqrt(draft_len), "flat": 0.0}[spec.draft_shape]
    return spec.draft_base + spec.draft_slope * growth


def _log_miss(spec: CostSpec) -> float:
    """Return log(1 - k/E); a dense model reads everything whatever the tokens."""
    if not spec.experts:
        return 0.0
    share = min(spec.experts_per_token / spec.experts, 1 - 1e-12)
    return math.log1p(-share)
