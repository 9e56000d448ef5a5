"""Step time of one fingerprint: ``t(B, K) = o + (m^p + (cN)^p)^(1/p) + kv * context + draft(K)``.

N = B (K + 1) plus the prompt tokens computed in the step. Wall seconds per step are paired with mean
N. What the curve cannot say, measured cells correct (:mod:`tuner.fit.step_time_correction`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner._exceptions import InputError
from tuner.fit.cells import build_cells
from tuner.fit.curve import INVERSE_P, MIN_INVERSE_P, seconds_of
from tuner.fit.step_time_correction import Correction, fit_correction
from tuner.fit.step_time_solve import (
    CONTEXT,
    FLAT,
    LINEAR,
    OVERHEAD,
    ROOT,
    Solved,
    column_matrix,
    solve_cells,
)
from tuner.fleet import Estimate, Fingerprint, NotEnoughData

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from tuner.fit.cells import Cells
    from tuner.fit.crossover import Crossover
    from tuner.fit.step_time_solve import Shape
    from tuner.fleet import Finding, Window

    Floats = NDArray[np.float64]

MIN_WINDOWS = 3
EXTRAPOLATION = 1.5
"""Predictions beyond this multiple of the largest tokens in flight or context seen are extrapolating."""


@dataclass(frozen=True, slots=True)
class Drafter:
    """Seconds that drafting K tokens adds to a step: ``base [K>0] + slope K + root sqrt(K)``.

    What a drafter costs at K = 0 (state kept warm) is part of the overhead of every step.
    """

    shape: Shape
    base_seconds: float
    slope_seconds: float
    root_seconds: float
    reason: str = ""

    def seconds(self, draft_len: ArrayLike) -> Floats:
        """Return the drafter's seconds at draft lengths of any shape."""
        k = np.asarray(draft_len, dtype=np.float64)
        linear = self.slope_seconds * k + self.root_seconds * np.sqrt(k)
        return np.asarray(self.base_seconds * np.minimum(k, 1.0) + linear)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "shape": self.shape,
            "base_seconds": self.base_seconds,
            "seconds_per_draft_token": self.slope_seconds,
            "seconds_per_root_draft_token": self.root_seconds,
            "reason": self.reason,
        }


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
    crossover: Crossover | NotEnoughData
    cells: Cells
    findings: tuple[Finding, ...] = ()
    theta: Floats = field(repr=False, default_factory=lambda: np.empty(0))
    """Point parameters in seconds and tokens, as :mod:`tuner.fit.curve` orders them."""
    draws: Floats = field(repr=False, default_factory=lambda: np.empty((0, 0)))
    """Parameters (r, ...) of the resampled fits."""
    correction: Correction = field(repr=False, default_factory=Correction)

    def curve_seconds(
        self,
        batch: ArrayLike,
        draft_len: ArrayLike,
        prompt_tokens: ArrayLike = 0.0,
        context_tokens: ArrayLike = 0.0,
    ) -> Floats:
        """Return the smooth curve's seconds per step, arguments broadcast; no cell corrections."""
        shape, tokens, columns = self._inputs(batch, draft_len, prompt_tokens, context_tokens)
        return np.asarray(seconds_of(self.theta[None, :], tokens, columns)[0].reshape(shape))

    def seconds_draws(
        self,
        batch: ArrayLike,
        draft_len: ArrayLike,
        prompt_tokens: ArrayLike,
        context_tokens: ArrayLike | None,
        size: int,
        rng: np.random.Generator,
    ) -> Floats:
        """Draw seconds per step with the curve's uncertainty and the cells' corrections.

        Args:
            batch: (nb,) mean batch sizes.
            draft_len: (nk,) draft lengths.
            prompt_tokens: (nb, nk) prompt tokens computed per step.
            context_tokens: (nb,) tokens in the KV cache, or None for what was seen at such batches.
            size: number of draws.
            rng: source of randomness.

        Returns:
            (size, nb, nk) seconds per step.
        """
        b = np.asarray(batch, dtype=np.float64)[:, None]
        k = np.asarray(draft_len, dtype=np.float64)[None, :]
        context = self._context(b, context_tokens)
        shape, tokens, columns = self._inputs(b, k, prompt_tokens, context)
        rows = (
            rng.integers(0, len(self.draws), size)
            if size > len(self.draws)
            else rng.permutation(len(self.draws))[:size]
        )
        seconds = seconds_of(self.draws[rows], tokens, columns)
        flat_b, flat_k = (np.broadcast_to(values, shape).ravel() for values in (b, k))
        seconds *= np.exp(self.correction.draws(flat_b, flat_k, size, rng))
        return np.asarray(seconds.reshape(size, *shape))

    def predict(
        self,
        batch: float,
        draft_len: int,
        prompt_tokens: float = 0.0,
        context_tokens: float | None = None,
        *,
        size: int = 400,
        seed: int = 0,
    ) -> Estimate:
        """Return seconds per step at one batch and draft length, with its 95 % interval.

        Args:
            batch: mean batch size.
            draft_len: draft tokens per request and step.
            prompt_tokens: prompt tokens computed per step.
            context_tokens: tokens in the KV cache, or None for what was seen at such batches.
            size: draws behind the interval.
            seed: seed of the draws.
        """
        context = None if context_tokens is None else [context_tokens]
        rng = np.random.default_rng(seed)
        draws = self.seconds_draws([batch], [draft_len], [[prompt_tokens]], context, size, rng)[:, 0, 0]
        b = np.array([[batch]])
        value = float(self.curve_seconds(batch, draft_len, prompt_tokens, self._context(b, context)[0, 0]))
        value *= float(np.exp(self.correction.mean(np.array([batch]), np.array([float(draft_len)]))[0]))
        low, high = (float(x) for x in np.quantile(draws, [0.025, 0.975]))
        return Estimate(value, min(low, value), max(high, value))

    def extrapolating(
        self,
        batch: ArrayLike,
        draft_len: ArrayLike,
        prompt_tokens: ArrayLike = 0.0,
        context_tokens: ArrayLike | None = None,
    ) -> NDArray[np.bool_]:
        """Tell where a prediction lies outside of what was measured, arguments broadcast.

        Beyond 1.5 times the largest tokens in flight or context seen, below the smallest by as much,
        or outside the range of draft lengths seen.
        """
        b, k, p = np.broadcast_arrays(
            *(np.asarray(x, dtype=np.float64) for x in (batch, draft_len, prompt_tokens))
        )
        tokens = b * (k + 1) + p
        seen = self.cells.tokens
        out = (tokens > EXTRAPOLATION * seen.max()) | (tokens < seen.min() / EXTRAPOLATION)
        out |= (k > self.cells.draft_len.max()) | (k < self.cells.draft_len.min())
        if context_tokens is not None and np.isfinite(self.cells.context).any():
            out = out | (np.asarray(context_tokens) > EXTRAPOLATION * np.nanmax(self.cells.context))
        return np.asarray(out)

    def as_dict(self) -> dict[str, Any]:
        """Return ``step_time`` of the JSON contract; sharpness is null for a sharp roofline."""
        kv = self.kv_seconds_per_token
        return {
            "fingerprint": self.fingerprint.as_dict(),
            "floor_seconds": self.floor_seconds,
            "seconds_per_token": self.seconds_per_token,
            "sharpness": self.sharpness if np.isfinite(self.sharpness) else None,
            "overhead_seconds": self.overhead_seconds,
            "draft": self.draft.as_dict(),
            "kv_seconds_per_token": None if isinstance(kv, NotEnoughData) else kv,
            "cells": len(self.cells),
            "windows_left_out": dict(self.cells.left_out),
        }

    def _context(self, batch: Floats, given: ArrayLike | None) -> Floats:
        """Return context tokens (nb, 1): as given, else in proportion to the batch as it was seen."""
        if given is not None:
            return np.asarray(given, dtype=np.float64).reshape(batch.shape)
        seen = np.isfinite(self.cells.context)
        if not seen.any():
            return np.zeros_like(batch)
        each = float(np.median(self.cells.context[seen] / self.cells.batch[seen]))
        return batch * each

    def _inputs(
        self, batch: ArrayLike, draft_len: ArrayLike, prompt_tokens: ArrayLike, context: ArrayLike
    ) -> tuple[tuple[int, ...], Floats, Floats]:
        """Return the broadcast shape, tokens in flight (n,) and columns (n, l)."""
        arrays = np.broadcast_arrays(
            *(np.asarray(x, dtype=np.float64) for x in (batch, draft_len, prompt_tokens, context))
        )
        b, k, p, ctx = (x.ravel() for x in arrays)
        return arrays[0].shape, b * (k + 1) + p, column_matrix(k, ctx)


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
    resamples: int = 64,
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
    solved = solve_cells(cells, prior_crossover=prior_crossover, resamples=resamples, seed=seed)
    fingerprint = next(iter(fingerprints))
    return _assemble(fingerprint, cells, solved)


def _why_unusable(left_out: Mapping[str, int]) -> str:
    """Return one line on why too few windows can be used."""
    if not left_out:
        return "too few windows for a step time"
    reasons = ", ".join(
        f"{count} {reason}" for reason, count in sorted(left_out.items(), key=lambda kv: -kv[1])
    )
    return f"too few usable windows for a step time ({reasons})"


def _assemble(fingerprint: Fingerprint, cells: Cells, solved: Solved) -> StepTimeFit:
    """Turn parameters into the fit, with corrections from the cells' residuals."""
    theta = solved.theta
    curve = seconds_of(theta[None, :], cells.tokens, column_matrix(cells.draft_len, solved.context))[0]
    correction = fit_correction(cells, np.log(cells.seconds) - np.log(curve))
    inverse_p = float(theta[INVERSE_P])
    return StepTimeFit(
        fingerprint=fingerprint,
        overhead_seconds=float(theta[OVERHEAD]),
        floor_seconds=float(np.exp(theta[0])),
        seconds_per_token=float(np.exp(theta[1])),
        sharpness=float("inf") if inverse_p <= MIN_INVERSE_P * 1.01 else 1.0 / inverse_p,
        draft=Drafter(
            solved.shape, float(theta[FLAT]), float(theta[LINEAR]), float(theta[ROOT]), solved.shape_reason
        ),
        kv_seconds_per_token=float(theta[CONTEXT]) if solved.kv_reason is None else solved.kv_reason,
        crossover=solved.crossover,
        cells=cells,
        theta=theta,
        draws=solved.draws,
        correction=correction,
    )
