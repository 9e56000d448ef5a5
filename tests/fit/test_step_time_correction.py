"""Corrections of measured cells: how much of a residual is kept, where, and how surely."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.recovery.step_time_world import Traffic, World, make_windows
from tuner.fit.cells import Cells, build_cells
from tuner.fit.crossover import Crossover
from tuner.fit.step_time import StepTimeFit, fit_step_time
from tuner.fit.step_time_correction import MIN_TAU, Correction, fit_correction

BATCHES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)


def _cells(windows: int = 6, noise: float = 0.05, draft_len: float = 2.0) -> Cells:
    """Return one cell per batch of ``windows`` windows, scattered by ``noise`` within."""
    rng = np.random.default_rng(1)
    batch = np.repeat(BATCHES, windows)
    return build_cells(
        make_windows(batch, np.full(len(batch), draft_len), np.exp(rng.normal(-4, noise, len(batch))))
    )


def _at(correction: Correction, batch: float, draft_len: float = 2.0) -> float:
    return float(correction.mean(np.array([batch]), np.array([draft_len]))[0])


def test_residuals_within_noise_are_shrunk_away() -> None:
    """Residuals no larger than a cell's own noise leave little of a correction, and tau at its floor."""
    cells = _cells()
    residual = np.sqrt(cells.sampling_variance) * np.array([1, -1, 0.5, -0.5, 1, -1, 0.5, -0.5])
    correction = fit_correction(cells, residual)
    assert correction.tau == MIN_TAU
    assert abs(_at(correction, 1.0)) < 0.5 * abs(residual[0])


def test_residuals_far_above_noise_are_kept() -> None:
    """Cells that differ by 10 % at 1 % noise keep more than nine tenths of their residual."""
    cells = _cells(noise=0.01)
    residual = 0.1 * np.array([1, -1, 1, -1, 1, -1, 1, -1])
    correction = fit_correction(cells, residual)
    assert correction.tau == pytest.approx(0.1, rel=0.1)
    assert _at(correction, 8.0) == pytest.approx(-0.1, rel=0.1)


def test_a_cell_far_off_is_a_fact_where_windows_agree_and_an_outlier_where_there_is_one() -> None:
    """exp(0.5) times too slow over six windows is kept whole; of a single window it is dropped."""
    many = _cells()
    residual = np.where(np.arange(8) == 4, 0.5, 0.0)
    assert _at(fit_correction(many, residual), 16.0) > 0.45
    one = _cells(windows=1)
    assert len(one) == 8
    assert abs(_at(fit_correction(one, residual), 16.0)) < 0.05


def test_a_correction_fades_with_the_distance_in_batch_and_never_crosses_draft_lengths() -> None:
    """Half of an octave away exp(-1) of it is left, at another K nothing."""
    correction = Correction(
        log_batch=np.array([4.0]),
        draft_len=np.array([2.0]),
        residual=np.array([0.1]),
        variance=np.array([1e-8]),
        prior=np.array([0.1]),
        windows=np.array([5.0]),
        tau=0.1,
    )
    assert _at(correction, 16.0) == pytest.approx(0.1, rel=0.01)
    assert _at(correction, 16.0 * math.sqrt(2)) == pytest.approx(0.1 * math.exp(-1), rel=0.01)
    assert _at(correction, 16.0, 3.0) == 0.0


def test_moments_are_as_sure_as_the_measurement_and_as_unsure_as_tau_elsewhere() -> None:
    """The sd is the cell's shrunk noise where measured and tau at a batch far from any cell."""
    cells = _cells(noise=0.01)
    correction = fit_correction(cells, 0.1 * np.array([1, -1, 1, -1, 1, -1, 1, -1]))
    mean, variance = correction.moments(np.array([8.0, 5000.0]), np.array([2.0, 2.0]))
    assert math.sqrt(variance[0]) < 0.01
    assert math.sqrt(variance[1]) == pytest.approx(correction.tau, rel=0.01)
    assert mean[0] == pytest.approx(-0.1, rel=0.1)


def test_repeated_blocks_of_a_cell_are_one_measurement_with_their_scatter() -> None:
    """Blocks of one cell at two times are averaged, and their disagreement is part of its variance."""
    batch = np.tile(np.repeat(BATCHES, 3), 2)
    seconds = np.full(48, 0.02)
    cells = build_cells(make_windows(batch, np.full(48, 2.0), seconds))
    assert len(cells) == 16
    agreeing = fit_correction(cells, np.full(16, 0.05))
    scattered = fit_correction(cells, 0.05 + np.repeat([0.1, -0.1], 8))
    assert len(agreeing.residual) == 8
    assert agreeing.residual == pytest.approx(np.full(8, 0.05))
    assert scattered.residual == pytest.approx(np.full(8, 0.05), abs=0.01)
    assert (scattered.variance > 50 * agreeing.variance).all()


def _fit(traffic: Traffic, seed: int) -> StepTimeFit:
    fit = fit_step_time(traffic.run(World(), np.random.default_rng(seed)))
    assert isinstance(fit, StepTimeFit)
    return fit


def test_draws_of_the_curve_scatter_as_repeated_fits_do() -> None:
    """Over 25 runs of 20 cells the curve's own draws are as wide as what separates the runs, within half."""
    traffic = Traffic(windows=60, per_cell=3, noise=0.02, cell_noise=0.03)
    at = np.array([20.0]), np.array([3.0])
    centres, widths = [], []
    for seed in range(25):
        fit = _fit(traffic, seed)
        centres.append(math.log(float(fit.curve_seconds(*at)[0])))
        variance = float(fit.log_seconds_moments(*at)[1][0, 0, 0])
        own = float(fit.correction.moments(*at)[1][0])
        widths.append(math.sqrt(max(variance - own, 0.0)))
    assert np.mean(widths) == pytest.approx(np.std(centres), rel=0.5)


def test_no_number_of_windows_makes_a_crossover_exact() -> None:
    """Even 1 500 windows without noise leave 2.5 % each way: engines are no curve of four numbers."""
    found = _fit(Traffic(windows=1500, noise=1e-4), 0).crossover
    assert isinstance(found, Crossover)
    assert found.high / found.low > 1.05
