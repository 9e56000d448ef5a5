"""A load test must not stand in for the users."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fit.counting import fit, pure
from tuner.fit.dispersion import cap_factors


def _codes(found: object) -> list[str]:
    return [finding.code for finding in found.findings]  # type: ignore[attr-defined]  # any fit


@pytest.mark.parametrize("seconds", [5.0, 15.0, 60.0])
def test_b23_load_test_does_not_poison_prose(seconds: float) -> None:
    """An hour of prose at .52, five minutes at .12 with four times the drafts, two clean windows: .52."""
    prose, load = round(3600 / seconds), round(300 / seconds)
    windows = [pure(50_000 / prose, [0.52, 0.5], index, seconds=seconds) for index in range(prose)]
    windows += [pure(200_000 / load, [0.12, 0.1], prose + index, seconds=seconds) for index in range(load)]
    windows += [pure(50_000 / prose, [0.52, 0.5], prose + load + i, seconds=seconds) for i in range(2)]
    found = fit(windows)
    first = found.positions[0]
    assert first.hazard == pytest.approx(0.52, abs=0.02)
    assert first.low < 0.52 < first.high
    assert _codes(found) == ["traffic_burst_left_out"]


def test_b23_with_forgetting() -> None:
    """The same with old evidence fading: the load test is recent and heavy, and still left out."""
    windows = [pure(208, [0.52], index) for index in range(240)]
    windows += [pure(10_000, [0.12], 240 + index) for index in range(20)]
    windows += [pure(208, [0.52], 260 + index) for index in range(2)]
    first = fit(windows, half_life_seconds=900.0).positions[0]
    assert first.hazard == pytest.approx(0.52, abs=0.02)


def test_traffic_that_returns_is_traffic() -> None:
    """A heavy batch job every ten minutes belongs to the population and is not cut out."""
    windows = []
    for index in range(200):
        job = index % 40 < 4
        windows.append(pure(5000 if job else 500, [0.2 if job else 0.6], index))
    found = fit(windows)
    assert "traffic_burst_left_out" not in _codes(found)
    assert found.positions[0].hazard is not None
    assert found.positions[0].hazard < 0.55


def test_new_normal_is_not_a_burst() -> None:
    """Once the other traffic holds more than a fifth of the windows it counts."""
    windows = [pure(500, [0.6], index) for index in range(60)]
    windows += [pure(5000, [0.2], 60 + index) for index in range(30)]
    found = fit(windows)
    assert _codes(found) == []
    assert found.positions[0].hazard is not None
    assert found.positions[0].hazard < 0.55


def test_no_window_weighs_more_than_a_twentieth() -> None:
    """Above 20 windows the cap is 5 % of what remains; with fewer, twice an equal share."""
    rng = np.random.default_rng(5)
    for count in (21, 30, 100, 400):
        exposed = rng.pareto(0.6, count) + 1.0
        weighted = exposed * cap_factors(exposed)
        assert weighted.max() <= 0.05 * weighted.sum() * (1 + 1e-9)
        assert np.all(cap_factors(exposed) <= 1.0)
    assert np.all(cap_factors(np.ones(100)) == 1.0)
    few = np.array([1.0, 1.0, 1.0, 97.0])
    assert (few * cap_factors(few)).max() <= 0.5 * (few * cap_factors(few)).sum() * (1 + 1e-9)
    assert cap_factors(np.array([7.0])).tolist() == [1.0]
