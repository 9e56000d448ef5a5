"""Step time of one fingerprint: ``t(B, K) = o + (m^p + (cN)^p)^(1/p) + kv context + draft(B, K)``.

N = B (K + 1) plus the prompt tokens computed in the step. Wall seconds per step are paired with mean
N; what prompts add by coming whole is taken out (:mod:`tuner.fit.prefill`). What the curve cannot say,
measured cells correct (:mod:`tuner.fit.step_time_correction`), and the machine's own speed is told apart
from what K costs (:mod:`tuner.fit.step_time_speed`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner._exceptions import InputError
from tuner.fit.cells import build_cells
from tuner.fit.crossover import NORMAL_95, crossover, point_of
from tuner.fit.curve import INVERSE_P, LOG_FLOOR, LOG_SLOPE, MIN_INVERSE_P, OVERHEAD, seconds_of
from tuner.fit.prefill import burst_excess, prompt_length
from tuner.fit.step_time_columns import CONTEXT, column_matrix, drafter_of, shape_reason
from tuner.fit.step_time_correction import Correction, fit_correction
from tuner.fit.step_time_findings import find_cliffs, find_context_conflict, find_drift
from tuner.fit.step_time_resample import resample
from tuner.fit.step_time_solve import log_residual, solve_again, solve_cells, unscaled
from tuner.fit.step_time_split import Split, split
from tuner.fleet import Estimate, Fingerprint, NotEnoughData

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from tuner.fit.cells import Cells
    from tuner.fit.crossover import Crossover
    from tuner.fit.curve import Solution
    from tuner.fit.step_time_columns import Drafter
    from tuner.fit.step_time_solve import Problem
    from tuner.fit.step_time_speed import Speed
    from tuner.fleet import Finding, Window

    Floats = NDArray[np.float64]

MIN_WINDOWS = 3
EXTRAPOLATION = 1.5
"""Predictions beyond this multiple of the largest tokens in flight or context seen are extrapolating."""
MIX_REACH = 0.5
"""Draft tokens beyond the mean draft lengths seen at which a prediction is not extrapolating yet. Cells at
one draft length differ by whole ones, so that it concerns mixes alone, by half a drafter's pass."""
RESAMPLES = 64
"""Resampled fits per variant, o folded and o free: 128 in all. A standard deviation of 64 is known to
9 %, and they cost about as much as the choice of columns."""

BURST_ROUNDS = 8
"""Most refits with the excess of prompt bursts taken out; each halves what is left of their effect. Columns
and the machine's speed stay meanwhile, which makes a refit of 1 300 cells 8 ms instead of 35."""
BURST_CHOICES = 3
"""Most choices of columns and speed with the excess taken out; the second already seldom differs."""
BURST_TOLERANCE = 0.002
"""Excess in log seconds at which a further refit is not worth its 10 ms: a fifth of the cells' noise."""


@dataclass(frozen=True, slots=True)
class StepTimeFit:
    """What a step costs on engines of one fingerprint, with the uncertainty of saying so."""

    fingerprint: Fingerprint
    overhead_seconds: float
    floor_seconds: float
    """m: the fixed time of a step, overhead excluded."""
    seconds_per_token: float
    sharpness: float
    """p; inf for a sharp roofline."""
    draft: Drafter
    kv_seconds_per_token: float | NotEnoughData
    split: Split | NotEnoughData
    """Floor, time per token and sharpness with their intervals, or why the cells do not tell them apart.
    Then the plain numbers above rest on a prior, and only predictions near the load seen mean anything."""
    crossover: Crossover | NotEnoughData
    cells: Cells
    findings: tuple[Finding, ...]
    theta: Floats = field(repr=False)
    """Point parameters in seconds and tokens, as :mod:`tuner.fit.curve` orders them."""
    draws: Floats = field(repr=False)
    """Parameters (r, p) of the resampled fits."""
    correction: Correction = field(repr=False)
    speed: Speed = field(repr=False)
    """The machine's speed; predictions are at its mean over the windows fitted."""
    prompt_length: float = 0.0
    """Tokens of a prompt, which come in one step."""

    def curve_seconds(
        self,
        batch: ArrayLike,
        draft_len: ArrayLike,
        prompt_tokens: ArrayLike = 0.0,
        context_tokens: ArrayLike | None = None,
    ) -> Floats:
        """Return the smooth curve's seconds of a step with exactly these tokens, arguments broadcast.

        Cell corrections are left out, and the excess of prompts that come whole.
        """
        context = self._context(np.asarray(batch, dtype=np.float64), context_tokens)
        shape, tokens, columns = _inputs(batch, draft_len, prompt_tokens, context)
        return np.asarray(seconds_of(self.theta[None, :], tokens, columns)[0].reshape(shape))

    def log_seconds_moments(
        self,
        batch: ArrayLike,
        draft_len: ArrayLike,
        prompt_tokens: ArrayLike = 0.0,
        context_tokens: ArrayLike | None = None,
    ) -> tuple[Floats, Floats]:
        """Return moments of log seconds per step: the curve's resampled fits and the cells' corrections.

        Nothing is drawn, and no batch or draft length moves the moments of another.

        Args:
            batch: (nb,) mean batch sizes.
            draft_len: (nk,) draft lengths.
            prompt_tokens: (nb, nk) prompt tokens computed per step.
            context_tokens: (nb,) tokens in the KV cache, or None for the mean context per request seen.

        Returns:
            (nb, nk) means, and (nb, nk, nk) covariances across draft lengths at each batch.
        """
        b = np.asarray(batch, dtype=np.float64)[:, None]
        k = np.asarray(draft_len, dtype=np.float64)[None, :]
        given = None if context_tokens is None else np.asarray(context_tokens, dtype=np.float64)[:, None]
        shape, tokens, columns = _inputs(b, k, prompt_tokens, self._context(b, given))
        logs = np.log(seconds_of(self.draws, tokens, columns))
        mean = logs.mean(axis=0)
        deviations = (logs - mean).T.reshape(*shape, len(logs))
        covariance = deviations @ deviations.swapaxes(1, 2) / (len(logs) - 1)
        flat_b, flat_k = (np.broadcast_to(values, shape).ravel() for values in (b, k))
        moved, variance = (part.reshape(shape) for part in self.correction.moments(flat_b, flat_k))
        covariance += variance[:, :, None] * np.eye(shape[1])
        unseen = self.correction.unseen_sd(k[0])
        mean += self._excess(b, k, prompt_tokens, given)
        return mean.reshape(shape) + moved, covariance + np.outer(unseen, unseen)

    def predict(
        self,
        batch: float,
        draft_len: int,
        prompt_tokens: float = 0.0,
        context_tokens: float | None = None,
        *,
        engine: str | None = None,
        at: float | None = None,
    ) -> Estimate:
        """Return seconds per step at one batch and draft length, with its 95 % interval.

        Args:
            batch: mean batch size.
            draft_len: draft tokens per request and step.
            prompt_tokens: prompt tokens computed per step.
            context_tokens: tokens in the KV cache, or None for the mean context per request seen.
            engine: predict at the speed that this engine had, instead of at the mean speed.
            at: when, in unix seconds; given together with ``engine``.
        """
        context = None if context_tokens is None else [context_tokens]
        mean, covariance = self.log_seconds_moments([batch], [draft_len], [[prompt_tokens]], context)
        reach = NORMAL_95 * float(np.sqrt(covariance[0, 0, 0]))
        low, high = (float(np.exp(mean[0, 0] + side * reach)) for side in (-1, 1))
        value = float(self.curve_seconds(batch, draft_len, prompt_tokens, context_tokens))
        value *= float(np.exp(self._excess(batch, draft_len, prompt_tokens, context_tokens)[0]))
        value *= float(np.exp(self.correction.mean(np.array([batch]), np.array([float(draft_len)]))[0]))
        factor = 1.0
        if engine is not None and at is not None:
            factor = float(np.exp(self.speed.log_factor(engine, at)[0]))
        return Estimate(factor * value, factor * min(low, value), factor * max(high, value))

    def measured(self, batch: ArrayLike, draft_len: ArrayLike) -> NDArray[np.bool_]:
        """Tell where a cell was measured within 15 % of the batch at that K, arguments broadcast."""
        b, k = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (batch, draft_len)))
        return self.correction.measured(b.ravel(), k.ravel()).reshape(b.shape)

    def extrapolating(
        self,
        batch: ArrayLike,
        draft_len: ArrayLike,
        prompt_tokens: ArrayLike = 0.0,
        context_tokens: ArrayLike | None = None,
    ) -> NDArray[np.bool_]:
        """Tell where a prediction lies outside of what was measured, arguments broadcast.

        That is beyond 1.5 times the largest tokens in flight or context seen, or more than half a token
        outside of the range of mean draft lengths seen: a longest draft that ran in mixes only is inside.
        """
        given = 0.0 if context_tokens is None else context_tokens
        b, k, p, context = np.broadcast_arrays(
            *(np.asarray(x, dtype=np.float64) for x in (batch, draft_len, prompt_tokens, given))
        )
        out = b * (k + 1) + p > EXTRAPOLATION * self.cells.tokens.max()
        out = (
            out | (k > self.cells.draft_len.max() + MIX_REACH) | (k < self.cells.draft_len.min() - MIX_REACH)
        )
        seen = self.cells.context[np.isfinite(self.cells.context)]
        if len(seen):
            out = out | (context > EXTRAPOLATION * seen.max())
        return np.asarray(out)

    def as_dict(self) -> dict[str, Any]:
        """Return ``step_time`` of the JSON contract; sharpness is null for a sharp roofline.

        Where the split is not known its parameters are null, with the reason beside them.
        """
        kv, told = self.kv_seconds_per_token, self.split
        if isinstance(told, NotEnoughData):
            names = ("floor_seconds", "overhead_seconds", "seconds_per_token", "sharpness")
            parameters: dict[str, Any] = {**dict.fromkeys(names), "split_unknown": str(told)}
        else:
            parameters = told.as_dict()
        return {
            "fingerprint": self.fingerprint.as_dict(),
            **parameters,
            "draft": self.draft.as_dict(),
            "kv_seconds_per_token": None if isinstance(kv, NotEnoughData) else kv,
            "cells": len(self.cells),
            "resamples": len(self.draws),
            "windows_left_out": dict(self.cells.left_out),
        }

    def _excess(
        self,
        batch: ArrayLike,
        draft_len: ArrayLike,
        prompt_tokens: ArrayLike,
        context_tokens: ArrayLike | None,
    ) -> Floats:
        """Return the log excess (n,) of prompts that come whole, arguments broadcast and flattened."""
        context = self._context(np.asarray(batch, dtype=np.float64), context_tokens)
        shape, tokens, columns = _inputs(batch, draft_len, prompt_tokens, context)
        prompts = np.broadcast_to(np.asarray(prompt_tokens, dtype=np.float64), shape).ravel()
        return burst_excess(self.theta, tokens - prompts, prompts, self.prompt_length, columns)

    def _context(self, batch: Floats, given: ArrayLike | None) -> Floats:
        """Return context tokens as given, else the mean context per request seen times the batch.

        The mean, not the median: step time is linear in context, so a mix of contexts costs what its
        mean context costs.
        """
        if given is not None:
            return np.asarray(given, dtype=np.float64)
        seen = np.isfinite(self.cells.context)
        if not seen.any():
            return np.zeros_like(batch)
        requests = (self.cells.batch * self.cells.steps)[seen]
        return batch * float((self.cells.context * self.cells.steps)[seen].sum() / requests.sum())


def group_by_fingerprint(windows: Sequence[Window]) -> dict[Fingerprint, list[Window]]:
    """Return windows by fingerprint; costs are never shared across two of them."""
    groups: dict[Fingerprint, list[Window]] = {}
    for window in windows:
        groups.setdefault(window.fingerprint, []).append(window)
    return groups


def fit_step_time(
    windows: Sequence[Window],
    *,
    prior_crossover: float | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> StepTimeFit | NotEnoughData:
    """Fit step time to windows of one fingerprint.

    Args:
        windows: windows in any state; only good ones at one draft length (or two neighbours) count.
        prior_crossover: tokens in flight where the hardware sheet puts m/c; one cell's worth of
            evidence, which data near the knee outvote. None for no sheet, or a mixture of experts.
        resamples: resampled fits behind each interval, per variant of the curve.
        seed: seed of the resampling.

    Returns:
        The fit, or why there is none. A fit may still say "cannot say" for its crossover.

    Raises:
        InputError: the windows are of two fingerprints.
    """
    fingerprints = {window.fingerprint for window in windows}
    if len(fingerprints) > 1:
        raise InputError(
            f"windows of {len(fingerprints)} fingerprints in one step-time fit: group them with "
            "group_by_fingerprint, costs are not shared"
        )
    cells = build_cells(windows)
    usable = int(cells.windows.sum())
    if usable < MIN_WINDOWS:
        return NotEnoughData(_why_unusable(cells.left_out), have=usable, need=MIN_WINDOWS)
    length = prompt_length(windows)
    problem, scaled = _solve_without_bursts(cells, prior_crossover, length)
    pair = unscaled(scaled.theta, problem.scale)
    drawn = resample(problem, scaled, resamples, seed)
    drawn = replace(
        drawn,
        centre=unscaled(drawn.centre, problem.scale),
        draws=unscaled(drawn.draws, problem.scale),
        rivals=unscaled(drawn.rivals, problem.scale),
    )
    theta = point_of(pair)
    point = scaled.theta[0] if np.array_equal(theta, pair[0]) else scaled.theta[1]
    inverse_p = float(theta[INVERSE_P])
    fit = StepTimeFit(
        fingerprint=next(iter(fingerprints)),
        overhead_seconds=float(theta[OVERHEAD]),
        floor_seconds=float(np.exp(theta[LOG_FLOOR])),
        seconds_per_token=float(np.exp(theta[LOG_SLOPE])),
        sharpness=float("inf") if inverse_p <= MIN_INVERSE_P * 1.01 else 1.0 / inverse_p,
        draft=drafter_of(theta, problem.shape, shape_reason(cells, problem.shape)),
        kv_seconds_per_token=float(theta[CONTEXT]) if problem.kv_reason is None else problem.kv_reason,
        split=split(cells, pair, drawn),
        crossover=crossover(cells, pair, drawn),
        cells=cells,
        findings=(*find_cliffs(cells), *find_drift(problem.speed)),
        theta=theta,
        draws=drawn.draws,
        correction=fit_correction(cells, log_residual(problem, point)),
        speed=problem.speed,
        prompt_length=length,
    )
    return _with_context_finding(fit)


def _solve_without_bursts(
    cells: Cells, prior_crossover: float | None, length: float
) -> tuple[Problem, Solution]:
    """Solve for the curve of single steps: what prompts add by coming whole is taken out of the cells."""
    decode = cells.batch * (cells.draft_len + 1)
    prompts = np.maximum(cells.tokens - decode, 0.0)
    columns = column_matrix(cells.batch, cells.draft_len, np.nan_to_num(cells.context), cells.root)
    taken = np.zeros(len(cells))
    problem, scaled = solve_cells(cells, prior_crossover)
    for _ in range(BURST_CHOICES):
        before = taken
        for _ in range(BURST_ROUNDS):
            theta = point_of(unscaled(scaled.theta, problem.scale))
            excess = burst_excess(theta, decode, prompts, length, columns)
            if np.abs(excess - taken).max() < BURST_TOLERANCE:
                break
            problem, scaled = solve_again(problem, scaled, taken - excess)
            taken = excess
        if np.abs(taken - before).max() < BURST_TOLERANCE:
            break
        problem, scaled = solve_cells(replace(cells, seconds=cells.seconds * np.exp(-taken)), prior_crossover)
    return problem, scaled


def _with_context_finding(fit: StepTimeFit) -> StepTimeFit:
    """Add the finding on context where it changes what drafting costs."""
    if isinstance(fit.kv_seconds_per_token, NotEnoughData):
        return fit
    batch, draft_len = float(np.median(fit.cells.batch)), float(fit.cells.draft_len.max())
    short, long = (float(x) for x in np.quantile(fit.cells.context / fit.cells.batch, [0.1, 0.9]))
    ratios = [
        float(fit.curve_seconds(batch, draft_len, 0.0, batch * each))
        / float(fit.curve_seconds(batch, 0, 0.0, batch * each))
        for each in (short, long)
    ]
    found = find_context_conflict(ratios[0], ratios[1], (short, long))
    return replace(fit, findings=(*fit.findings, *found)) if found else fit


def _why_unusable(left_out: Mapping[str, int]) -> str:
    """Return one line on why too few windows can be used."""
    if not left_out:
        return "too few windows for a step time"
    ranked = sorted(left_out.items(), key=lambda item: -item[1])
    reasons = ", ".join(f"{reason}: {count}" for reason, count in ranked)
    return f"too few usable windows for a step time (left out, {reasons})"


def _inputs(
    batch: ArrayLike, draft_len: ArrayLike, prompt_tokens: ArrayLike, context: ArrayLike
) -> tuple[tuple[int, ...], Floats, Floats]:
    """Return the broadcast shape, tokens in flight (n,) and columns (n, l)."""
    arrays = np.broadcast_arrays(
        *(np.asarray(x, dtype=np.float64) for x in (batch, draft_len, prompt_tokens, context))
    )
    b, k, p, ctx = (x.ravel() for x in arrays)
    return arrays[0].shape, b * (k + 1) + p, column_matrix(b, k, ctx)
