"""A shift at a restart is told from a drift of hours, also where a memory kept few windows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from bench.recovery.step_time_world import START, make_windows
from tuner.fit.restart import shifts_at_restarts

if TYPE_CHECKING:
    from tuner.fleet import Window


def _engine(before: float, after: float, apart: float) -> list[Window]:
    """Return twelve windows before a restart and twelve after it, ``apart`` seconds from one to the next."""
    rng = np.random.default_rng(1)
    seconds = 0.02 * np.exp(rng.normal(0, 0.01, 24)) * np.repeat([before, after], 12)
    windows = make_windows(np.full(24, 8.0), np.full(24, 2.0), seconds)
    return [
        replace(w, start=START + apart * i, end=START + apart * i + w.seconds, restarts=int(i >= 12))
        for i, w in enumerate(windows)
    ]


@pytest.mark.parametrize("apart", [15.0, 240.0])
def test_a_step_at_a_restart_is_told(apart: float) -> None:
    """Steps a tenth slower from the restart on are another configuration, in every and each 16th window."""
    (shift,) = shifts_at_restarts(_engine(1.0, 1.1, apart))
    assert shift.quantity == "step time"
    assert shift.relative == pytest.approx(0.1, abs=0.02)


def test_windows_hours_from_a_restart_say_nothing_of_it() -> None:
    """Where a memory kept one window in twenty minutes, a machine that drifted meanwhile is no new one."""
    assert shifts_at_restarts(_engine(1.0, 1.1, 1200.0)) == []
