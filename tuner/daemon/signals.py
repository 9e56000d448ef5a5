"""Signals of the process, held from the first moment: what was asked, and an end that comes for certain."""

from __future__ import annotations

import os
import signal
import threading
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

HELD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SAME_SECONDS = 1.0
"""Time within which a second signal is the first one again: timeout(1) and Ctrl-C reach a process both
directly and by its group."""
LAST_SECONDS = 9.5
"""When a process that was asked to end is ended whatever hangs: half a second before the ten that are
promised. The steps of an end that all hang take 10.5 s together."""


class Signals:
    """Notes what is asked; a handler takes no lock that the code it interrupts may hold."""

    def __init__(self, *, last_seconds: float = LAST_SECONDS) -> None:
        self._last_seconds = last_seconds
        self._woken: SimpleQueue[None] = SimpleQueue()
        self._asked_to_end: SimpleQueue[float] = SimpleQueue()
        self._asked = 0.0
        self._before: dict[int, Any] = {}
        self.ending = False
        """Whether the process was asked to end."""
        self.hangup = False
        """Whether the settings shall be read anew; set back by who does so."""

    def hold(self) -> None:
        """Take the signals from their defaults, which would end the process in the middle of its start."""
        self._before = {number: signal.signal(number, self._signalled) for number in HELD}
        threading.Thread(target=self._end_at_last, name="last end", daemon=True).start()

    def give_back(self) -> None:
        """Put back what was before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def wait(self, seconds: float) -> None:
        """Wait for a signal, at most so long."""
        try:
            self._woken.get(timeout=seconds)
        except Empty:
            return

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        """Note a signal; the second that asks for the end is obeyed at once."""
        if number == signal.SIGHUP:
            self.hangup = True
        elif not self.ending:
            self.ending = True
            self._asked = time.monotonic()
            self._asked_to_end.put(self._asked)
        elif time.monotonic() - self._asked > SAME_SECONDS:
            os._exit(128 + number)
        self._woken.put(None)

    def _end_at_last(self) -> None:
        """End the process some time after it was asked to, wherever its main thread hangs then."""
        asked = self._asked_to_end.get()
        time.sleep(max(asked + self._last_seconds - time.monotonic(), 0.0))
        os._exit(0)
