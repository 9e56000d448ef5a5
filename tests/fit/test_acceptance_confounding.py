"""Draft length that follows acceptance: censored or wide, never a confident wrong number."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.fit.counting import fit, pure, window

if TYPE_CHECKING:
    from tuner.fleet import Window


def _codes(found: object) -> list[str]:
    return [finding.code for finding in found.findings]  # type: ignore[attr-defined]  # any fit


def _mixed(drafts: int, share_long: float, hazard_short: float, hazard_long: float, index: int) -> Window:
    """K in {2, 4} in one window, steps at K=2 accepted at one rate and steps at K=4 at another."""
    long = round(drafts * share_long)
    by_position = np.zeros(4)
    by_position[:2] += (drafts - long) * hazard_short ** np.arange(1, 3)
    by_position += long * hazard_long ** np.arange(1, 5)
    tokens = 2.0 * (drafts - long) + 4.0 * long
    return window(drafts, by_position.tolist(), {2, 4}, index=index, draft_tokens=tokens)


@pytest.mark.parametrize(("long", "short"), [(0.85, 0.5), (0.5, 0.85), (0.8, 0.6)])
def test_pure_windows_of_two_kinds_of_traffic(long: float, short: float) -> None:
    """K=4 for one kind of traffic and K=1 for another: late positions are measured on the one kind only."""
    windows = [
        pure(500, [long] * 4, index) if index // 4 % 2 else pure(500, [short], index, padded=3)
        for index in range(80)
    ]
    found = fit(windows)
    assert _codes(found) == ["k_confounded"]
    assert [one.state for one in found.positions] == ["measured", "censored", "censored", "censored"]
    assert found.positions[1].reason.startswith("k_confounded")
    assert found.positions[0].low < (long + short) / 2 < found.positions[0].high


@pytest.mark.parametrize(("short", "long"), [(0.5, 0.85), (0.85, 0.5), (0.6, 0.8)])
def test_mixed_windows_whose_first_position_follows_the_share(short: float, long: float) -> None:
    """Two totals pin the mix only if K and acceptance are independent; the slope of h0 on w says no."""
    shares = 0.5 + 0.3 * np.sin(np.arange(60) / 5)
    found = fit([_mixed(800, float(share), short, long, index) for index, share in enumerate(shares)])
    assert _codes(found) == ["k_confounded"]
    assert found.positions[2].state == "censored"


def test_mixed_windows_whose_first_position_follows_the_batch() -> None:
    """With the share constant the batch size tells: K follows it within the window, acceptance between."""
    windows = []
    for index in range(64):
        batch = 4.0 if index // 4 % 2 else 32.0
        hazard = 0.85 if batch < 10 else 0.55
        one = _mixed(800, 0.5, hazard, hazard, index)
        counts = replace(one.counts, steps=800 / batch, request_steps=800.0)
        windows.append(replace(one, counts=counts))
    found = fit(windows)
    assert _codes(found) == ["k_confounded"]
    assert "batch size" in found.positions[2].reason


def test_constant_share_is_judged_by_the_neighbours() -> None:
    """Where w never varies, a solved hazard far outside its neighbours' is not believed."""
    found = fit([_mixed(800, 0.5, 0.85, 0.5, index) for index in range(40)])
    assert found.positions[2].state == "censored"
    assert _codes(found) == ["k_confounded"]


def test_solved_hazard_above_one_is_censored_not_clamped() -> None:
    """More acceptances at the solved position than drafts can have reached it: no number at all."""
    found = fit([window(1000, [600, 400, 390, 300], {2, 4}, draft_tokens=2400.0)])
    assert found.positions[2].hazard is None
    assert found.positions[2].high == 1.0
    assert "above 1" in found.positions[2].reason
    assert _codes(found) == ["k_confounded"]


def test_honest_mix_is_not_accused() -> None:
    """Shares that vary with acceptance constant give all four hazards and no finding."""
    shares = 0.5 + 0.3 * np.sin(np.arange(60) / 5)
    found = fit([_mixed(800, float(share), 0.8, 0.8, index) for index, share in enumerate(shares)])
    assert found.findings == ()
    assert [one.hazard for one in found.positions] == pytest.approx([0.8] * 4, abs=0.02)


def test_honest_shift_with_the_draft_length_widens_instead() -> None:
    """First position .699 at K=1 and .663 at K=7 (SpecDecode-Bench): wider intervals, no accusation."""
    profile = [0.663, 0.645, 0.633, 0.653, 0.621, 0.649, 0.650]
    windows = [
        pure(1000, profile, index) if index // 4 % 2 else pure(1000, [0.699], index, padded=6)
        for index in range(80)
    ]
    found = fit(windows)
    assert found.findings == ()
    first, second = found.positions[:2]
    assert first.low <= 0.664
    assert first.high >= 0.698
    assert second.low < 0.645 < second.high
    alone = fit([one for one in windows if one.draft_lens == frozenset({7})]).positions[1]
    assert second.high - second.low > alone.high - alone.low
    assert found.emitted[1].value == pytest.approx(1.699, abs=0.002)


def test_one_odd_block_accuses_nobody() -> None:
    """A single stretch at another K and another acceptance is one observation, whatever its size."""
    windows = [pure(500, [0.8, 0.7, 0.66, 0.6], index) for index in range(40)]
    windows += [pure(500, [0.6], 40, padded=3)]
    found = fit(windows)
    assert "k_confounded" not in _codes(found)


def test_confounded_draws_do_not_claim_a_gain() -> None:
    """Draws of emitted tokens at a K that one kind of traffic ran stay open for the other kind."""
    windows = [
        pure(500, [0.85] * 4, index) if index // 4 % 2 else pure(500, [0.5], index, padded=3)
        for index in range(80)
    ]
    draws = fit(windows).emitted_draws([1, 4], 2000, np.random.default_rng(0))
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    assert np.all(low < [1.53, 2.0])  # chat emits 1.50 at K=1 and 1.94 at K=4
    assert np.all(high > [1.82, 3.65])  # code emits 1.85 and 3.71
