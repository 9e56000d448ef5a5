"""Nodes: cells of one K and nearly one N, merged, so that many fits to the same cells cost little."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tuner.fit.curve import Design, seconds_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tuner.fit.cells import Cells

    Floats = NDArray[np.float64]

NODE_WIDTH = 0.2
"""Width of a node in log tokens in flight. Over 20 % in N the curve departs from a line by less than
0.1 %, so cells of one K inside it act on a fit only by their weighted mean residual."""

MIX_WIDTH = 0.25
"""Width of a node in mean draft tokens, for cells that mixed draft lengths: their cost is all but a line in
it, so that they act by their mean too. Each mix for itself made 1300 nodes of 1800 cells, a fit of 0.3 s."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """Cells merged around one fit of the curve."""

    design: Design
    """Nodes with a target per weighting (r, n), unit variance and plain squares."""
    precision: Floats
    """Weight (r, n) of each node in each weighting; the first fit's outliers count little."""


def node_of(cells: Cells, context: Floats) -> NDArray[np.intp]:
    """Return the node (g,) of each cell: one K or stretch of mixes, one of tokens in flight and of context.

    Args:
        cells: the cells.
        context: (g,) the context regressor, zeros where there is none.
    """
    stretch = np.floor(np.log(cells.tokens) / NODE_WIDTH)
    each = np.floor(np.log(np.maximum(context / cells.batch, 1.0)) / NODE_WIDTH)
    mixed = np.where(cells.pure, -1.0, np.floor(cells.draft_len / MIX_WIDTH))
    length = np.where(cells.pure, cells.draft_len, 0.0)
    kinds = np.column_stack([length, mixed, stretch, each])
    _, node = np.unique(kinds, axis=0, return_inverse=True)
    return np.asarray(node.reshape(-1))


def merge(design: Design, theta: Floats, node: NDArray[np.intp], weight: Floats) -> Nodes:
    """Merge cells around the fit ``theta`` (p,), once for each weighting (r, g) of the cells."""
    residual = design.log_seconds - np.log(seconds_of(theta[None, :], design.tokens, design.columns)[0])
    precision = design.influence(residual**2 / design.variance) / design.variance
    order = np.argsort(node, kind="stable")
    starts = np.flatnonzero(np.diff(node[order], prepend=-1))

    def added(values: Floats) -> Floats:
        return np.asarray(np.add.reduceat(values[..., order], starts, axis=-1))

    total = added(precision)
    tokens = np.exp(added(precision * np.log(design.tokens)) / total)
    columns = added((design.columns * precision[:, None]).T) / total
    weighted = weight * precision
    drawn = added(weighted)
    fitted = np.log(seconds_of(theta[None, :], tokens, columns.T)[0])
    target = fitted + added(weighted * residual) / drawn
    merged = replace(
        design,
        tokens=tokens,
        columns=np.ascontiguousarray(columns.T),
        log_seconds=target,
        variance=np.ones(len(tokens)),
        robust=False,
    )
    return Nodes(merged, drawn)
