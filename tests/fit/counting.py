"""Windows made of plain counts, for tests of the acceptance fit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tuner.fit.acceptance import AcceptanceFit, fit_acceptance
from tuner.fleet import Counts, Window, WindowState

if TYPE_CHECKING:
    from collections.abc import Sequence


def window(
    drafts: float,
    by_position: Sequence[float] = (),
    lens: set[int] | None = None,
    *,
    index: int = 0,
    seconds: float = 15.0,
    engine: str = "e0",
    state: WindowState = WindowState.GOOD,
    **counts: Any,
) -> Window:
    """Return a window number ``index`` of an engine; draft tokens follow from a single draft length."""
    given: dict[str, Any] = {
        "drafts": float(drafts),
        "accepted": float(sum(by_position)),
        "accepted_by_position": tuple(float(count) for count in by_position),
    }
    if lens is not None and len(lens) == 1:
        given["draft_tokens"] = drafts * max(lens)
    return Window(
        pool="p",
        engine=engine,
        start=index * seconds,
        end=(index + 1) * seconds,
        state=state,
        reason="" if state is WindowState.GOOD else "said so",
        counts=Counts(**{**given, **counts}),
        draft_lens=None if lens is None else frozenset(lens),
    )


def pure(drafts: float, hazards: Sequence[float], index: int = 0, *, padded: int = 0, **more: Any) -> Window:
    """Return a window at one draft length whose counts are the expectation, rounded to whole drafts.

    ``padded`` positions of zeros follow, as an engine started with a larger K exports them.
    """
    accepted: list[float] = []
    reached = float(drafts)
    for hazard in hazards:
        reached = float(round(reached * hazard))
        accepted.append(reached)
    return window(drafts, [*accepted, *[0.0] * padded], {len(hazards)}, index=index, **more)


def fit(windows: Sequence[Window], **more: Any) -> AcceptanceFit:
    """Fit and insist that there is a fit."""
    found = fit_acceptance(windows, pool="p", **more)
    assert isinstance(found, AcceptanceFit), found
    return found


def with_counts(one: Window, **changed: Any) -> Window:
    """Return a copy of a window with other counts."""
    return replace(one, counts=replace(one.counts, **changed))
