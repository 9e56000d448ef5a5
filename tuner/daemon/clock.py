"""Time: the system's clock, one that tests move, and one that goes on steadily through steps of the wall.

The only module outside the command line that reads the wall clock. Everything else takes ``now`` as an
argument, unix seconds by a :class:`SteadyClock`.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

STEP_SECONDS = 2.0
"""Change of wall against monotonic time, from one look to the next, that is called a step. NTP slews by
0.5 ms a second at most, which is 0.5 ms between two looks a second apart; leap seconds stay below it."""

SLEW = 0.001
"""Most of the time gone by that steady time gives way to follow the wall, twice what NTP may slew: a window
of 15 s is told 15 ms too long or short at most."""


class Clock(Protocol):
    """Two readings: what people call the time, and what never goes back."""

    def now(self) -> float:
        """Return unix seconds."""

    def monotonic(self) -> float:
        """Return seconds since some moment; never goes back, stands still while the host is suspended."""


class SystemClock:
    """The host's clock."""

    def now(self) -> float:
        """Return unix seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds since the host was started."""
        return time.monotonic()


class VirtualClock:
    """A clock that stands still until it is told to go on."""

    def __init__(self, now: float = 1_750_000_000.0, monotonic: float = 1000.0) -> None:
        self._now = now
        self._monotonic = monotonic

    def now(self) -> float:
        """Return unix seconds."""
        return self._now

    def monotonic(self) -> float:
        """Return seconds that only :meth:`advance` moves."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        assert seconds >= 0.0
        self._now += seconds
        self._monotonic += seconds

    def step(self, seconds: float) -> None:
        """Set the wall clock on or back without time passing."""
        self._now += seconds


class SteadyClock:
    """Wall time that goes on with monotonic time and follows the wall slowly; steps are reported, not taken.

    Between two calls of :meth:`settle` nothing that is dated by it can go back or leap, whatever is done
    to the host's clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen = clock.monotonic()
        self._offset = clock.now() - self._seen
        self._raw = self._offset

    def now(self) -> float:
        """Return unix seconds, as steady as monotonic time."""
        return self._clock.monotonic() + self._offset

    def monotonic(self) -> float:
        """Return monotonic seconds."""
        return self._clock.monotonic()

    def settle(self) -> float:
        """Follow the wall clock, and return by how many seconds it was stepped since the last call.

        Returns:
            0.0 where it was not; else the step, which :meth:`now` makes from here on.
        """
        with self._lock:
            monotonic = self._clock.monotonic()
            offset = self._clock.now() - monotonic
            elapsed, self._seen = monotonic - self._seen, monotonic
            moved, self._raw = offset - self._raw, offset
            if abs(moved) > STEP_SECONDS + SLEW * elapsed:
                step = offset - self._offset
                self._offset = offset
                return step
            most = SLEW * elapsed
            self._offset += max(-most, min(most, offset - self._offset))
            return 0.0
