"""Speedup of speculation over plain decoding, from the roofline and from a draft cost.

Two models, both of the essays. :func:`speedup_table` takes the hardware and says how the gain goes
with the batch: K draft passes of the small model and one verify pass of the target over
``B * (K + 1)`` tokens, against one pass over B. :func:`draft_len_table` takes a relative draft cost
c and a profile, and says which K pays while verification is free: ``E[tokens] / (1 + K * c)``.

Both are upper bounds: what the roofline leaves out (drafter launches, sampling, ragged
rollback, padding) only costs. A drafter's launches alone can cost 5-10 times its roofline
time without graphs, so a gain near 1 here is a loss in production.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tuner._exceptions import InputError
from tuner.theory.acceptance import (
    check_draft_len,
    expected_tokens_by_draft_len,
    expected_tokens_geometric,
    survival,
)
from tuner.theory.roofline import crossover_tokens, forward_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tuner.theory.roofline import Hardware, Model

TIE = 0.01
"""Two draft lengths whose gains differ by less than 1 % are taken for equal and the smaller one wins:
it holds fewer KV slots and costs less once verification is no longer free. 1 % is also about what
repeated benchmarks of one setting differ by."""


@dataclass(frozen=True, slots=True)
class SpeedupRow:
    """Speculation against plain decoding at one batch size."""

    batch: int
    tokens_in_flight: int
    """Tokens in the verify step, ``batch * tokens per request``."""
    memory_bound: bool
    """Whether the verify step lies at or below the crossover."""
    speedups: tuple[float, ...]
    """One per acceptance asked for, above 1 where speculation gains."""


@dataclass(frozen=True, slots=True)
class SpeedupTable:
    """Speedups by batch, and the crossover they turn at."""

    crossover: float
    """Tokens in flight, see :func:`tuner.theory.roofline.crossover_tokens`."""
    acceptances: tuple[float, ...]
    rows: tuple[SpeedupRow, ...]


def speedup_table(
    hardware: Hardware,
    target: Model,
    draft: Model | None,
    *,
    draft_len: int,
    acceptances: Sequence[float],
    batches: Sequence[int],
    tree_tokens: int | None = None,
) -> SpeedupTable:
    """Return the roofline speedup at each batch and acceptance.

    Args:
        hardware: device, or tensor-parallel group as one device.
        target: the model that is served.
        draft: the drafter; ``None`` for n-gram and suffix drafters, which cost nothing here.
        draft_len: K; for a tree its depth, the number of draft passes.
        acceptances: constant hazards to tabulate, each in [0, 1].
        batches: requests per step, each at least 1.
        tree_tokens: draft tokens of a tree per request, at least ``draft_len``; ``None`` for a chain.
            A tree puts more tokens in flight at the same depth and meets the crossover at a smaller batch.

    Raises:
        InputError: a value is outside its range.
    """
    length = check_draft_len(draft_len)
    per_request = tokens_per_request(length, tree_tokens)
    emitted = expected_tokens_geometric(np.asarray(acceptances, dtype=np.float64), length)
    batch = _batches(batches)
    plain = forward_seconds(hardware, target, batch)
    drafting = length * forward_seconds(hardware, draft, batch) if draft is not None else np.zeros_like(plain)
    verify = forward_seconds(hardware, target, batch * per_request)
    gains = emitted[np.newaxis, :] * (plain / (drafting + verify))[:, np.newaxis]
    crossover = crossover_tokens(hardware, target)
    return SpeedupTable(
        crossover=crossover,
        acceptances=tuple(float(alpha) for alpha in acceptances),
        rows=tuple(
            SpeedupRow(
                batch=size,
                tokens_in_flight=size * per_request,
                memory_bound=size * per_request <= crossover,
                speedups=tuple(float(gain) for gain in row),
            )
            for size, row in zip(batches, gains, strict=True)
        ),
    )


def tokens_per_request(draft_len: int, tree_tokens: int | None = None) -> int:
    """Return the tokens that one request puts into a verify step: K + 1, or the tree's nodes + 1."""
    nodes = check_draft_len(draft_len) if tree_tokens is None else check_draft_len(tree_tokens)
    if nodes < draft_len:
        raise InputError(f"a tree of depth {draft_len} has at least {draft_len} draft tokens, got {nodes}")
    return nodes + 1


@dataclass(frozen=True, slots=True)
class DraftLenRow:
    """What one draft length earns and costs while verification is free."""

    draft_len: int
    expected_tokens: float
    """Tokens per verify step, bonus included."""
    last_token_gain: float
    """What the last draft token adds to it: the survival of its position."""
    step_cost: float
    """``1 + K * c`` in target passes."""
    speedup: float


@dataclass(frozen=True, slots=True)
class DraftLenTable:
    """One row per draft length from 1 to the length of the profile."""

    rows: tuple[DraftLenRow, ...]
    best: int
    """K of the largest speedup; 0 where no draft length beats plain decoding."""
    recommended: int
    """Smallest K (0 included) whose speedup is within the tie of the best."""


def draft_len_table(hazards: Sequence[float], draft_cost: float, *, tie: float = TIE) -> DraftLenTable:
    """Return the speedup of each K in the memory-bound regime, the best K and the one to run.

    Args:
        hazards: acceptance by position, shape (K,).
        draft_cost: c, one draft pass over one target pass; 0 for n-gram drafters.
        tie: relative difference taken for equal, in [0, 1).

    Raises:
        InputError: a value is outside its range or the profile is empty.
    """
    if not len(hazards):
        raise InputError("the profile is empty: give the acceptance of at least one position")
    check_draft_len(len(hazards))
    if not (math.isfinite(draft_cost) and draft_cost >= 0.0):
        raise InputError(
            f"draft cost must be finite and not negative, got {draft_cost:g}: give one draft "
            "pass over one target pass, as in 0.1"
        )
    if not 0.0 <= tie < 1.0:
        raise InputError(f"tie must lie in [0, 1), got {tie:g}: give a ratio, as in 0.01")
    tokens = expected_tokens_by_draft_len(hazards)
    costs = 1.0 + draft_cost * np.arange(len(tokens))
    gains = tokens / costs
    last = survival(hazards)
    best = int(np.argmax(gains))
    return DraftLenTable(
        rows=tuple(
            DraftLenRow(k, float(tokens[k]), float(last[k - 1]), float(costs[k]), float(gains[k]))
            for k in range(1, len(tokens))
        ),
        best=best,
        recommended=int(np.argmax(gains >= gains[best] * (1.0 - tie))),
    )


def _batches(batches: Sequence[int]) -> NDArray[np.float64]:
    """Return the batch sizes as floats after checking that all are whole and at least 1."""
    for size in batches:
        if isinstance(size, bool) or size != int(size) or size < 1:
            raise InputError(f"batch must be a whole number of at least 1, got {size}")
    return np.asarray(batches, dtype=np.float64)
