"""Step times that others published, and cases that operators reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from bench.recovery.step_time_world import make_windows
from tuner.fit.crossover import Crossover
from tuner.fit.step_time import StepTimeFit, fit_step_time
from tuner.fit.step_time_findings import mixed_seconds_per_token
from tuner.fleet import NotEnoughData

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.fleet import Window

EAGLE1 = ((1, 2.10, 2.29, 2.39, 2.43, 2.45, 2.47), (7.07, 4.37, 4.29, 4.48, 4.71, 4.94, 5.20))
EAGLE3 = ((1, 2.36, 2.79, 3.08, 3.32, 3.46, 3.54), (7.07, 4.32, 4.09, 4.05, 4.13, 4.20, 4.29))
LLAMA_LENS = np.array([0.0, 2, 3, 4, 5, 6, 7])
"""Acceptance length and milliseconds per token of Llama-3.1-8B at batch 1 by K (vLLM issue 20780)."""


def _fit(windows: Sequence[Window]) -> StepTimeFit:
    fit = fit_step_time(windows)
    assert isinstance(fit, StepTimeFit)
    return fit


def _at_batch_one(draft_lens: Sequence[float], milliseconds: Sequence[float], repeat: int = 4) -> StepTimeFit:
    k, t = np.repeat(np.asarray(draft_lens, float), repeat), np.repeat(np.asarray(milliseconds) / 1e3, repeat)
    return _fit(make_windows(np.ones(len(k)), k, t))


@pytest.mark.parametrize(
    ("published", "intercept", "slope", "best"), [(EAGLE1, 7.69, 0.740, 3), (EAGLE3, 8.35, 1.016, 4)]
)
def test_published_step_time_is_a_line_in_draft_length(
    published: tuple[Sequence[float], Sequence[float]], intercept: float, slope: float, best: int
) -> None:
    """TPOT times acceptance length is 7.69 + 0.740 K and 8.35 + 1.016 K ms from K = 2, and 7.07 at 0."""
    lengths, tpot = np.array(published[0]), np.array(published[1])
    fit = _at_batch_one(LLAMA_LENS.tolist(), (lengths * tpot).tolist())
    predicted = np.array([1e3 * fit.predict(1, int(k)).value for k in LLAMA_LENS])
    fitted = np.polyfit(LLAMA_LENS[1:], predicted[1:], 1)
    assert fitted == pytest.approx([slope, intercept], abs=0.02)
    assert predicted[0] == pytest.approx(7.07, abs=0.03)
    assert int(LLAMA_LENS[np.argmax(lengths / predicted)]) == best
    assert isinstance(fit.crossover, NotEnoughData)


def _h100(batch: np.ndarray, draft_len: np.ndarray, context: np.ndarray) -> np.ndarray:
    """SpecDecode-Bench's fit of Llama-3.1-8B with EAGLE on one H100 (predictor.py), seconds."""
    verify = 3.92646e-8 * context + 2.10103e-5 * batch * (draft_len + 1) + 5.88591e-3
    draft = 2.37768e-9 * context + 8.41430e-7 * (draft_len + 1) + 2.13526e-3
    return np.asarray(verify + np.where(draft_len > 0, draft, 0.0) + 1.20684e-3)


def test_a_published_cost_model_comes_out_of_its_own_step_times() -> None:
    """Crossover 338 with overhead, the cost of context, and steps within 2 % come back from noisy windows."""
    rng = np.random.default_rng(0)
    batches, lens = (
        np.repeat([1.0, 2, 4, 8, 16, 32, 64, 128, 256], 24),
        np.tile(np.repeat([0.0, 1, 2, 3, 5, 7], 4), 9),
    )
    each = np.tile([178.0, 302, 719, 999], 54)
    seconds = _h100(batches, lens, batches * each) * np.exp(rng.normal(0, 0.02, len(each)))
    fit = _fit(make_windows(batches, lens, seconds, context=batches * each))
    assert isinstance(fit.crossover, Crossover)
    assert fit.crossover.tokens == pytest.approx(337.6, rel=0.03)
    assert fit.crossover.low <= 337.6 <= fit.crossover.high
    assert fit.kv_seconds_per_token == pytest.approx(3.93e-8, rel=0.06)
    assert fit.sharpness == pytest.approx(1.0, abs=0.1)
    for batch in (1.0, 64.0, 256.0):
        for k in (0, 1, 3, 7):
            for context in (178.0, 999.0):
                truth = float(_h100(np.array(batch), np.array(float(k)), np.array(batch * context)))
                assert fit.predict(batch, k, 0.0, batch * context).value == pytest.approx(truth, rel=0.025)


def test_moe_step_times_are_not_smoothed() -> None:
    """Step ms {0:10, 1:16, 2:18.5, 4:24, 7:33} are kept: best K 2 at alpha 0.7, and 0 at 0.5.

    A flat cost of 10 + 0.4 K would choose 7 and 4.
    """
    lens = [0, 1, 2, 4, 7]
    fit = _at_batch_one(lens, [10, 16, 18.5, 24, 33])
    step = np.array([1e3 * fit.predict(1, k).value for k in lens])
    assert step == pytest.approx([10, 16, 18.5, 24, 33], rel=0.004)
    for alpha, best in ((0.7, 2), (0.5, 0)):
        tokens = np.array([(1 - alpha ** (k + 1)) / (1 - alpha) for k in lens])
        assert lens[int(np.argmax(tokens / step))] == best


def test_step_times_that_fall_with_draft_length_are_kept() -> None:
    """Nothing makes step time monotone in K: a K = 2 that is faster than K = 1 is predicted so."""
    fit = _at_batch_one([0, 1, 2, 3], [10, 16, 14, 15])
    step = [1e3 * fit.predict(1, k).value for k in range(4)]
    assert step == pytest.approx([10, 16, 14, 15], rel=0.02)


def _long_and_short() -> list[Window]:
    """70 % of steps at 1 000 tokens of context, 30 % at 16 000, at K = 0 and 1 and batch 1."""
    draft_len = np.repeat([0.0, 1.0], 30)
    context = np.tile(np.where(np.arange(30) % 10 < 7, 1e3, 16e3), 2)
    short, long = np.where(draft_len == 0, 5.0, 5.6), np.where(draft_len == 0, 7.0, 31.0)
    seconds = np.where(context < 2e3, short, long) / 1e3
    return make_windows(np.ones(60), draft_len, seconds, context=context, steps=1000)


def test_context_that_slows_verification_decides_against_speculation() -> None:
    """At alpha 1 the served mix costs less per token at K = 0, whatever a mean over rates would say."""
    fit = _fit(_long_and_short())
    per_token = [fit.predict(1, 0).value, fit.predict(1, 1).value / 2]
    assert per_token[0] < per_token[1]
    assert 1e3 * per_token[0] == pytest.approx(5.60, rel=0.05)
    assert 1e3 * per_token[1] == pytest.approx(6.61, rel=0.05)


def test_context_that_decides_is_a_finding_and_beyond_it_is_extrapolation() -> None:
    """Finding ``context_conflict``, and contexts over 1.5 times the longest seen are marked."""
    fit = _fit(_long_and_short())
    assert [finding.code for finding in fit.findings] == ["context_conflict"]
    assert not fit.extrapolating(1, 1, 0.0, 23_000.0).any()
    assert fit.extrapolating(1, 1, 0.0, 25_000.0).all()


def test_a_mix_of_contexts_is_averaged_in_time_and_not_in_rates() -> None:
    """70 % at 1k and 30 % at 16k take 5.60 and 6.61 ms a token, so K = 0; mean rates would say K = 1."""
    milliseconds = np.array([[5.0, 2.8], [7.0, 15.5]])
    mixed = mixed_seconds_per_token([0.7, 0.3], milliseconds)
    assert mixed == pytest.approx([5.60, 6.61])
    assert np.array([0.7, 0.3]) @ (1 / milliseconds) == pytest.approx([0.183, 0.269], abs=0.001)
