"""What was left out at a restart stays out, whatever happens later."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.fit.current import current_windows
from tuner.fleet import Counts, Fingerprint, Window, WindowState

STEP = 15.0
LIFE = 30
"""Windows from one restart to the next."""


def _life(number: int, restarts: int, acceptance: float, step: float) -> list[Window]:
    """One life of an engine: constant batch 8 and draft length 2, a little noise."""
    rng = np.random.default_rng(number)
    windows = []
    for i in range(LIFE):
        start = (number * LIFE + i) * STEP
        steps = STEP / step * float(np.exp(rng.normal(0, 0.01)))
        drafts = 8 * steps
        accepted = drafts * acceptance * float(np.exp(rng.normal(0, 0.01)))
        counts = Counts(
            steps=steps, request_steps=drafts, drafts=drafts, draft_tokens=2 * drafts, accepted=accepted,
            accepted_by_position=(accepted, 0.0),
        )  # fmt: skip
        windows.append(
            Window(
                pool="p", engine="e", start=start, end=start + STEP, state=WindowState.GOOD, reason="",
                counts=counts, fingerprint=Fingerprint(engine="vllm", model="m"),
                draft_lens=frozenset({2}), restarts=restarts,
            )
        )  # fmt: skip
    return windows


@pytest.mark.parametrize(
    "numbers", [(0, 1, 2), (0, 1, 0), (3, 4, 0)], ids=["counted on", "daemon restarted", "both restarted"]
)
def test_a_plain_restart_does_not_bring_back_what_was_left_out(numbers: tuple[int, int, int]) -> None:
    """Another engine since the first restart, a second one that changes nothing: the first life stays out."""
    windows = [*_life(0, numbers[0], 0.8, 0.2), *_life(1, numbers[1], 0.48, 0.3)]
    cut = current_windows("p", windows)
    assert {w.start for w in cut.windows} == {w.start for w in windows[LIFE:]}
    windows += _life(2, numbers[2], 0.48, 0.3)
    again = current_windows("p", windows)
    assert min(w.start for w in again.windows) == LIFE * STEP
    assert len(again.windows) == 2 * LIFE
    assert {f.code for f in again.findings} == {"config_maybe_changed"}
    assert not again.holds(windows[0])
    assert again.holds(windows[-1])


def test_restarts_that_change_nothing_leave_nothing_out() -> None:
    """Three lives alike are one body of evidence."""
    windows = [window for i in range(3) for window in _life(i, i, 0.8, 0.2)]
    current = current_windows("p", windows)
    assert len(current.windows) == 3 * LIFE
    assert current.findings == ()
