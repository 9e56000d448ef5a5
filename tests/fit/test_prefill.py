"""Prompts that come whole: what they add to mean step times, and that fits see through it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.replay.vllm_world import VllmWorld, constant
from tuner.engines import get_engine
from tuner.fit.crossover import Crossover
from tuner.fit.prefill import burst_excess, prompt_length
from tuner.fit.step_time import StepTimeFit, fit_step_time
from tuner.fit.step_time_columns import column_matrix
from tuner.observe.recording import read_recording
from tuner.observe.windows import build_windows

if TYPE_CHECKING:
    from pathlib import Path

    from tuner.fleet import Window

FLOOR, CROSSOVER = 0.020, 120.0


def _theta(inverse_p: float) -> np.ndarray:
    """Parameters of a curve without overhead, context or drafter."""
    theta = np.zeros(3 + column_matrix(np.ones(1), np.ones(1), np.ones(1)).shape[1])
    theta[0], theta[1], theta[2] = np.log(FLOOR), np.log(FLOOR / CROSSOVER), inverse_p
    return theta


def _excess(inverse_p: float, decode: float, prompts: float, length: float) -> float:
    columns = np.zeros((1, column_matrix(np.ones(1), np.ones(1), np.ones(1)).shape[1]))
    return float(burst_excess(_theta(inverse_p), np.array([decode]), np.array([prompts]), length, columns)[0])


def test_a_line_has_no_excess() -> None:
    """Where step time is linear in tokens, whole prompts cost what their mean costs."""
    assert abs(_excess(1.0, 40.0, 60.0, 600.0)) < 1e-9


def test_a_sharp_roofline_has_the_excess_of_two_kinds_of_steps() -> None:
    """One prompt of 1200 in ten steps: nine steps at the floor, the tenth in proportion to its tokens."""
    rate, decode = 0.1, 20.0
    none = np.exp(-rate)
    one = rate * none
    two = rate**2 / 2 * none
    mean = FLOOR * (none + (one * (decode + 1200) + two * (decode + 2400)) / CROSSOVER)
    at_mean = FLOOR * max(1.0, (decode + 120) / CROSSOVER)
    assert _excess(0.01, decode, 120.0, 1200.0) == pytest.approx(np.log(mean / at_mean), abs=0.01)


@given(
    inverse_p=st.floats(0.02, 1.0),
    decode=st.floats(1.0, 2000.0),
    prompts=st.floats(0.0, 2000.0),
    length=st.floats(1.0, 5000.0),
)
def test_excess_is_finite_and_never_negative(
    inverse_p: float, decode: float, prompts: float, length: float
) -> None:
    """A convex curve only ever adds, whatever the load."""
    excess = _excess(inverse_p, decode, prompts, length)
    assert -1e-6 <= excess < 20.0


def test_no_prompts_told_is_no_burst() -> None:
    """Without prompt counts there is nothing to take out."""
    assert prompt_length([]) == 0.0
    assert _excess(0.1, 40.0, 60.0, 0.0) == 0.0


def _windows(folder: Path, seed: int, prompt: tuple[int, int]) -> tuple[Window, ...]:
    def seconds(tokens: float, draft_len: int) -> float:
        return FLOOR * max(1.0, tokens / CROSSOVER) + 0.0002 * draft_len

    world = VllmWorld(
        (0.8, 0.72, 0.66, 0.6), seconds, constant(1), 2, seed=seed, prompt=prompt, output=(60, 140)
    )
    world.sweep(folder, (2, 8, 30, 100, 160), (0, 2, 4))
    vocabulary = get_engine("vllm").vocabulary
    return build_windows(read_recording(folder).scrapes(vocabulary.sample_names), vocabulary).windows


@pytest.mark.parametrize(("seed", "prompt"), [(1, (300, 900)), (2, (300, 900)), (3, (100, 200)), (4, (1, 2))])
def test_large_prompts_do_not_move_the_crossover(tmp_path: Path, seed: int, prompt: tuple[int, int]) -> None:
    """The knee of a roofline at 120 tokens is found within 7 % whether prompts are of 1 or 600 tokens."""
    fit = fit_step_time(_windows(tmp_path, seed, prompt))
    assert isinstance(fit, StepTimeFit)
    assert isinstance(fit.crossover, Crossover)
    assert fit.crossover.tokens == pytest.approx(CROSSOVER, rel=0.07)
    assert fit.crossover.low <= 1.03 * CROSSOVER
    assert fit.crossover.high >= 0.97 * CROSSOVER
