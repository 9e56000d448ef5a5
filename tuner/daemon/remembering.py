"""What is remembered between cycles, shared by the job that scrapes and the job that plans."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.cycle import Evidence
from tuner.fleet import POOLED_ROUTE
from tuner.recall import Recall
from tuner.serve.observed import Totals

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from tuner.fleet import Finding, Window
    from tuner.serve.observed import Observed


@dataclass(frozen=True, slots=True)
class Look:
    """What a cycle looks at."""

    evidence: Evidence
    now: float
    """When the cycle is dated: now, or the newest window's end where the clock was set back since."""


class Remembered:
    """Windows in memory, and counts of all that went by; safe to use from any thread."""

    def __init__(self, max_windows: int, half_life: float) -> None:
        self._lock = threading.Lock()
        self._recall = Recall(max_windows, half_life)
        self._totals = Totals()
        self._counted: Counter[tuple[str, str]] = Counter()

    def add(self, windows: Sequence[Window]) -> None:
        """Take windows that became final."""
        with self._lock:
            self._recall.add(windows)
            self._totals.add(windows)
            self._counted.update((w.pool, w.state.value) for w in windows if w.route == POOLED_ROUTE)

    def restore(self, windows: Iterable[Window]) -> None:
        """Take windows of before a restart: for the next cycle, not for the counts since the start."""
        with self._lock:
            self._recall.add(windows)

    def look(self, pools: Iterable[str], now: float, findings: Iterable[Finding]) -> Look:
        """Return the evidence of these pools."""
        with self._lock:
            windows = [window for pool in pools for window in self._recall.windows(pool, now)]
            latest = [window for pool in pools for window in self._recall.latest(pool)]
        newest = max((window.end for window in latest), default=now)
        return Look(Evidence(tuple(windows), tuple(findings), tuple(latest)), max(now, newest))

    def forget(self, now: float) -> None:
        """Drop what is too old to matter."""
        with self._lock:
            self._recall.forget(now)

    def keep(self, pools: Collection[str]) -> None:
        """Drop pools that are gone, windows and counts, so that nothing more is told of them."""
        with self._lock:
            self._recall.keep(pools)
            self._totals.keep(pools)
            for key in [key for key in self._counted if key[0] not in pools]:
                del self._counted[key]

    def resize(self, max_windows: int, half_life: float, now: float) -> None:
        """Take other bounds, and keep what is held within them."""
        with self._lock:
            old = self._recall
            if (old.max_windows, old.half_life) == (max_windows, half_life):
                return
            self._recall = Recall(max_windows, half_life)
            for pool in old.pools:
                self._recall.add(old.windows(pool, now))

    def held(self, pool: str) -> int:
        """Return the windows of a pool's engines that are held for the next cycle; those of routes apart."""
        with self._lock:
            return self._recall.held(pool, POOLED_ROUTE)

    def counted(self) -> Mapping[tuple[str, str], int]:
        """Return (pool, state) -> windows since the start."""
        with self._lock:
            return dict(self._counted)

    def observed(self, now: float) -> Observed:
        """Return accepted tokens per step, and goodput."""
        with self._lock:
            return self._totals.observed(now)
