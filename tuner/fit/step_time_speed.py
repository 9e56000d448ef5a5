"""The machine's own speed: a factor per engine that moves slowly and says nothing about K.

Shared and throttled machines drift by 5-18 % within an hour at equal ratios between draft lengths. A
factor is fitted only to what the curve leaves over, and only where that is clearly more alike at
neighbouring times than across them; cells at different K close in time then keep their ratios.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from tuner.fit.cells import Cells

    Floats = NDArray[np.float64]

MEMORY_SECONDS = (300.0, 900.0, 3600.0)
"""Correlation times tried, seconds: five minutes to an hour, as drift was seen on shared machines."""
DRIFT_SHARES = (0.2, 0.4, 0.6, 0.8, 0.9)
"""Shares of a cell's residual variance tried for the drift."""
MIN_CELLS = 12
"""Fewest cells of all engines that can tell a drift from noise."""
MAX_CELLS = 80
"""Most cells of one engine taken one by one; more are averaged over neighbours in time. It bounds the steps
of the filter, some 50 us each, and the one matrix that the chosen process takes."""
PARAMETERS = 2
"""Drift's share and memory: what the criterion charges for."""
WINSOR = 3.0
"""Residuals count up to this many standard deviations, so that an outlier is no turn of the machine."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Log factor on step time per engine over time; 0 where no drift was told from noise."""

    sd: float = 0.0
    """Standard deviation of the log factor."""
    memory_seconds: float = 0.0
    curves: Mapping[str, tuple[Floats, Floats]] = field(default_factory=dict)
    """Engine -> times (n,) and kriging weights (n,)."""

    def log_factor(self, engine: str | Sequence[str], at: ArrayLike) -> Floats:
        """Return the log factor at unix seconds (n,) of one engine or of engines (n,)."""
        times = np.atleast_1d(np.asarray(at, dtype=np.float64))
        names = np.array([engine] * len(times) if isinstance(engine, str) else list(engine), dtype=object)
        out = np.zeros(len(times))
        for name, (known, weight) in self.curves.items():
            here = names == name
            out[here] = self.sd**2 * _memory(times[here], known, self.memory_seconds) @ weight
        return out


def fit_speed(cells: Cells, residual: Floats, variance: Floats) -> Speed:
    """Fit the factor to log residuals, or return none.

    Residuals of an engine are an Ornstein-Uhlenbeck process plus noise; share and memory of the
    process are the likeliest of a grid and must beat no drift by the Bayesian information criterion.

    Args:
        cells: the cells.
        residual: (g,) log of measured over fitted seconds.
        variance: (g,) variance that the curve's fit gave each residual.
    """
    if len(cells) < MIN_CELLS:
        return Speed()
    z = np.clip(residual / np.sqrt(variance), -WINSOR, WINSOR) * np.sqrt(variance)
    z = z - np.average(z, weights=1 / variance)
    numbers: dict[str, int] = {}
    engine = np.array([numbers.setdefault(name, len(numbers)) for name in cells.engine])
    groups = {name: _thinned(cells.time, z, variance, engine == n) for name, n in numbers.items()}
    count = sum(len(times) for times, _, _ in groups.values())
    best, base = (0.0, 0.0, 0.0, 1.0), 0.0
    grid = [(share, memory) for memory in MEMORY_SECONDS for share in (0.0, *DRIFT_SHARES)]
    likelihoods, scales = _likelihoods(list(groups.values()), np.array(grid), count)
    for (share, memory), likelihood, scale in zip(grid, likelihoods.tolist(), scales.tolist(), strict=True):
        if share == 0.0:
            base = likelihood
        elif likelihood - base > best[0]:
            best = (likelihood - base, share, memory, scale)
    gain, share, memory, scale = best
    if 2 * gain <= PARAMETERS * np.log(count):
        return Speed()
    typical = float(np.mean(np.concatenate([v for _, _, v in groups.values()])))
    drift, noise = share * scale * typical, (1 - share) * scale
    curves: dict[str, tuple[Floats, Floats]] = {}
    for name, (times, values, v) in groups.items():
        matrix = drift * _memory(times, times, memory) + np.diag(noise * v)
        curves[name] = times, np.asarray(np.linalg.solve(matrix, values), dtype=np.float64)
    return Speed(float(np.sqrt(drift)), memory, curves)


def _memory(one: Floats, other: Floats, memory: float) -> Floats:
    """Return the correlation (n, m) between times."""
    return np.asarray(np.exp(-np.abs(one[:, None] - other[None, :]) / memory))


def _thinned(
    time: Floats, values: Floats, variance: Floats, here: NDArray[np.bool_]
) -> tuple[Floats, Floats, Floats]:
    """Return times, residuals and variances of one engine's cells, averaged where there are many."""
    order = np.argsort(time[here], kind="stable")
    columns = [x[here][order] for x in (time, values, variance)]
    count = int(here.sum())
    starts = np.unique(np.linspace(0, count, min(count, MAX_CELLS), endpoint=False).astype(np.intp))
    weight = 1 / columns[2]
    when, value, total = (
        np.add.reduceat(x, starts) for x in (columns[0] * weight, columns[1] * weight, weight)
    )
    return when / total, value / total, 1 / total


def _likelihoods(
    groups: Sequence[tuple[Floats, Floats, Floats]], grid: Floats, count: int
) -> tuple[Floats, Floats]:
    """Return the log likelihood of each drift's share and memory, its scale profiled out, and the scale.

    The process has no memory beyond its last value, so each residual is told from those before it by a Kalman
    filter, all engines and the whole grid (c, 2) at once: as exact as the determinants of 18 matrices an
    engine, in a tenth of the time (50 engines of 33 cells: 2 ms for 33).
    """
    typical = float(np.mean(np.concatenate([v for _, _, v in groups])))
    share, memory = grid[:, 0], grid[:, 1]
    drift = share * typical
    lengths = np.array([len(times) for times, _, _ in groups])
    times, values, variances = (_padded([group[i] for group in groups], lengths) for i in range(3))
    kept = np.exp(-np.diff(times, axis=0)[:, :, None] / memory)
    mean, spread = np.zeros((len(groups), len(grid))), np.tile(drift, (len(groups), 1))
    square, log_det = np.zeros(len(grid)), np.zeros(len(grid))
    for i, told in enumerate(np.arange(lengths.max())[:, None] < lengths):
        if i:
            mean = kept[i - 1] * mean
            spread = drift + kept[i - 1] ** 2 * (spread - drift)
        total = spread + variances[i][:, None] * (1 - share)
        off = values[i][:, None] - mean
        square += (off**2 / total)[told].sum(axis=0)
        log_det += np.log(total)[told].sum(axis=0)
        mean = mean + spread / total * off
        spread = spread - spread**2 / total
    scale = np.maximum(square / count, 1e-12)
    return -0.5 * (count * np.log(scale) + log_det), scale


def _padded(columns: Sequence[Floats], lengths: NDArray[np.intp]) -> Floats:
    """Return columns of unequal length side by side (n, engines), the last value of each repeated."""
    rows = np.minimum(np.arange(lengths.max())[:, None], lengths - 1)
    return np.asarray(np.concatenate(columns)[np.cumsum(lengths) - lengths + rows])
