"""What must not bend a cost: cliffs, drift of the machine, a change of precision."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from bench.recovery.step_time_world import Traffic, World, make_windows
from tuner.fit.cells import build_cells
from tuner.fit.step_time import StepTimeFit, fit_step_time, group_by_fingerprint
from tuner.fit.step_time_findings import find_cliffs
from tuner.fit.step_time_speed import Speed, fit_speed
from tuner.fleet import Fingerprint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.fleet import Window


def _fit(windows: Sequence[Window]) -> StepTimeFit:
    fit = fit_step_time(windows)
    assert isinstance(fit, StepTimeFit)
    return fit


def _collapse(repeat: int) -> list[Window]:
    """K = 2 up to batch 4 and 0 beyond: throughput falls from 232 to 24 tokens/s just past the boundary."""
    batch, draft_len = np.array([3.0, 4, 5, 6, 8]), np.array([2.0, 2, 0, 0, 0])
    rate = np.array([205.0, 232, 24, 61, 157])
    emitted_per_step = np.where(draft_len > 0, 2.2, 1.0) * batch
    columns = [np.repeat(x, repeat) for x in (batch, draft_len, emitted_per_step / rate, rate)]
    return make_windows(columns[0], columns[1], columns[2], emitted=columns[3])


def test_a_collapse_between_neighbouring_batches_is_a_cliff() -> None:
    """232 to 24 tokens/s from batch 4 to 5 is named with both sides; the recovery after it is not."""
    found = [f for f in _fit(_collapse(3)).findings if f.code == "cliff"]
    assert [(f.evidence["batch"], f.evidence["next_batch"]) for f in found] == [(4, 5)]
    assert found[0].severity == "warning"
    assert found[0].evidence["next_tokens_per_second"] == pytest.approx(24)


def test_a_cliff_is_not_smoothed_away() -> None:
    """The collapsed batch keeps its step time of 208 ms and does not lend it to the batch below."""
    fit = _fit(_collapse(3))
    assert fit.predict(5, 0).value == pytest.approx(5 / 24, rel=0.1)
    assert fit.predict(4, 2).value == pytest.approx(4 * 2.2 / 232, rel=0.1)


def test_a_single_window_is_a_weak_cliff_and_ordinary_growth_none() -> None:
    """One slow window is told at severity info; throughput that rises or sags a little is silent."""
    assert [f.severity for f in find_cliffs(build_cells(_collapse(1)))] == ["info"]
    batch = np.array([1.0, 2, 4, 8, 16])
    windows = make_windows(batch, np.zeros(5), batch / 100, emitted=np.array([90.0, 120, 160, 100, 90]))
    assert find_cliffs(build_cells(windows)) == ()


def test_less_drafting_at_the_next_batch_is_no_cliff() -> None:
    """From K = 4 to K = 0 at the next batch throughput may fall to two fifths, and not to a twelfth."""
    for share, codes in ((0.4, []), (0.08, ["cliff"])):
        windows = make_windows(
            np.repeat([4.0, 5.0], 3),
            np.repeat([4.0, 0.0], 3),
            np.repeat([0.02, 0.02], 3),
            emitted=np.repeat([500.0, share * 500.0], 3),
        )
        assert [f.code for f in find_cliffs(build_cells(windows))] == codes


def _ratio_error(fit: StepTimeFit, world: World) -> float:
    """Return the largest error of a step's cost at K = 1 to 4 over that at K = 0."""
    lens, batches = np.arange(5.0), np.array([[2.0], [8.0], [40.0], [150.0]])
    predicted = np.array([[fit.predict(float(b[0]), int(k)).value for k in lens] for b in batches])
    truth = world.seconds(batches, lens)
    return float(np.abs(predicted / predicted[:, :1] / (truth / truth[:, :1]) - 1).max())


def test_drift_of_the_machine_does_not_touch_ratios_between_draft_lengths() -> None:
    """A machine that wanders by 8 % costs ratios no more than 4 %, where single cells are off by 10."""
    world = World()
    windows = Traffic(per_cell=3, noise=0.01, drift=0.08).run(world, np.random.default_rng(2))
    fit = _fit(windows)
    assert fit.speed.sd > 0.03
    assert [f.code for f in fit.findings] == ["machine_drift"]
    assert _ratio_error(fit, world) < 0.04


def test_speed_forecasts_the_level_of_the_day() -> None:
    """Two engines, one 15 % slower: each is predicted at its own speed, and the mean lies between."""
    world = World()
    rng = np.random.default_rng(4)
    traffic = Traffic(windows=150, noise=0.01)
    fast = traffic.run(world, rng)
    slow = [replace(w, engine="e1") for w in traffic.run(replace(world, floor=1.15 * world.floor), rng)]
    fit = _fit([*fast, *slow])
    at = slow[40].start
    pair = [fit.predict(20, 2, engine=engine, at=at).value for engine in ("e0", "e1")]
    assert pair[1] / pair[0] == pytest.approx(1.15, abs=0.03)
    assert pair[0] < fit.predict(20, 2).value < pair[1]


def test_no_drift_is_claimed_of_a_steady_machine() -> None:
    """Of 40 steady runs with 3 % noise between cells not more than one is said to drift."""
    steady = Traffic(windows=120, per_cell=3, cell_noise=0.03)
    said = sum(_fit(steady.run(World(), np.random.default_rng(seed))).speed.sd > 0 for seed in range(40))
    assert said <= 1


def test_a_dozen_cells_are_too_few_for_drift() -> None:
    """Under 12 cells no speed is fitted, and a speed that was not fitted is a factor of one."""
    cells = build_cells(Traffic(windows=8).run(World(), np.random.default_rng(0)))
    speed = fit_speed(cells, np.linspace(-0.3, 0.3, len(cells)), np.full(len(cells), 0.01))
    assert speed == Speed()
    assert speed.log_factor("e0", [0.0, 1.0]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("dtype", "plain", "drafted", "tokens", "gain"),
    [("auto", 10.0, 14.0, 2.243, 1.60), ("fp8", 8.5, 12.6, 2.019, 1.36)],
)
def test_a_change_of_kv_precision_starts_a_fit_of_its_own(
    dtype: str, plain: float, drafted: float, tokens: float, gain: float
) -> None:
    """Quantised KV moves t0 from 10 to 8.5 ms and t3 from 14 to 12.6: two fits, and a gain that falls."""
    both: list[Window] = []
    for name, pair in (("auto", (10.0, 14.0)), ("fp8", (8.5, 12.6))):
        seconds, lens = np.repeat(pair, 4) / 1e3, np.repeat([0.0, 3.0], 4)
        fingerprint = Fingerprint(engine="vllm", kv_cache_dtype=name)
        both += make_windows(np.ones(8), lens, seconds, fingerprint=fingerprint)
    fit = _fit(group_by_fingerprint(both)[Fingerprint(engine="vllm", kv_cache_dtype=dtype)])
    step = [fit.predict(1, k).value for k in (0, 3)]
    assert step == pytest.approx([plain / 1e3, drafted / 1e3], rel=0.003)
    assert tokens * step[0] / step[1] == pytest.approx(gain, abs=0.01)
