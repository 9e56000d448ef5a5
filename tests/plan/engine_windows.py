"""Windows of an engine with known hazards and step time, for tests that need real fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tuner.fleet import Counts, Window, WindowState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WINDOW_SECONDS = 15.0
PER_CELL = 8


def engine_windows(
    draft_lens: Sequence[int],
    batches: Sequence[int],
    hazards: Sequence[float],
    step_seconds: Callable[[float, int], float],
    *,
    prompt_per_output: float = 0.0,
    noise: float = 0.005,
    seed: int = 0,
) -> list[Window]:
    """Return ``PER_CELL`` good windows at every batch size and draft length.

    Args:
        draft_lens: draft lengths that run, each alone in its windows.
        batches: batch sizes.
        hazards: acceptance by position, given that it was reached.
        step_seconds: seconds of a step from tokens in flight and draft length.
        prompt_per_output: prompt tokens computed per token emitted.
        noise: sd of a window's log step time.
        seed: seed of acceptance and noise.
    """
    rng = np.random.default_rng(seed)
    windows, now = [], 1e9
    for batch in batches:
        for draft_len in draft_lens:
            for _ in range(PER_CELL):
                expected = 1 + np.cumprod(hazards[:draft_len]).sum()
                tokens = batch * (draft_len + 1) + batch * expected * prompt_per_output
                seconds = step_seconds(tokens, draft_len) * np.exp(noise * rng.standard_normal())
                steps = int(WINDOW_SECONDS / seconds)
                windows.append(
                    _window(now, steps, seconds, batch, draft_len, hazards, prompt_per_output, rng)
                )
                now = windows[-1].end
    return windows


def _window(
    start: float,
    steps: int,
    seconds: float,
    batch: int,
    draft_len: int,
    hazards: Sequence[float],
    prompt_per_output: float,
    rng: np.random.Generator,
) -> Window:
    request_steps = steps * batch
    accepted, reached = [], request_steps
    for hazard in hazards[:draft_len]:
        reached = int(rng.binomial(reached, hazard))
        accepted.append(float(reached))
    emitted = request_steps + sum(accepted)
    return Window(
        pool="p",
        engine="e",
        start=start,
        end=start + steps * seconds,
        state=WindowState.GOOD,
        reason="",
        counts=Counts(
            steps=steps,
            request_steps=request_steps,
            request_step_seconds=request_steps * seconds,
            drafts=request_steps if draft_len else 0,
            draft_tokens=request_steps * draft_len,
            accepted=sum(accepted),
            accepted_by_position=tuple(accepted),
            emitted=emitted,
            first_tokens=0,
            prompt_tokens=emitted * prompt_per_output,
            finished=request_steps / 50,
            request_seconds=request_steps * seconds,
        ),
        draft_lens=frozenset({draft_len}) if draft_len else frozenset(),
    )
