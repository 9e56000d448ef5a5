"""Step time on a recording of a real engine: fitted on one part, judged on another."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest

from bench.recording_prediction import (
    LEFT_OUT,
    MEDIAN,
    NINE_OF_TEN,
    fitted,
    off,
    predict_halves,
    predict_levels,
)
from bench.recording_regret import good_windows
from tuner.fit.crossover import Crossover
from tuner.fleet import NotEnoughData

if TYPE_CHECKING:
    from tuner.fleet import Window


@cache
def _windows() -> tuple[Window, ...]:
    return good_windows()


def test_half_of_each_cells_windows_predicts_the_other_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens/s by batch and K: median error at most 5 %, nine of ten cells within 12 %, in every split."""
    monkeypatch.setenv("BENCH_COMMIT", "tests")
    for name, (_, errors) in predict_halves(_windows()).items():
        e = off(errors)
        assert len(e) >= 28, name
        assert np.median(e) <= MEDIAN, name
        assert (e <= NINE_OF_TEN).mean() >= 0.9, name


def test_a_load_level_left_out_is_predicted() -> None:
    """Every cell of a level that no fit saw is within 15 %, their median within 5 %."""
    levels = predict_levels(_windows())
    together = np.concatenate([off(errors) for _, errors in levels.values()])
    assert len(levels) == 6
    assert together.max() <= LEFT_OUT
    assert np.median(together) <= MEDIAN


def test_the_crossover_of_the_recorded_engine() -> None:
    """Between 45 and 110 tokens, with an interval that is neither a point nor a shrug."""
    found = fitted(_windows()).crossover
    assert isinstance(found, Crossover)
    assert 45 <= found.tokens <= 110
    assert 1.05 <= found.high / found.low <= 2.5


def test_without_the_highest_load_the_crossover_cannot_be_told() -> None:
    """Leaving out 60 clients leaves no cell above three crossovers, and the fit says so."""
    fit, _ = predict_levels(_windows())[60]
    assert isinstance(fit.crossover, NotEnoughData)
    assert "do not bracket" in fit.crossover.reason


def test_step_time_is_near_linear_and_prompts_count() -> None:
    """Sharpness is below 1.5, with 70-75 ms a step and 0.85-1.05 ms a token when prompts count in N."""
    fit = fitted(_windows())
    assert fit.sharpness < 1.5
    assert 1e3 * (fit.floor_seconds + fit.overhead_seconds) == pytest.approx(72.5, abs=3.5)
    assert 1e3 * fit.seconds_per_token == pytest.approx(0.95, abs=0.12)
