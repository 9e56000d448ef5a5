"""What engines delivered lately, as counted: tokens per second, tokens per token verified, run lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tuner.fit.emitted import histogram_of
from tuner.fleet import NotEnoughData, WindowState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tuner.fit.arrays import FloatArray
    from tuner.fleet import Window

RECENT_SECONDS = 600.0
"""Age up to which a window says what load there is now: 40 windows of 15 s, so that the mean batch of an
engine that swings by 30 % from window to window is known to 5 %."""

FRESH_SECONDS = 120.0
"""Age up to which the newest window of an engine is its goodput now; one that is older shows none. Eight
scrapes of 15 s, two of 60 s."""


def recent_windows(windows: Sequence[Window]) -> list[Window]:
    """Return the good windows that ended within 10 minutes of the last good one."""
    good = [window for window in windows if window.state is WindowState.GOOD]
    last = max((window.end for window in good), default=0.0)
    return [window for window in good if window.end > last - RECENT_SECONDS]


def goodput_by_engine(newest: Iterable[Window], now: float) -> dict[str, float]:
    """Return tokens per second by engine, of engines whose newest window is fresh and was judged.

    Args:
        newest: the newest window of each engine, in any state.
        now: unix seconds.
    """
    told = {
        window.engine: window.tokens_per_second
        for window in newest
        if now - window.end <= FRESH_SECONDS and window.state in (WindowState.GOOD, WindowState.IDLE)
    }
    return {engine: speed for engine, speed in sorted(told.items()) if speed is not None}


def goodput_efficiency(windows: Sequence[Window]) -> float | NotEnoughData:
    """Return tokens emitted per token that the target verified, 0..1, over the recent good windows.

    A request step verifies its draft tokens and one more; first tokens come from prompts and are left out.
    """
    emitted = verified = 0.0
    for window in recent_windows(windows):
        counts = window.counts
        if None in (counts.emitted, counts.first_tokens, counts.request_steps, counts.draft_tokens):
            continue
        emitted += window.weight * ((counts.emitted or 0.0) - (counts.first_tokens or 0.0))
        verified += window.weight * ((counts.request_steps or 0.0) + (counts.draft_tokens or 0.0))
    if verified <= 0:
        return NotEnoughData("no good window tells tokens emitted and tokens verified", 0, 1)
    return emitted / verified


def run_lengths(windows: Iterable[Window]) -> Mapping[tuple[str, int], FloatArray]:
    """Return verify steps by accepted count, ``(n0, ..., nK)`` for each route and draft length K.

    Of windows that tell exactly: joint counts, or one draft length alone with counts by position. To be added
    up as windows become final: windows that a bounded memory left out are missing in any later sum.
    """
    out: dict[tuple[str, int], FloatArray] = {}
    for window in windows:
        if window.state is not WindowState.GOOD:
            continue
        lengths = {drafted for drafted, _ in window.counts.joint if drafted > 0} or window.draft_lens or ()
        if not window.counts.joint and len(lengths) != 1:
            continue
        for length in lengths:
            histogram = histogram_of(window.counts, length)
            if length > 0 and histogram is not None:
                key = window.route, length
                out[key] = out.get(key, np.zeros(length + 1)) + histogram
    return out
