"""Emitted tokens per request step: measured where run, carried over with care elsewhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.fit.counting import fit, pure, window, with_counts
from tuner.fleet import Estimate, Fingerprint, NotEnoughData, Window

PROFILE = [0.8, 0.72, 0.66, 0.6]


def _expected(hazards: list[float]) -> float:
    return 1.0 + float(np.cumprod(hazards).sum())


def _serving(hazards: list[float], index: int, *, drafts: int = 1000, trimmed: float = 0.0) -> Window:
    """Return a pure window that tells what reached the users; ``trimmed`` of the accepted did not."""
    one = pure(drafts, hazards, index)
    accepted = one.counts.accepted or 0.0
    return with_counts(
        one,
        request_steps=float(drafts),
        first_tokens=20.0,
        emitted=drafts + accepted * (1 - trimmed) + 20.0,
    )


def _value(found: Estimate | NotEnoughData) -> Estimate:
    assert isinstance(found, Estimate)
    return found


def test_no_drafts_emit_one_token_for_sure() -> None:
    """K=0 is 1.0 in every draw."""
    draws = fit([_serving(PROFILE, index) for index in range(20)]).emitted_draws(
        [0, 4, 0], 100, np.random.default_rng(1)
    )
    assert draws.shape == (100, 3)
    assert np.all(draws[:, [0, 2]] == 1.0)


def test_measured_length_is_what_was_emitted_trimming_included() -> None:
    """At a K that ran, E is what users got: 2.5 % of the accepted tokens were cut off by stops."""
    found = fit([_serving(PROFILE, index, trimmed=0.025) for index in range(40)])
    assert found.trimmed == pytest.approx(0.025, abs=0.001)
    wanted = 1.0 + 0.975 * (_expected(PROFILE) - 1.0)
    assert _value(found.expected_tokens(4)).value == pytest.approx(wanted, rel=0.005)


def test_shorter_length_comes_from_the_profile_with_the_trim() -> None:
    """K=2 was never run: E from the hazards and the trim, wider than at the K that was."""
    found = fit([_serving(PROFILE, index, trimmed=0.025) for index in range(40)])
    unseen, seen = _value(found.expected_tokens(2)), _value(found.expected_tokens(4))
    assert unseen.value == pytest.approx(1.0 + 0.975 * (_expected(PROFILE[:2]) - 1.0), rel=0.01)
    assert (unseen.high - unseen.low) / unseen.value > (seen.high - seen.low) / seen.value


def test_steps_without_a_draft_are_not_charged_to_the_length() -> None:
    """A window that drafted in two of three request steps: E(K) is that of the steps that drafted."""
    windows = []
    for index in range(20):
        one = pure(1000, PROFILE, index)
        accepted = one.counts.accepted or 0.0
        windows.append(
            with_counts(one, request_steps=1500.0, first_tokens=10.0, emitted=1500.0 + accepted + 10.0)
        )
    assert fit(windows).emitted[4].value == pytest.approx(_expected(PROFILE), rel=0.003)


def test_draws_are_coherent_across_lengths() -> None:
    """Two neighbouring Ks differ by less than either is uncertain: they share the hazards."""
    found = fit([_serving(PROFILE, index, drafts=100) for index in range(6)])
    draws = found.emitted_draws([1, 2, 3, 4], 4000, np.random.default_rng(2))
    difference = (draws[:, 2] - draws[:, 1]).std()
    assert difference < 0.8 * np.hypot(draws[:, 2].std(), draws[:, 1].std())
    assert np.corrcoef(draws[:, 1], draws[:, 2])[0, 1] > 0.5
    assert np.all((draws > 0) & (draws <= np.array([2, 3, 4, 5])))


def test_draws_depend_on_the_generator_alone() -> None:
    """The same generator state gives the same draws, and expected_tokens is a pure function."""
    found = fit([_serving(PROFILE, index) for index in range(20)])
    one, two = (found.emitted_draws([2, 4], 50, np.random.default_rng(3)) for _ in range(2))
    assert np.array_equal(one, two)
    assert found.expected_tokens(3) == found.expected_tokens(3)


# Acceptance lengths by K, EAGLE-3 on Qwen3-8B (speculators issue 563) and EAGLE on Llama-3.1-8B
# (SpecDecode-Bench, arXiv 2601.11580).
BY_LENGTH = {
    "coding": {1: 1.81, 2: 2.40, 3: 2.80, 4: 3.06, 5: 3.22, 6: 3.30, 7: 3.33},
    "math": {1: 1.83, 2: 2.50, 3: 2.95, 4: 3.28, 5: 3.45, 6: 3.61, 7: 3.68},
    "summary": {1: 1.69, 2: 2.11, 3: 2.35, 4: 2.46, 5: 2.50, 6: 2.52, 7: 2.52},
    "gsm8k": {1: 1.699, 2: 2.134, 3: 2.391, 5: 2.666, 7: 2.765},
    "instructcoder": {1: 1.681, 2: 2.095, 3: 2.348, 5: 2.625, 7: 2.760},
    "sharegpt": {1: 1.661, 2: 2.038, 3: 2.254, 5: 2.478, 7: 2.582},
    "cnn": {1: 1.674, 2: 2.083, 3: 2.329, 5: 2.578, 7: 2.694},
}


@pytest.mark.parametrize("traffic", BY_LENGTH)
def test_t18_t19_extrapolating_from_one_position_is_wide(traffic: str) -> None:
    """From K=1 alone the published E(K) lies inside the interval at every K, which grows with K."""
    actual = BY_LENGTH[traffic]
    found = fit([_serving([actual[1] - 1.0], index, drafts=2000) for index in range(40)])
    widths = []
    for length, tokens in actual.items():
        estimate = _value(found.expected_tokens(length))
        assert estimate.low <= tokens <= estimate.high, (length, estimate)
        widths.append(estimate.high - estimate.low)
    assert widths == sorted(widths)
    assert widths[-1] > 1.0


PROFILES_AT_7 = {
    "gsm8k": [0.663, 0.645, 0.633, 0.653, 0.621, 0.649, 0.650],
    "instructcoder": [0.594, 0.627, 0.685, 0.741, 0.764, 0.800, 0.783],
    "sharegpt": [0.597, 0.586, 0.638, 0.686, 0.728, 0.751, 0.755],
    "cnn": [0.630, 0.623, 0.640, 0.660, 0.679, 0.725, 0.721],
}


@pytest.mark.parametrize("traffic", PROFILES_AT_7)
def test_t19_shorter_lengths_read_off_a_long_one_are_widened(traffic: str) -> None:
    """E(3) read off the profile at K=7 is 1-5 % low in the published data: the interval knows."""
    found = fit([_serving(PROFILES_AT_7[traffic], index, drafts=2000) for index in range(40)])
    for length in (3, 5):
        estimate = _value(found.expected_tokens(length))
        assert estimate.low <= BY_LENGTH[traffic][length] <= estimate.high
        assert (estimate.high - estimate.low) / estimate.value < 0.15


def test_measured_lengths_beat_the_shared_profile() -> None:
    """K=1 and K=7 both ran on gsm8k: each E is its own measurement, not the pooled profile's."""
    windows = [
        _serving([0.699], index, drafts=2000)
        if index // 4 % 2
        else _serving(PROFILES_AT_7["gsm8k"], index, drafts=2000)
        for index in range(80)
    ]
    found = fit(windows)
    assert _value(found.expected_tokens(1)).value == pytest.approx(1.699, abs=0.004)
    assert _value(found.expected_tokens(7)).value == pytest.approx(2.765, abs=0.02)


@pytest.mark.parametrize("lens", [{4}, None])
def test_b19_padding_makes_the_rate_meaningless(lens: set[int] | None) -> None:
    """An n-gram drafter's padding counts as drafted: alpha is not told, emitted tokens are fitted."""
    windows = []
    for index in range(20):
        # 1000 steps; 700 found nothing and were padded, the others accepted all 4.
        one = window(1000, [300, 300, 300, 300], lens, index=index, draft_tokens=4000.0)
        one = with_counts(one, request_steps=1000.0, first_tokens=10.0, emitted=1000.0 + 1200.0 + 10.0)
        windows.append(replace(one, fingerprint=Fingerprint(engine="vllm", method="ngram")))
    found = fit(windows)
    assert isinstance(found.alpha, NotEnoughData)
    assert all(one.hazard is None for one in found.positions)
    assert _value(found.expected_tokens(4)).value == pytest.approx(2.2, abs=0.01)
    between = _value(found.expected_tokens(2))
    assert between.low < 1.6 < between.high  # on the line from 1 at K=0 to 2.2 at K=4
    assert between.high - between.low > 0.1
    assert found.findings == ()


def test_silent_drafter_without_emitted_tokens_is_not_enough_data() -> None:
    """Where neither rates nor emitted tokens mean anything there is no number."""
    windows = [window(1000, [300, 300, 300, 300], {4}, index=index) for index in range(20)]
    found = fit(windows, method="ngram")
    assert isinstance(found.expected_tokens(4), NotEnoughData)


def test_unknown_mix_gives_wide_tokens() -> None:
    """Only position 0 is known: E(1) is sharp, E(4) is open."""
    windows = [
        window(1000, [800, 640, 205, 164], None, index=index, draft_tokens=2800.0) for index in range(40)
    ]
    found = fit(windows)
    one, four = _value(found.expected_tokens(1)), _value(found.expected_tokens(4))
    assert one.value == pytest.approx(1.8, abs=0.01)
    assert one.high - one.low < 0.25
    assert four.high - four.low > 0.8


def test_moments_of_a_draft_length_do_not_hang_on_which_others_are_asked_for() -> None:
    """A longer list moves no mean or covariance of the lengths in it, seen or not; K=0 is exactly 1."""
    found = fit([_serving(PROFILE, index, trimmed=0.025) for index in range(40)])
    short, long = found.emitted_moments([0, 2, 4]), found.emitted_moments([0, 1, 2, 3, 4, 5, 9])
    places = [0, 2, 4]
    assert long[0][places] == pytest.approx(short[0], rel=1e-12)
    assert long[1][places] == pytest.approx(short[1], rel=1e-12)
    assert long[2][np.ix_(places, places)] == pytest.approx(short[2], rel=1e-9)
    assert (short[0][0], short[1][0], short[2][0, 0]) == (1.0, 0.0, 0.0)
    assert short[0][2] == pytest.approx(_value(found.expected_tokens(4)).value, rel=0.002)


def test_drafted_tokens_are_those_that_were_proposed() -> None:
    """An n-gram drafter that matches in half of its steps drafts 2 a step when asked for 4, 1 when for 2."""
    windows = [
        window(500, [400, 300, *([200, 100] if k == 4 else [0, 0])], {k}, index=2 * i + (k == 2),
               request_steps=1000.0, emitted=1000.0 + (1000 if k == 4 else 700), first_tokens=0.0)
        for i in range(10) for k in (2, 4)
    ]  # fmt: skip
    found = fit(windows, method="ngram")
    assert [found.drafted_per_step(k) for k in (0, 2, 3, 4)] == pytest.approx([0, 1, 1.5, 2])
    assert {k: one.value for k, one in found.emitted.items()} == pytest.approx({2: 1.7, 4: 2.0})


def test_drafts_that_always_propose_carry_their_draft_length() -> None:
    """A step or two without a draft after a prefill, or a few tokens cut, are no fewer draft tokens."""
    found = fit(
        [
            window(1000, [800, 700], {2}, index=i, request_steps=1010.0, emitted=2510.0, first_tokens=0.0)
            for i in range(10)
        ]
    )
    assert [found.drafted_per_step(k) for k in (0, 1, 2, 3)] == [0, 1, 2, 3]
