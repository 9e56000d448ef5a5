"""Prompts come whole: what bursts of prefill add to a mean step time.

A window tells mean tokens per step, but most steps hold no prompt and a few hold a whole one. Where step time
is convex in tokens, the mean time lies above the time at the mean (Jensen). Prompts of five times the
crossover read as a knee 15 % too high if that is left out; where step time is a line nothing changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tuner.fit.curve import seconds_of
from tuner.fleet import WindowState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tuner.fleet import Window

    Floats = NDArray[np.float64]

NEVER = 1e-16
"""Share of the steps below which a number of prompts is not met: less than a rounding error of the mean."""

MAX_PROMPTS = 48
"""Most prompts in one step that are looked at. Beyond 30 a step the tail is cut, where prompts are so many
that their number hardly varies: the spread of 30 is 18 %, and the excess falls with its square."""


def prompt_length(windows: Sequence[Window]) -> float:
    """Return computed prompt tokens per request over the good windows, 0 where that is not told."""
    prompt = requests = 0.0
    for window in windows:
        counts = window.counts
        if window.state is WindowState.GOOD and counts.prompt_tokens is not None and counts.first_tokens:
            requests += window.weight * counts.first_tokens
            prompt += window.weight * counts.prompt_tokens
    return prompt / requests if requests else 0.0


def burst_excess(
    theta: Floats, decode_tokens: Floats, prompt_tokens: Floats, length: float, columns: Floats
) -> Floats:
    """Return by how much the log of the mean step time exceeds the log time at the mean tokens.

    Prompts arrive at steps independently of each other, so their number in a step is Poisson.

    Args:
        theta: (p,) parameters of the curve.
        decode_tokens: (n,) tokens in flight without prompts.
        prompt_tokens: (n,) mean prompt tokens per step.
        length: tokens of one prompt; 0 for no bursts.
        columns: (n, l) linear columns of the curve.

    Returns:
        (n,) excess, at least 0 for a convex curve.
    """
    if length <= 0 or not prompt_tokens.any():
        return np.zeros_like(decode_tokens)
    rate = prompt_tokens / length
    prompts = np.arange(MAX_PROMPTS + 1)[:, None]
    log_factorials = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, MAX_PROMPTS + 1)))))[:, None]
    log_share = prompts * np.log(np.maximum(rate, 1e-300)) - log_factorials
    share = np.exp(log_share - log_share.max(axis=0))
    share /= share.sum(axis=0)
    met = share.max(axis=1) > NEVER
    share, prompts = share[met], prompts[met]
    tokens = decode_tokens + prompts * length
    repeated = np.tile(columns, (len(prompts), 1))
    seconds = seconds_of(theta[None, :], tokens.ravel(), repeated)[0].reshape(tokens.shape)
    mean_tokens = (share * tokens).sum(axis=0)  # of the same cut tail, so that a line has no excess
    at_mean = seconds_of(theta[None, :], mean_tokens, columns)[0]
    return np.asarray(np.log((share * seconds).sum(axis=0) / at_mean))
