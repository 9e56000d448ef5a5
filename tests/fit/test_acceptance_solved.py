"""A position solved from mixes of two draft lengths: never surer than the mix allows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.fit.counting import fit, pure, window, with_counts
from tuner.fit.dispersion import RatioSpread
from tuner.fit.exposure import build_exposure
from tuner.fit.selection import SOLVED_SD, solved_sd

if TYPE_CHECKING:
    from tuner.fit.acceptance_positions import PositionFit
    from tuner.fleet import Window

PROFILE = (0.75, 0.70, 0.67, 0.65)


def _mixed(drafts: int, low: float, index: int) -> Window:
    """Half the steps at K=4, half at K=2; position 2 solves to its hazard times 1 - ``low``.

    The steps at K=2 get past position 1 more often than those at K=4; position 0 shows none of it.
    """
    long = drafts / 2 * np.cumprod(PROFILE)
    short = drafts / 2 * np.cumprod(PROFILE[:2]) * (1 + low / (1 - low) * 2) ** np.array([0.0, 1.0])
    counted = long.copy()
    counted[:2] += short
    return window(drafts, counted.tolist(), {2, 4}, index=index, draft_tokens=3.0 * drafts)


def _position(windows: list[Window], position: int = 2) -> PositionFit:
    one = fit(windows).positions[position]
    assert one.state == "measured"
    return one


def test_a_solved_interval_does_not_shrink_below_what_the_mix_allows() -> None:
    """A hundred times the drafts: the interval of position 2 stays, those of counted positions shrink."""
    few = fit([_mixed(20_000, 0.0, index) for index in range(60)]).positions
    many = fit([_mixed(2_000_000, 0.0, index) for index in range(60)]).positions
    least = 2 * 1.9 * SOLVED_SD * PROFILE[2]
    assert few[2].high - few[2].low > least
    assert many[2].high - many[2].low == pytest.approx(2 * 1.96 * SOLVED_SD * PROFILE[2], rel=0.05)
    for position in (0, 1, 3):
        assert many[position].high - many[position].low < 0.3 * (few[position].high - few[position].low)


def test_a_mix_that_solves_low_still_covers() -> None:
    """Position 2 solved 1.5 % low by steps that get further at K=2: the interval reaches the truth."""
    one = _position([_mixed(200_000, 0.015, index) for index in range(60)])
    assert one.hazard == pytest.approx(PROFILE[2] * 0.985, abs=0.002)
    assert one.low < PROFILE[2] < one.high


def test_pure_windows_are_not_outvoted_by_mixed_ones() -> None:
    """40 windows at K=4 alone beside 400 mixes that solve 3 % low: the hazard is that of the 40."""
    alone = [pure(100_000, PROFILE, index) for index in range(40)]
    both = alone + [_mixed(100_000, 0.03, index) for index in range(40, 440)]
    direct, one = _position(alone), _position(both)
    assert one.hazard == pytest.approx(PROFILE[2], abs=0.002)
    assert one.low < PROFILE[2] < one.high
    assert one.high - one.low < 1.5 * (direct.high - direct.low)


def test_mixed_windows_still_help_few_pure_drafts() -> None:
    """Where the windows at K=4 hold few drafts, the mixes narrow the interval."""
    alone = [pure(60, PROFILE, index) for index in range(40)]
    both = alone + [_mixed(20_000, 0.0, index) for index in range(40, 440)]
    direct, one = _position(alone), _position(both)
    assert one.high - one.low < 0.7 * (direct.high - direct.low)


def test_what_solving_adds_follows_how_much_requests_differ() -> None:
    """Nothing where blocks show independent drafts, more with their dispersion, the constant where untold."""
    table = build_exposure([with_counts(_mixed(3000, 0.0, 0), finished=100.0)])
    first = RatioSpread(0.75, 1e-6, 1.0, 30.0, 31)
    assert solved_sd(table, first) == 0.0
    assert solved_sd(table, replace(first, dispersion=1 + 29 * 0.1)) == pytest.approx(SOLVED_SD)
    assert solved_sd(table, replace(first, dispersion=1 + 29 * 0.4)) == pytest.approx(2 * SOLVED_SD)
    assert solved_sd(table, replace(first, blocks=5)) == SOLVED_SD
    assert solved_sd(build_exposure([_mixed(3000, 0.0, 0)]), first) == SOLVED_SD
