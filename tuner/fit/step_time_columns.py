"""What a step costs beside the forward pass of the target: the linear columns of the curve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tuner.fit.curve import NONLINEAR, OVERHEAD
from tuner.fleet import NotEnoughData

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from tuner.fit.cells import Cells

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

FLAT, LINEAR, ROOT, BATCHED, CONTEXT, CONTEXT_DRAFT = range(OVERHEAD + 1, OVERHEAD + 7)
"""Places of the coefficients: drafter at any K, per draft token, per root draft token, per draft token
and request, per context token, per context token and draft token."""
PARAMETERS = CONTEXT_DRAFT + 1
Shape = Literal["none", "flat", "linear", "affine", "concave", "linear_batched", "affine_batched"]
SHAPES: dict[Shape, tuple[int, ...]] = {
    "none": (),
    "flat": (FLAT,),
    "linear": (LINEAR,),
    "concave": (ROOT,),
    "affine": (FLAT, LINEAR),
    "linear_batched": (LINEAR, BATCHED),
    "affine_batched": (FLAT, LINEAR, BATCHED),
}
"""Published drafters show the linear form (EAGLE, 0.74-1.02 ms a token), the flat one (parallel
drafting) and an intercept beside a slope; a draft model of its own pays per request too."""
MIN_SHAPE_DRAFT_LENS = 3
CONTEXT_SPREAD = 1.5
"""Least ratio of context per request between the 90th and 10th percentile for a cost of its own."""


@dataclass(frozen=True, slots=True)
class Drafter:
    """Seconds that drafting adds to a step: ``base [K>0] + slope K + root sqrt(K) + batched B K``.

    What a drafter costs at K = 0, where its state is kept warm, is part of every step's overhead.
    """

    shape: Shape
    base_seconds: float
    slope_seconds: float
    root_seconds: float
    batched_seconds: float
    reason: str

    def seconds(self, batch: ArrayLike, draft_len: ArrayLike) -> Floats:
        """Return the drafter's seconds per step, arguments broadcast."""
        k = np.asarray(draft_len, dtype=np.float64)
        fixed = (
            self.base_seconds * np.minimum(k, 1.0) + self.slope_seconds * k + self.root_seconds * np.sqrt(k)
        )
        return np.asarray(fixed + self.batched_seconds * np.asarray(batch) * k)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "shape": self.shape,
            "base_seconds": self.base_seconds,
            "seconds_per_draft_token": self.slope_seconds,
            "seconds_per_root_draft_token": self.root_seconds,
            "seconds_per_draft_token_and_request": self.batched_seconds,
            "reason": self.reason,
        }


def drafter_of(theta: Floats, shape: Shape, reason: str) -> Drafter:
    """Return the drafter of parameters (p,)."""
    base, slope, root, batched = (float(theta[place]) for place in (FLAT, LINEAR, ROOT, BATCHED))
    return Drafter(shape, base, slope, root, batched, reason)


def column_matrix(batch: Floats, draft_len: Floats, context: Floats, root: Floats | None = None) -> Floats:
    """Return the linear columns (n, 7) at batch, draft length and context tokens, each (n,).

    A draft length between two whole ones is a mix of both, so its root is theirs, interpolated, unless the
    mean root of the mix is given.
    """
    if root is None:
        low = np.floor(draft_len)
        part = draft_len - low
        root = np.sqrt(low) * (1 - part) + np.sqrt(low + 1) * part
    return np.column_stack(
        [
            np.ones_like(draft_len),
            np.minimum(draft_len, 1.0),
            draft_len,
            root,
            batch * draft_len,
            context,
            context * draft_len,
        ]
    )


def flags_of(shape: Shape, context: tuple[int, ...], *, free: bool) -> Flags:
    """Return which parameters (p,) may move: the shape's, the context's, o if ``free``."""
    flags = np.zeros(PARAMETERS, dtype=np.bool_)
    flags[:NONLINEAR] = True
    flags[OVERHEAD] = free
    flags[[*SHAPES[shape], *context]] = True
    return flags


def draft_lens_seen(cells: Cells) -> Floats:
    """Return the distinct whole draft lengths (k,) that cells ran near."""
    return np.unique(np.round(cells.draft_len))


def shapes_for(cells: Cells) -> tuple[Shape, ...]:
    """Return the shapes of the drafter's cost that the draft lengths seen can tell apart.

    One draft length shows no cost of its own, two a difference, three a shape. The cost per request
    and draft token needs cells of several batches at each of two draft lengths above 0.
    """
    kinds = draft_lens_seen(cells)
    if len(kinds) < 2:  # noqa: PLR2004 - nothing to compare with
        return ("none",)
    if len(kinds) < MIN_SHAPE_DRAFT_LENS:
        return ("linear",)
    shapes: list[Shape] = ["none", "linear", "concave"]
    if kinds[0] == 0:
        shapes += ["flat", "affine"]
    if len(cells) >= 2 * PARAMETERS:
        shapes += ["linear_batched", "affine_batched"] if kinds[0] == 0 else ["linear_batched"]
    return tuple(shapes)


def shape_reason(cells: Cells, shape: Shape) -> str:
    """Say what a drafter's shape rests on."""
    kinds = len(draft_lens_seen(cells))
    if kinds < 2:  # noqa: PLR2004
        return "one draft length only: the drafter's time is part of the floor"
    if kinds < MIN_SHAPE_DRAFT_LENS:
        return f"two draft lengths only: {shape} is assumed, three show the shape"
    return f"lowest corrected Akaike criterion of {', '.join(shapes_for(cells))}"


def context_column(cells: Cells) -> tuple[Floats, NotEnoughData | None]:
    """Return the context regressor (g,), and why its cost cannot be told, if so."""
    known = np.isfinite(cells.context) & (cells.context > 0)
    if not known.all():
        return np.zeros(len(cells)), NotEnoughData("context tokens untold", int(known.sum()), len(cells))
    low, high = np.quantile(cells.context / cells.batch, [0.1, 0.9])
    if high < CONTEXT_SPREAD * low:
        reason = "context per request hardly varies, so its cost is part of the cost per token"
        return np.zeros(len(cells)), NotEnoughData(reason, round(float(high / low), 3), CONTEXT_SPREAD)
    return cells.context, None
