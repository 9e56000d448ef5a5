"""Tokens that reach the user per request step: measured by draft length where run, stops included.

Tokens accepted past a stop or a length limit are counted as accepted and never emitted (vLLM 0.32.0
``v1/core/sched/scheduler.py:2118`` counts before ``:2167`` trims), which costs 1-2 % at short outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tuner.fit.dispersion import assign_blocks, cap_factors, mean_request_seconds, ratio_spread

if TYPE_CHECKING:
    from tuner.fit.arrays import BoolArray, FloatArray
    from tuner.fit.exposure import ExposureTable
    from tuner.fleet import Counts, Window

PLAUSIBLE_TRIM = (-0.05, 0.30)
"""Share of accepted tokens lost to stops that can be believed. Outputs of 30-90 tokens at K=4 lose 2-3 %;
a tenth of that below 0 is windows cutting through a step. Outside, emitted tokens count something else."""

ALWAYS_DRAFTS = 0.98
"""Above this share of request steps with a draft, the rest are first steps after a prefill."""


@dataclass(frozen=True, slots=True)
class EmittedAt:
    """Emitted tokens per request step at one draft length, as measured."""

    draft_len: int
    value: float
    variance: float
    """Clustered by blocks, t quantile folded in."""
    drafts: float
    weak: bool
    drafted: float
    """Draft tokens per step that ``value`` counts: the draft length, less what was cut or not proposed."""


def trimmed_share(table: ExposureTable) -> float | None:
    """Return the share of accepted tokens that stops cut off, ``None`` if not told or not plausible."""
    lost = accepted = 0.0
    for window in table.windows:
        counts = window.counts
        told = _emitted_after_first(counts)
        if told is None or counts.request_steps is None or counts.accepted is None:
            continue
        lost += window.weight * (counts.request_steps + counts.accepted - told)
        accepted += window.weight * counts.accepted
    if accepted <= 0 or not PLAUSIBLE_TRIM[0] < lost / accepted < PLAUSIBLE_TRIM[1]:
        return None
    return lost / accepted


def measure_emitted(
    table: ExposureTable, forgetting: FloatArray, prior_dispersion: float, *, per_request_step: bool
) -> dict[int, EmittedAt]:
    """Measure emitted tokens per drafted request step at every draft length that ran alone.

    Args:
        table: exposure of n windows.
        forgetting: (n,) weight of each window by age.
        prior_dispersion: dispersion to lean on under 8 blocks.
        per_request_step: count silent steps of an optional drafter too. Its draft tokens may be padding,
            so that K is the one asked for, else one more than the last position ever accepted.
    """
    lengths = np.array(
        [
            _furthest(window) if per_request_step and window.draft_lens is None else int(length)
            for window, length in zip(table.windows, table.asked, strict=True)
        ],
        dtype=np.int64,
    )
    request_seconds = mean_request_seconds(table)
    found: dict[int, EmittedAt] = {}
    for length in sorted({int(one) for one in lengths if one > 0}):
        rows = lengths == length
        tokens, steps, noise = _tokens_per_window(table, rows, length, per_request_step=per_request_step)
        told = steps > 0
        if not told.any():
            continue
        weight = forgetting * cap_factors(steps)
        blocks = assign_blocks(table.engine, table.seconds, told, request_seconds)
        spread = ratio_spread(weight * tokens, weight * steps, weight**2 * noise, blocks, prior_dispersion)
        counted = float(steps.sum())
        drafted = _drafted_share(table, told, steps if per_request_step else table.drafts)
        found[length] = EmittedAt(
            length, spread.ratio, spread.variance, counted, spread.weak, float(length) * min(1.0, drafted)
        )
    return found


def _drafted_share(table: ExposureTable, rows: BoolArray, steps: FloatArray) -> float:
    """Draft tokens over what the draft length asked for in the windows ``rows`` (n,), 1 where untold."""
    tokens = asked = 0.0
    for row in np.flatnonzero(rows):
        told, length = table.windows[row].counts.draft_tokens, int(table.asked[row])
        if told is not None and length > 0:
            tokens += told
            asked += length * float(steps[row])
    return tokens / asked if asked > 0 else 1.0


def _furthest(window: Window) -> int:
    return sum(1 for count in window.counts.accepted_by_position if count > 0)


def _tokens_per_window(
    table: ExposureTable, rows: np.ndarray, length: int, *, per_request_step: bool
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Emitted tokens, the steps they belong to, and their variance with independent steps, (n,) each."""
    tokens, steps = np.zeros(len(table.windows)), np.zeros(len(table.windows))
    for row in np.flatnonzero(rows):
        counts = table.windows[row].counts
        told = _emitted_after_first(counts)
        drafts = float(table.drafts[row])
        if told is not None and counts.request_steps:
            if per_request_step or drafts >= ALWAYS_DRAFTS * counts.request_steps:
                tokens[row], steps[row] = told, counts.request_steps
            else:  # steps without a draft emit one token each
                tokens[row], steps[row] = told - (counts.request_steps - drafts), drafts
        elif counts.accepted is not None and not per_request_step:
            tokens[row], steps[row] = drafts + counts.accepted, drafts
    variance = _step_variance(table, rows, length, tokens, steps)
    return tokens, steps, variance * steps


def _step_variance(
    table: ExposureTable, rows: np.ndarray, length: int, tokens: FloatArray, steps: FloatArray
) -> float:
    """Variance of the tokens of one step: of the accepted-length histogram, else of a two-point guess."""
    histogram = length_histogram(table, rows, length)
    total = float(histogram.sum())
    if total > 0:
        count = np.arange(len(histogram))
        mean = float(histogram @ count) / total
        return max(float(histogram @ (count - mean) ** 2) / total, 1.0 / total)
    mean = float(tokens.sum()) / max(float(steps.sum()), 1.0)
    return max((mean - 1.0) * (length + 1.0 - mean), 1e-6)  # the widest a variable on [1, K+1] can be


def length_histogram(table: ExposureTable, rows: np.ndarray, length: int) -> FloatArray:
    """Verify steps (length + 1,) by accepted count over the windows ``rows`` (n,), all at ``length``."""
    histogram = np.zeros(length + 1)
    for row in np.flatnonzero(rows):
        window = table.windows[row]
        own = histogram_of(window.counts, length)
        if own is not None:
            histogram += window.weight * own
    return histogram


def histogram_of(counts: Counts, length: int) -> FloatArray | None:
    """Return verify steps (length + 1,) by accepted count, ``None`` where the counts do not tell them.

    Args:
        counts: with joint counts, or of a window at ``length`` alone.
        length: draft length.
    """
    if counts.joint:
        histogram = np.zeros(length + 1)
        for (drafted, taken), count in counts.joint.items():
            if drafted == length:
                histogram[taken] += count
        return histogram
    if counts.drafts is None or len(counts.accepted_by_position) < length:
        return None
    reached = np.array([counts.drafts, *counts.accepted_by_position[:length], 0.0])
    return np.asarray(reached[:-1] - reached[1:])


def _emitted_after_first(counts: Counts) -> float | None:
    if counts.emitted is None or counts.first_tokens is None:
        return None
    return counts.emitted - counts.first_tokens
