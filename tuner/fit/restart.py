"""Did an engine come back from a restart as another engine?

Model name and metrics can stay the same while build, precision of weights or KV cache, or the drafter
changed (operators' reports: vLLM pull request 55557). Where the fingerprint cannot tell, like cells
before and after the restart can: a shift of step time or acceptance right there is a new configuration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from tuner.fleet import WindowState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.fleet import Window

MIN_WINDOWS = 4
"""Windows of a like cell needed on each side: the spread of fewer says nothing of the noise."""
MIN_SHIFT = 0.07
"""Smallest relative shift that counts. Machines drift by 5-18 % within an hour, but not from one window
to the next; below 7 % a new configuration would not move the choice of a draft length."""
MIN_Z = 4.0
"""Standard errors that a shift must stand out by: 1 in 16 000 by chance."""
SAME_BATCH = 0.15
"""Windows whose batch is within this ratio are alike; step time bends by less than that."""
NEAR_WINDOWS = 40
"""Windows looked at on each side, so that a slow drift of hours is not taken for a step."""
NEAR_SECONDS = 3600.0
"""And how far from the restart: of a thinned memory 40 windows of one engine may lie hours apart."""


@dataclass(frozen=True, slots=True)
class Shift:
    """A step in what one engine shows, at a restart."""

    engine: str
    at: float
    """Unix seconds of the first window after the restart."""
    quantity: str
    """``step time`` or ``acceptance``."""
    before: float
    after: float
    """Geometric means over like windows, seconds per step or ratio."""

    @property
    def relative(self) -> float:
        """After over before, minus 1."""
        return self.after / self.before - 1.0


def shifts_at_restarts(windows: Sequence[Window]) -> list[Shift]:
    """Return the shifts at the last restart of each engine that brought any, the largest of each quantity.

    A restart without a shift does not undo an earlier one: what was left out there stays out. The number of
    restarts is only compared for being another one: it begins anew with each observer.

    Args:
        windows: of one pool and fingerprint, in any order and state.
    """
    by_engine: dict[str, list[Window]] = {}
    for window in windows:
        by_engine.setdefault(window.engine, []).append(window)
    out: list[Shift] = []
    for engine, own in sorted(by_engine.items()):
        lives = _lives(own)
        for before, after in reversed(list(pairwise(lives))):
            found = _between(engine, before, after)
            if found:
                out += found
                break
    return out


def _lives(windows: Sequence[Window]) -> list[list[Window]]:
    """Return the windows of one engine by life: from one restart to the next, in order of time."""
    lives: list[list[Window]] = []
    for window in sorted(windows, key=lambda each: each.start):
        if not lives or lives[-1][-1].restarts != window.restarts:
            lives.append([])
        lives[-1].append(window)
    return lives


def _between(engine: str, before: Sequence[Window], after: Sequence[Window]) -> list[Shift]:
    """Compare the end of one life with the beginning of the next."""
    came_back = after[0].start
    old = [w for w in before if w.state is WindowState.GOOD][-NEAR_WINDOWS:]
    new = [w for w in after if w.state is WindowState.GOOD][:NEAR_WINDOWS]
    old = [w for w in old if w.start >= came_back - NEAR_SECONDS]
    new = [w for w in new if w.end <= came_back + NEAR_SECONDS]
    return _shifts(engine, came_back, old, new) if old and new else []


def _shifts(engine: str, came_back: float, before: Sequence[Window], after: Sequence[Window]) -> list[Shift]:
    """Compare like cells; of several that shifted, the clearest stands for its quantity."""
    found: dict[str, tuple[float, Shift]] = {}
    for k, batch in _cells(after):
        sides = [[w for w in side if _alike(w, k, batch)] for side in (before, after)]
        for quantity in ("step time", "acceptance"):
            values = [_logs(side, quantity) for side in sides]
            z, first, second = _contrast(*values)
            if z >= MIN_Z and abs(second - first) >= MIN_SHIFT and z > found.get(quantity, (0.0,))[0]:
                shift = Shift(engine, came_back, quantity, math.exp(first), math.exp(second))
                found[quantity] = (z, shift)
    return [shift for _, shift in found.values()]


def _cells(windows: Sequence[Window]) -> set[tuple[frozenset[int], float]]:
    """Return draft lengths and batch sizes seen, batches rounded to steps of ``SAME_BATCH``."""
    step = math.log1p(SAME_BATCH)
    return {
        (w.draft_lens, math.exp(step * round(math.log(w.batch) / step)))
        for w in windows
        if w.draft_lens is not None and len(w.draft_lens) <= 1 and w.batch
    }


def _alike(window: Window, draft_lens: frozenset[int], batch: float) -> bool:
    own = window.batch
    return window.draft_lens == draft_lens and own is not None and abs(own / batch - 1) <= SAME_BATCH


def _logs(windows: Sequence[Window], quantity: str) -> list[float]:
    """Return the quantity's logs; first-position acceptance is the one that no change of K moves."""
    if quantity == "step time":
        return [math.log(w.step_seconds) for w in windows if w.step_seconds]
    rates = [
        w.counts.accepted_by_position[0] / w.counts.drafts
        for w in windows
        if w.counts.drafts and w.counts.accepted_by_position
    ]
    return [math.log(rate) for rate in rates if rate > 0]


def _contrast(before: Sequence[float], after: Sequence[float]) -> tuple[float, float, float]:
    """Return standard errors between two samples of logs, and their means; 0 where either is small."""
    if min(len(before), len(after)) < MIN_WINDOWS:
        return 0.0, 0.0, 0.0
    means, variances = [], []
    for side in (before, after):
        mean = sum(side) / len(side)
        means.append(mean)
        variances.append(sum((x - mean) ** 2 for x in side) / (len(side) - 1) / len(side))
    error = math.sqrt(sum(variances)) or 1e-9
    return abs(means[1] - means[0]) / error, means[0], means[1]
