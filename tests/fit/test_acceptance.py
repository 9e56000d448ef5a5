"""Acceptance by position: what is measured, censored, extrapolated, and how sure."""

from __future__ import annotations

import math

import pytest

from tests.fit.counting import fit, pure, window, with_counts
from tuner.fit.acceptance import fit_acceptance
from tuner.fleet import Estimate, NotEnoughData, WindowState

LIMIT = 0.02
"""How far a rounded expectation may lie from its hazard."""


def test_b05_late_positions_are_not_diluted_by_shorter_drafts() -> None:
    """K in {2, 4}: conditionals .8 .8 .801 .8; the naive .320 at position 2 appears nowhere."""
    found = fit([window(1000, [800, 640, 205, 164], {2, 4}, draft_tokens=2800.0)])
    assert [round(one.hazard or 0, 3) for one in found.positions] == pytest.approx([0.8, 0.8, 0.801, 0.8])
    assert all(one.low > 0.320 for one in found.positions)
    tokens = found.expected_tokens(4)
    assert isinstance(tokens, Estimate)
    assert tokens.value == pytest.approx(3.36, abs=0.03)
    assert tokens.low > 2.81


def test_b05_three_lengths_censor_instead_of_reading_low() -> None:
    """The same counts under K in {1, 2, 4}: positions 1 and 2 have no number, and say why."""
    found = fit([window(1000, [800, 640, 205, 164], {1, 2, 4}, draft_tokens=2800.0)])
    for position in (1, 2):
        one = found.positions[position]
        assert (one.state, one.hazard, one.low, one.high) == ("censored", None, 0.0, 1.0)
        assert "three or more" in one.reason
    assert found.positions[3].hazard == pytest.approx(0.8, abs=0.001)


def test_unknown_mix_censors_all_but_the_first() -> None:
    """Without the draft lengths only position 0 has a denominator."""
    found = fit([window(1000, [800, 640, 205, 164], None, draft_tokens=2800.0)])
    assert [one.state for one in found.positions] == ["measured", "censored", "censored", "censored"]
    assert found.positions[0].hazard == pytest.approx(0.8, abs=0.003)


@pytest.mark.parametrize("by_position", [True, False])
def test_b15_alpha_does_not_fall_with_the_draft_length(by_position: bool) -> None:
    """Accepted per drafted goes .72 to .452 from K=2 to K=7 by arithmetic; alpha is .80 both times."""
    before = pure(1000, [0.8] * 2) if by_position else window(1000, (), {2}, accepted=1440.0)
    after = pure(1000, [0.8] * 7) if by_position else window(1000, (), {7}, accepted=3161.0)
    for one, length in ((before, 2.44), (after, 4.16)):
        found = fit([one])
        assert isinstance(found.alpha, Estimate)
        assert found.alpha.value == pytest.approx(0.80, abs=0.001)
        assert found.findings == ()
        assert found.emitted[max(one.draft_lens or ())].value == pytest.approx(length, abs=0.005)


def test_b15_healthy_head_of_a_long_draft() -> None:
    """K=7 with a low rate: the conditionals are .74 .65 .55 .67 .75 .67 .49, and tokens per step 2.91."""
    survival = [0.739, 0.478, 0.261, 0.174, 0.130, 0.087, 0.043]
    found = fit([window(10_000, [10_000 * s for s in survival], {7})])
    assert [one.hazard for one in found.positions] == pytest.approx(
        [0.74, 0.65, 0.55, 0.67, 0.75, 0.67, 0.49], abs=0.01
    )
    assert found.emitted[7].value == pytest.approx(2.91, abs=0.005)


def test_b37_unseen_positions_are_carried_over_wide_and_never_zero() -> None:
    """K=1 for two hours, c1 from six hours ago, c2 never: c1 aged towards c0, c2 about c1, both open."""
    old = [pure(100, [0.85, 0.83], index, padded=2) for index in range(20)]
    new = [pure(100, [0.85], 1440 + index, padded=3) for index in range(480)]
    found = fit([*old, *new], half_life_seconds=3600.0)
    first, second, third = found.positions[:3]
    assert first.hazard == pytest.approx(0.85, abs=0.005)
    assert second.hazard is not None
    assert third.hazard is not None
    assert second.state == "measured"
    assert 0.82 < second.hazard < 0.85
    assert second.high - second.low > 2 * (first.high - first.low)
    assert third.state == "extrapolated"
    assert third.hazard == pytest.approx(second.hazard, abs=0.02)
    assert third.low > 0.5
    assert third.high - third.low > 0.15
    assert "never proposed" in third.reason


def test_forgetting_ages_old_evidence() -> None:
    """With a half-life, evidence of many half-lives ago hardly counts against what runs now."""
    old = [pure(1000, [0.5], index) for index in range(100)]
    new = [pure(1000, [0.8], 100 + index) for index in range(100)]
    kept, aged = fit([*old, *new]), fit([*old, *new], half_life_seconds=300.0)
    assert kept.positions[0].hazard == pytest.approx(0.65, abs=LIMIT)
    assert aged.positions[0].hazard == pytest.approx(0.8, abs=0.03)


def test_transition_windows_never_count() -> None:
    """Windows in transition change nothing, however many drafts they hold."""
    good = [pure(500, [0.8, 0.7], index) for index in range(10)]
    other = [pure(50_000, [0.1, 0.1], 10 + index, state=WindowState.TRANSITION) for index in range(10)]
    assert fit([*good, *other]).positions == fit(good).positions


def test_too_few_drafts_is_not_enough_data() -> None:
    """Nothing, or a handful of drafts, gives a reason and what it would take, not a number."""
    for windows in ([], [pure(10, [0.8])], [pure(1000, [0.8], state=WindowState.SUSPECT)]):
        found = fit_acceptance(windows, pool="p")
        assert isinstance(found, NotEnoughData)
        assert found.have is not None
        assert found.need is not None
        assert found.have < found.need


def test_impossible_windows_are_left_out_with_a_finding() -> None:
    """A window that contradicts itself is quarantined; the rest is fitted as if it were not there."""
    good = [pure(500, [0.8, 0.7], index) for index in range(10)]
    broken = with_counts(pure(500, [0.8, 0.7], 11), accepted=5000.0)
    found = fit([*good, broken])
    assert [finding.code for finding in found.findings] == ["impossible_counts"]
    assert found.positions == fit(good).positions


def test_solved_position_carries_the_variance_of_the_solution() -> None:
    """The interval of a solved hazard is that of var(log h) = (1-S)/(D w S) - (1-S')/(D S'), not a Beta's.

    Requests are alike here, so that nothing systematic comes on top.
    """
    windows = [
        window(1000, [800, 640, 205, 164], {2, 4}, index=index, draft_tokens=2800.0, finished=40.0)
        for index in range(60)
    ]
    one = fit(windows).positions[2]
    drafts, w, before, survival = 60_000, 0.4, 0.64, 0.5125
    log_sd = math.sqrt((1 - survival) / (drafts * w * survival) - (1 - before) / (drafts * before))
    assert one.hazard is not None
    assert one.high - one.low == pytest.approx(2 * 1.96 * log_sd * one.hazard, rel=0.03)


def test_intervals_are_wider_where_requests_differ() -> None:
    """Blocks that scatter more than chance widen the interval by the root of the dispersion."""
    calm = fit([pure(500, [0.8], index) for index in range(64)])
    stormy = fit([pure(500, [0.75 if index // 4 % 2 else 0.85], index) for index in range(64)])
    assert calm.dispersion == 1.0
    assert (calm.blocks, stormy.blocks) == (32, 32)
    # Blocks of two windows of 500 drafts: 0.05^2 over 0.16 / 1000.
    assert stormy.dispersion == pytest.approx(0.0025 / 0.00016, rel=0.1)
    widths = [one.positions[0].high - one.positions[0].low for one in (calm, stormy)]
    assert widths[1] / widths[0] == pytest.approx(math.sqrt(stormy.dispersion), rel=0.1)


def test_blocks_are_longer_than_requests() -> None:
    """Windows alternate within the span of one request: blocks of four durations see no difference."""
    windows = [pure(500, [0.75 if index % 2 else 0.85], index) for index in range(64)]
    short = fit(windows).dispersion
    long = fit([with_counts(one, finished=10.0, request_seconds=10 * 30.0) for one in windows])
    assert long.dispersion == pytest.approx(1.0, abs=0.3)
    assert long.blocks == 8  # 64 windows of 15 s in blocks of at least 4 x 30 s
    assert short == pytest.approx(1.0, abs=0.1)


def test_few_blocks_lean_on_the_pool_and_say_weak() -> None:
    """Under 8 blocks the default dispersion of 3 widens the interval, or the pool's if it is given."""
    windows = [pure(200, [0.8], index) for index in range(4)]
    alone, helped = fit(windows), fit(windows, pool_dispersion=1.0)
    assert alone.positions[0].weak
    assert alone.dispersion > helped.dispersion
    assert (
        alone.positions[0].high - alone.positions[0].low > helped.positions[0].high - helped.positions[0].low
    )


def test_all_accepted_stays_below_one() -> None:
    """A position that never failed has a hazard below 1 and an interval with some room."""
    one = fit([pure(500, [1.0], index) for index in range(20)]).positions[0]
    assert one.hazard is not None
    assert 0.999 < one.hazard < 1.0
    assert one.low < one.hazard <= one.high <= 1.0


def test_histogram_of_accepted_lengths() -> None:
    """Verify steps by accepted count, from windows at one draft length, one histogram per length."""
    found = fit([window(1000, [800, 560, 370, 0], {3}), window(100, [70, 0, 0, 0], {1}, index=1)])
    assert found.accepted_lengths == {1: (30.0, 70.0), 3: (200.0, 240.0, 190.0, 370.0)}


def test_route_keeps_its_own_windows() -> None:
    """A route is fitted from its windows; the pool from all."""
    from dataclasses import replace

    chat = [replace(pure(500, [0.5], index), route="chat") for index in range(10)]
    code = [replace(pure(500, [0.9], index), route="code") for index in range(10)]
    assert fit([*chat, *code], route="chat").positions[0].hazard == pytest.approx(0.5, abs=LIMIT)
    assert fit([*chat, *code]).positions[0].hazard == pytest.approx(0.7, abs=LIMIT)
