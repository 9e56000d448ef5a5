"""Goodput by batch size and draft length, with what is known about each cell and how well."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from tuner.fleet import Finding

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

Z95 = 1.959963984540054
"""Normal quantile of a two-sided 95 % interval."""


class CellState(IntEnum):
    """What a cell rests on, from nothing to its own measurement."""

    UNKNOWN = 0
    """Nothing can be said: never chosen, never shown as a number."""
    EXTRAPOLATED = 1
    """The draft length, or the batch size, lies outside what was measured; the interval is wide."""
    INTERPOLATED = 2
    """Between measurements, or from curves fitted to measurements on both sides."""
    MEASURED = 3


@dataclass(frozen=True, slots=True, eq=False)
class GoodputTable:
    """Tokens per second as log-normal cells, correlated across draft lengths at a batch size.

    Shapes: ``nb`` batch sizes, ``nk`` draft lengths, both ascending. Cells that are ``UNKNOWN`` hold
    minus infinity, so that no maximum can pick them.
    """

    batches: Ints
    """``(nb,)`` batch sizes that a choice is made for."""
    draft_lens: Ints
    """``(nk,)``."""
    log_mean: Floats
    """``(nb, nk)`` mean log tokens per second."""
    log_cov: Floats
    """``(nb, nk, nk)`` covariance across draft lengths; 0 where a cell is unknown."""
    states: NDArray[np.int8]
    """``(nb, nk)`` :class:`CellState`."""
    explained: tuple[int, ...] = ()
    """Indices of the batch sizes that were measured, which the explanation lists; empty for all."""
    schedule_factor: Floats | None = None
    """``(nb,)`` log speed of an engine under any batch schedule over one at a constant draft length,
    ``None`` where that was not measured (compare arms of a sweep)."""
    unknown: Mapping[int, str] = field(default_factory=dict)
    """Draft length -> why it is not known."""
    subject: Mapping[str, str] = field(default_factory=dict)
    """Pool and route, for findings."""
    findings: tuple[Finding, ...] = ()
    """What was noticed while the table was made."""

    @classmethod
    def from_moments(
        cls,
        batches: Sequence[int] | Ints,
        draft_lens: Sequence[int] | Ints,
        log_mean: Floats,
        log_cov: Floats,
        states: NDArray[np.int8] | None = None,
    ) -> Self:
        """Build from means ``(nb, nk)`` and covariances ``(nb, nk, nk)``, or deviations ``(nb, nk)``.

        Raises:
            ValueError: axes do not ascend from 1 and 0, or shapes do not fit.
        """
        rows, columns = np.asarray(batches, dtype=np.int64), np.asarray(draft_lens, dtype=np.int64)
        shape = (rows.size, columns.size)
        ascending = np.all(np.diff(rows) > 0) and np.all(np.diff(columns) > 0)
        if not ascending or rows.min(initial=1) < 1 or columns.min(initial=0) < 0:
            raise ValueError("batches must ascend from 1 and draft lengths from 0")
        if log_cov.ndim == 2:  # noqa: PLR2004  # standard deviations of independent cells
            log_cov = log_cov[:, :, None] ** 2 * np.eye(columns.size)
        kinds = np.full(shape, CellState.MEASURED, dtype=np.int8) if states is None else states
        if log_mean.shape != shape or log_cov.shape != (*shape, columns.size) or kinds.shape != shape:
            raise ValueError(f"cells must have shape {shape}")
        known = kinds > CellState.UNKNOWN
        both = known[:, :, None] & known[:, None, :]
        return cls(rows, columns, np.where(known, log_mean, -np.inf), np.where(both, log_cov, 0.0), kinds)

    @property
    def known(self) -> Bools:
        """``(nb, nk)``: something can be said."""
        return self.states > CellState.UNKNOWN

    @property
    def supported(self) -> Bools:
        """``(nb, nk)``: measured, or between measurements."""
        return self.states >= CellState.INTERPOLATED

    @property
    def trusted(self) -> Bools:
        """``(nb, nk)``: supported, or, at a batch size without any support, supported at another one."""
        supported = self.supported
        bare = ~np.any(supported, axis=1, keepdims=True)
        trusted: Bools = supported | (bare & np.any(supported, axis=0, keepdims=True) & self.known)
        return trusted

    @property
    def log_sd(self) -> Floats:
        """``(nb, nk)`` standard deviation of log tokens per second."""
        variances: Floats = np.diagonal(self.log_cov, axis1=1, axis2=2)
        return np.sqrt(variances)

    @property
    def zero_column(self) -> int | None:
        """Column of draft length 0, ``None`` where the table has none."""
        return 0 if self.draft_lens.size and self.draft_lens[0] == 0 else None

    def difference_sd(self, first: Ints, second: Ints) -> Floats:
        """Return ``(nb,)`` standard deviations of the log ratio of two cells per batch size."""
        rows = np.arange(self.batches.size)
        variance = (
            self.log_cov[rows, first, first]
            + self.log_cov[rows, second, second]
            - 2 * self.log_cov[rows, first, second]
        )
        return np.sqrt(np.maximum(variance, 0.0))

    def gain_over_none(self) -> tuple[Floats, Floats]:
        """Return log gain over draft length 0 and its standard deviation, each ``(nb, nk)``.

        Minus infinity and 0 where either cell is unknown.
        """
        zero = self.zero_column
        if zero is None:
            return np.full(self.log_mean.shape, -np.inf), np.zeros(self.log_mean.shape)
        both = self.known & self.known[:, zero, None]
        base = np.where(self.known[:, zero, None], self.log_mean[:, zero, None], 0.0)
        gain = np.where(both, self.log_mean - base, -np.inf)
        variances = np.diagonal(self.log_cov, axis1=1, axis2=2)
        variance = variances + variances[:, zero, None] - 2 * self.log_cov[:, :, zero]
        return gain, np.sqrt(np.where(both, np.maximum(variance, 0.0), 0.0))

    def interval(self, row: int, column: int) -> tuple[float, float, float]:
        """Return tokens per second at one cell: median and 95 % interval."""
        mean = float(self.log_mean[row, column])
        reach = Z95 * float(np.sqrt(self.log_cov[row, column, column]))
        return float(np.exp(mean)), float(np.exp(mean - reach)), float(np.exp(mean + reach))
