"""The likelihood of a drifting machine, against the determinants it stands for."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.fit.step_time_speed import _likelihoods


@pytest.mark.parametrize("lengths", [[12], [33] * 5, [1, 2, 80, 5]])
def test_likelihood_is_that_of_the_whole_covariance_matrix(lengths: list[int]) -> None:
    """The filter gives what a multivariate normal with the drift's covariance gives, at every grid point."""
    rng = np.random.default_rng(7)
    groups = [
        (np.sort(rng.uniform(0, 7200, n)), rng.normal(0, 0.05, n), rng.uniform(0.001, 0.004, n))
        for n in lengths
    ]
    grid = np.array([(share, memory) for memory in (300.0, 3600.0) for share in (0.0, 0.4, 0.9)])
    count = sum(lengths)
    likelihood, scale = _likelihoods(groups, grid, count)
    typical = np.mean(np.concatenate([variance for _, _, variance in groups]))
    for (share, memory), one, factor in zip(grid, likelihood, scale, strict=True):
        square, log_det = 0.0, 0.0
        for times, values, variance in groups:
            correlation = np.exp(-np.abs(times[:, None] - times) / memory)
            covariance = share * typical * correlation + (1 - share) * np.diag(variance)
            square += float(values @ np.linalg.solve(covariance, values))
            log_det += float(np.linalg.slogdet(covariance)[1])
        assert factor == pytest.approx(square / count)
        assert one == pytest.approx(-0.5 * (count * np.log(square / count) + log_det))
