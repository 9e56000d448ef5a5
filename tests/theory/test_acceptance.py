"""Acceptance: the identities of the essays and of published tables."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tuner._exceptions import InputError
from tuner.theory.acceptance import (
    MAX_DRAFT_LEN,
    acceptance_from_distributions,
    accepted_length_probabilities,
    bonus_token_share,
    draft_acceptance_rate,
    expected_tokens,
    expected_tokens_by_draft_len,
    expected_tokens_geometric,
    expected_tokens_mixture,
    full_block_probability,
    goodput_efficiency,
    hazards_from_survival,
    residual_distribution,
    solve_alpha,
    survival,
    total_variation,
)

PROFILE = (0.80, 0.72, 0.66, 0.60, 0.55)
"""Small drafter, large target, from "Why 80% Acceptance Still Loses at Batch 64"."""

GLM_SURVIVAL_PERCENT = (
    71.23, 51.70, 39.04, 30.51, 24.37, 20.00, 16.85, 14.41, 12.46, 10.94, 9.64, 8.56, 7.58, 6.67, 5.82, 4.98,
)  # fmt: skip
"""GLM-5.2-NVFP4 with 16 draft tokens, batch 64, https://github.com/vllm-project/vllm/pull/52992."""

hazard = st.floats(0.0, 1.0)
profile = st.lists(hazard, min_size=1, max_size=20)
distributions = (
    st.integers(2, 30)
    .flatmap(lambda size: st.tuples(*[hnp.arrays(np.float64, size, elements=st.floats(1e-6, 1.0))] * 2))
    .map(lambda pair: (pair[0] / pair[0].sum(), pair[1] / pair[1].sum()))
)


def test_profile_of_the_essay() -> None:
    """The draft-length table: tokens per step at K = 2..5, and what the 4th and 5th token add."""
    tokens = expected_tokens_by_draft_len(PROFILE)

    assert [f"{value:.3f}" for value in tokens[2:5]] == ["2.376", "2.756", "2.984"]
    assert math.floor(tokens[5] * 1000) / 1000 == 3.109  # printed cut off; 3.1097 rounds to 3.110
    assert [f"{value:.3f}" for value in survival(PROFILE)[3:]] == ["0.228", "0.125"]


def test_constant_acceptance_of_the_essay() -> None:
    """α = 0.8, K = 4: 3.36 tokens, 41 % whole blocks, 67 % of verified tokens kept, bonus worth 12 %."""
    flat = (0.8,) * 4

    assert f"{expected_tokens(flat):.2f}" == "3.36"
    assert expected_tokens_geometric(0.8, 4) == pytest.approx(3.3616, abs=1e-12)
    assert f"{full_block_probability(flat):.0%}" == "41%"
    assert f"{goodput_efficiency(flat):.0%}" == "67%"
    assert f"{bonus_token_share(flat):.0%}" == "12%"


def test_survival_of_a_published_run() -> None:
    """1 + sum of the published survival is the published acceptance length, and hazards rise with depth."""
    curve = np.asarray(GLM_SURVIVAL_PERCENT) / 100
    hazards = hazards_from_survival(curve)

    assert f"{1 + curve.sum():.3f}" == "4.348"
    assert expected_tokens(hazards) == pytest.approx(4.35, abs=0.005)
    assert hazards[0] == pytest.approx(0.71, abs=0.005)
    assert np.all(np.diff(hazards[:7]) > 0)
    assert hazards.max() == pytest.approx(0.88, abs=0.01)
    assert np.all(hazards[7:] > 0.85)


@pytest.mark.parametrize(
    ("mean_accepted", "draft_len", "alpha"),
    [
        pytest.param(1.5, 3, 0.691, id="tokens per step 2.5 with the bonus token left out"),
        pytest.param(2.5, 3, 0.912, id="the same with the bonus token read as accepted"),
        pytest.param(1.9, 3, 0.788, id="three of seven configured drafts active"),
        pytest.param(5.25, 7, 0.928, id="sglang 21599: length 6.25 at 7 steps"),
        pytest.param(1.0, 1, 1.0, id="sglang 21599: length 2.00 at 1 step"),
        pytest.param(0.0, 4, 0.0, id="nothing accepted"),
    ],
)
def test_alpha_of_a_mean(mean_accepted: float, draft_len: int, alpha: float) -> None:
    """The one hazard behind a mean number of accepted tokens, against published or computed roots."""
    assert solve_alpha(mean_accepted, draft_len) == pytest.approx(alpha, abs=5e-4)


@pytest.mark.parametrize(
    ("draft_len", "rate", "length"), [(2, "0.720", "2.44"), (4, "0.590", "3.36"), (7, "0.452", "4.16")]
)
def test_rate_falls_with_draft_len_at_equal_alpha(draft_len: int, rate: str, length: str) -> None:
    """Accepted over drafted falls by arithmetic while alpha and its estimate stay at 0.8."""
    flat = (0.8,) * draft_len

    assert f"{draft_acceptance_rate(flat):.3f}" == rate
    assert f"{expected_tokens(flat):.2f}" == length
    assert solve_alpha(float(expected_tokens(flat)) - 1, draft_len) == pytest.approx(0.8, abs=1e-12)


def test_healthy_head_of_an_overlong_draft() -> None:
    """Per-position rates of a 27 % drafter at K = 7: length 2.91 and a head of 0.74."""
    curve = (0.739, 0.478, 0.261, 0.174, 0.130, 0.087, 0.043)
    hazards = hazards_from_survival(curve)

    assert f"{expected_tokens(hazards):.2f}" == "2.91"
    assert f"{draft_acceptance_rate(hazards):.1%}" == "27.3%"
    assert [f"{value:.2f}" for value in hazards] == ["0.74", "0.65", "0.55", "0.67", "0.75", "0.67", "0.49"]


def test_bursty_acceptance_beats_flat() -> None:
    """Jensen: traffic that alternates around a mean of 0.7 emits more than a flat 0.7 does."""
    assert expected_tokens_mixture([0.95, 0.45], [0.5, 0.5], 4) > expected_tokens_geometric(0.7, 4)


@given(
    st.lists(st.tuples(hazard, st.floats(0.01, 1.0)), min_size=1, max_size=6),
    st.integers(0, 20),
)
def test_mixture_never_below_its_mean(regimes: list[tuple[float, float]], draft_len: int) -> None:
    """Any mixture emits at least what its mean acceptance says."""
    alphas, raw = (np.asarray(column) for column in zip(*regimes, strict=True))
    shares = raw / raw.sum()
    mean = min(1.0, float(alphas @ shares))

    mixed = expected_tokens_mixture(alphas, shares, draft_len)

    assert mixed >= expected_tokens_geometric(mean, draft_len) - 1e-9


@given(profile)
def test_survival_falls_and_bounds_tokens(hazards: list[float]) -> None:
    """Survival never rises; tokens per step lie in [1, K + 1]; the identity holds; lengths add up to 1."""
    curve = survival(hazards)
    tokens = float(expected_tokens(hazards))
    lengths = accepted_length_probabilities(hazards)

    assert np.all(np.diff(curve) <= 0)
    assert 1.0 <= tokens <= len(hazards) + 1
    assert tokens == pytest.approx(1 + curve.sum())
    assert lengths.sum() == pytest.approx(1.0)
    assert 1 + lengths @ np.arange(len(lengths)) == pytest.approx(tokens)
    assert 0.0 <= bonus_token_share(hazards) <= 0.5 + 1e-12
    assert 0.0 <= goodput_efficiency(hazards) <= 1.0


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=20))
def test_hazards_undo_survival(hazards: list[float]) -> None:
    """Reading hazards off a survival curve gives them back."""
    assert hazards_from_survival(survival(hazards)) == pytest.approx(hazards)


@given(hazard, st.integers(1, 60))
def test_solve_alpha_undoes_the_geometric_sum(alpha: float, draft_len: int) -> None:
    """Solving the mean that an alpha gives returns that alpha."""
    mean = min(float(draft_len), expected_tokens_geometric(alpha, draft_len) - 1)

    assert solve_alpha(mean, draft_len) == pytest.approx(alpha, abs=1e-9)


@given(hazard, st.integers(0, 200))
def test_closed_form_equals_the_sum(alpha: float, draft_len: int) -> None:
    """The closed form equals the sum of powers, next to 0 and 1 too."""
    assert expected_tokens_geometric(alpha, draft_len) == pytest.approx(
        float(expected_tokens([alpha] * draft_len)), rel=1e-9
    )


def test_arrays_go_through() -> None:
    """Leading axes are kept: several profiles, several alphas, several means at once."""
    alphas = np.array([0.0, 0.5, 1.0])

    assert expected_tokens(np.array([PROFILE, PROFILE])) == pytest.approx([3.1097088] * 2)
    assert expected_tokens_geometric(alphas, 2) == pytest.approx([1.0, 1.75, 3.0])
    assert solve_alpha(np.array([0.0, 0.75, 2.0]), 2) == pytest.approx(alphas)


@given(distributions)
def test_acceptance_is_one_minus_total_variation(pair: tuple[np.ndarray, np.ndarray]) -> None:
    """Σ min(p, q) = 1 - TV(p, q), for any two distributions."""
    target, draft = pair

    assert acceptance_from_distributions(target, draft) == pytest.approx(1 - total_variation(target, draft))


@given(distributions)
def test_resampling_gives_the_target_back(pair: tuple[np.ndarray, np.ndarray]) -> None:
    """Accepted drafts plus resampled rejections are distributed as the target: nothing is lost."""
    target, draft = pair
    acceptance = acceptance_from_distributions(target, draft)
    assume(acceptance < 1 - 1e-9)

    emitted = np.minimum(target, draft) + (1 - acceptance) * residual_distribution(target, draft)

    assert emitted == pytest.approx(target, abs=1e-9)


def test_greedy_acceptance_is_agreement_on_the_top_token() -> None:
    """At temperature 0 both are one-hot: acceptance is 1 or 0, whatever the tail would have been."""
    assert acceptance_from_distributions([0, 1, 0], [0, 1, 0]) == 1.0
    assert acceptance_from_distributions([0, 1, 0], [1, 0, 0]) == 0.0


def test_sampled_acceptance_follows_the_theorem() -> None:
    """Drawing from q and accepting with min(1, p/q) accepts Σ min(p, q) of the time, within 4 sigma."""
    rng = np.random.default_rng(7)
    target, draft = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.3])
    draws = rng.choice(3, size=200_000, p=draft)

    accepted = np.mean(rng.random(draws.size) < np.minimum(1.0, target / draft)[draws])

    assert accepted == pytest.approx(acceptance_from_distributions(target, draft), abs=4 * 0.5 / 200_000**0.5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: survival([1.2]), "between 0 and 1"),
        (lambda: survival([math.nan]), "between 0 and 1"),
        (lambda: expected_tokens_geometric(-0.1, 4), "ratio, not a percentage"),
        (lambda: expected_tokens_geometric(0.8, -1), "whole number"),
        (lambda: expected_tokens_geometric(0.8, MAX_DRAFT_LEN + 1), "whole number"),
        (lambda: solve_alpha(2.5, 2), "bonus token"),
        (lambda: solve_alpha(math.nan, 2), "bonus token"),
        (lambda: solve_alpha(0.0, 0), "at least 1"),
        (lambda: hazards_from_survival([0.5, 0.6]), "rises"),
        (lambda: hazards_from_survival([0.5, 0.0, 0.0]), "first 0"),
        (lambda: total_variation([0.5, 0.4], [0.5, 0.5]), "sums to 0.9"),
        (lambda: total_variation([0.5, 0.5], [1.0]), "same length"),
        (lambda: expected_tokens_mixture([0.5], [0.5], 3), "sums to 0.5"),
        (lambda: residual_distribution([1.0], [1.0]), "same distribution"),
        (lambda: goodput_efficiency([0.8] * 4, 3), "at least 5"),
        (lambda: draft_acceptance_rate([]), "at least one hazard"),
    ],
)
def test_impossible_values_are_refused(call: object, words: str) -> None:
    """What cannot be is refused with one line that says what to give, never clamped."""
    assert callable(call)
    with pytest.raises(InputError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
