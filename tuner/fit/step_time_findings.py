"""What step times reveal beside their curve: cliffs, drift of the machine, context that decides K."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from tuner.fit.step_time_correction import group_cells
from tuner.fleet import Finding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from tuner.fit.cells import Cells
    from tuner.fit.step_time_speed import Speed

    Floats = NDArray[np.float64]

CLIFF = 0.5
"""Share of the throughput at a smaller batch below which the next larger one is a cliff. A larger batch
never halves throughput by its own cost: it would take a step four times as long for twice the tokens."""
SAME_BATCH = 1.15
"""Largest ratio of two batch sizes that are one load."""
NEIGHBOURS = 2.0
"""Largest ratio of two batch sizes that are neighbours."""
CONTEXT_CONFLICT = 1.25
"""Ratio by which the relative cost of drafting must differ between short and long context."""


def find_cliffs(cells: Cells) -> tuple[Finding, ...]:
    """Return a finding for each fall of throughput by more than half between neighbouring batches.

    Batches are compared at one draft length, and at the best draft length of each, where a schedule
    changes it between them. Going from K to a smaller K' may by itself cost (K + 1) / (K' + 1) at most,
    which is no cliff.
    """
    groups = [group for group in group_cells(cells) if np.isfinite(cells.tokens_per_second[group]).all()]
    rows = [
        (
            float(np.average(cells.batch[group], weights=cells.steps[group])),
            float(cells.draft_len[group[0]]),
            float(np.median(cells.tokens_per_second[group])),
            int(cells.windows[group].sum()),
        )
        for group in groups
    ]
    found: dict[tuple[float, float], Finding] = {}
    for draft_len in {row[1] for row in rows}:
        _fall_along([row for row in rows if row[1] == draft_len], found)
    best: list[tuple[float, float, float, int]] = []
    for row in sorted(rows):
        if best and row[0] <= SAME_BATCH * best[-1][0]:
            best[-1] = max(best[-1], row, key=lambda one: one[2])
        else:
            best.append(row)
    _fall_along(best, found)
    return tuple(found[key] for key in sorted(found))


def _fall_along(
    rows: Sequence[tuple[float, float, float, int]], found: dict[tuple[float, float], Finding]
) -> None:
    """Add a finding for each cliff along rows of batch, draft length, tokens/s and windows."""
    ordered = sorted(rows)
    for (batch, k, before, _), (next_batch, next_k, after, windows) in itertools.pairwise(ordered):
        fewer_drafts = min(1.0, (next_k + 1) / (k + 1))
        falls = after < CLIFF * fewer_drafts * before
        if not falls or next_batch > NEIGHBOURS * batch or (batch, next_batch) in found:
            continue
        found[batch, next_batch] = Finding(
            code="cliff",
            severity="warning" if windows > 1 else "info",
            message=(
                f"throughput falls from {before:.0f} to {after:.0f} tokens/s between batch {batch:.0f} and "
                f"{next_batch:.0f}: look for a graph or code-path boundary there; the curve is not bent to it"
            ),
            evidence={
                "batch": round(batch, 2),
                "next_batch": round(next_batch, 2),
                "draft_len": k,
                "next_draft_len": next_k,
                "tokens_per_second": round(before, 2),
                "next_tokens_per_second": round(after, 2),
                "windows": windows,
            },
        )


def find_drift(speed: Speed) -> tuple[Finding, ...]:
    """Return a finding where the machine's speed moves."""
    if speed.sd == 0:
        return ()
    return (
        Finding(
            code="machine_drift",
            severity="info",
            message=(
                f"step times of one load move by {speed.sd:.0%} (1 sd) over {speed.memory_seconds / 60:.0f} "
                "minutes: ratios between draft lengths are kept, forecasts of tokens/s are that uncertain"
            ),
            evidence={"sd": round(speed.sd, 4), "memory_seconds": speed.memory_seconds},
        ),
    )


def find_context_conflict(short: float, long: float, contexts: tuple[float, float]) -> tuple[Finding, ...]:
    """Return a finding where drafting costs much more at long context than at short.

    Args:
        short: step time with drafting over step time without, at short context.
        long: the same at long context.
        contexts: the two, in tokens per request.
    """
    if long < CONTEXT_CONFLICT * short:
        return ()
    return (
        Finding(
            code="context_conflict",
            severity="warning",
            message=(
                f"drafting makes a step {short:.2f} times as long at {contexts[0]:.0f} tokens of context and "
                f"{long:.2f} times at {contexts[1]:.0f}: a schedule by batch cannot serve both, split the "
                "pool by context length or decide on seconds per token of the mix served"
            ),
            evidence={
                "context_tokens": [round(x, 1) for x in contexts],
                "step_ratio": [round(short, 4), round(long, 4)],
            },
        ),
    )


def mixed_seconds_per_token(shares: ArrayLike, seconds_per_token: ArrayLike) -> Floats:
    """Return seconds per token (k,) of a mix of contexts.

    Time adds up over tokens and rates do not: 70 % of tokens at 2.8 ms and 30 % at 15.5 ms take 6.61 ms
    each on average, where the average of tokens per second would say 3.7.

    Args:
        shares: (c,) share of the tokens served at each context.
        seconds_per_token: (c, k) seconds per token at each context and draft length.
    """
    weights = np.asarray(shares, dtype=np.float64)
    return np.asarray(weights @ np.asarray(seconds_per_token, dtype=np.float64) / weights.sum())
