"""Windows on their way to the database: bounded, in order, never in the way of a scrape."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from tuner._exceptions import FencedError, StoreError
from tuner.observe.wording import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.daemon.leader import Leader
    from tuner.daemon.logs import Logger
    from tuner.daemon.notices import Notices
    from tuner.daemon.trouble import Trouble
    from tuner.fleet import Window

BUFFERED = 20_000
"""Windows that may wait: 5 minutes of 1 000 engines at 15 s, 100 minutes of 50. About 1.5 KB each, 30 MB."""
WINDOWS = "windows"
"""Who this is, where it is told that the database refuses."""
AT_ONCE = 2000
"""Windows of one transaction: a round of 1 000 engines with two routes. SQLite writes them in about 0.1 s,
for which other writers wait."""


class Writer:
    """Takes windows from the scrape job and writes them with the fence."""

    def __init__(
        self, leader: Leader, notices: Notices, trouble: Trouble, log: Logger, *, capacity: int = BUFFERED
    ) -> None:
        self._leader = leader
        self._notices = notices
        self._trouble = trouble
        self._log = log
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._waiting: deque[Window] = deque(maxlen=capacity)
        self._kicked = threading.Event()
        self._thread: threading.Thread | None = None
        self._ending = False
        self._fresh = 0
        """Windows of the last round, until an attempt to write them failed."""
        self.dropped = 0
        """Windows that were dropped from a full buffer since the start."""

    @property
    def waiting(self) -> int:
        """Windows that are not written yet."""
        return len(self._waiting)

    @property
    def overdue(self) -> int:
        """Windows that wait for longer than a round: those of the last one are written in a moment."""
        return max(0, len(self._waiting) - self._fresh)

    def start(self) -> None:
        """Write in a thread of its own from now on; without, :meth:`put` writes before it returns."""
        self._thread = threading.Thread(target=self._write_on, name="writer", daemon=True)
        self._thread.start()

    def stop(self, seconds: float) -> bool:
        """Write what waits and end; return whether that was done in time."""
        self._ending = True
        if self._thread is None:
            return self.flush()
        self._kicked.set()
        self._thread.join(seconds)
        return not self._thread.is_alive() and not self._waiting

    def put(self, windows: Sequence[Window]) -> None:
        """Take windows; the oldest that wait are dropped where there is no room."""
        self._keep(windows, newest=True)
        self._fresh = len(windows)
        if self._thread is None:
            self._try()
        else:
            self._kicked.set()

    def clear(self) -> int:
        """Drop what waits, as another leader writes it; return how much that was."""
        with self._lock:
            count = len(self._waiting)
            self._waiting.clear()
            return count

    def flush(self) -> bool:
        """Write what waits, in transactions of bounded size; return whether nothing is left."""
        with self._writing:
            while self._waiting:
                store, fence = self._leader.store, self._leader.fence
                if store is None or fence is None:
                    return False
                with self._lock:
                    batch = [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]
                try:
                    store.add_windows(batch, fence=fence)
                except FencedError as error:
                    # Kept until it is known whether another leads: a row may have been deleted.
                    self._keep(batch, newest=False)
                    self._leader.lost(str(error))
                    return False
                except StoreError as error:
                    self._keep(batch, newest=False)
                    self._trouble.failed(WINDOWS, str(error))
                    return False
                self._trouble.worked(WINDOWS)
            return True

    def _try(self) -> None:
        """Write what waits; what cannot be written is overdue at once."""
        if not self.flush():
            self._fresh = 0

    def _write_on(self) -> None:
        while True:
            self._kicked.wait()
            self._kicked.clear()
            ending = self._ending
            try:
                self._try()
            except Exception as error:  # noqa: BLE001 - a thread that ends would stop all writing in silence
                self._log.error("windows not written", error=f"{type(error).__name__}: {error}")
            if ending:
                return

    def _keep(self, windows: Sequence[Window], *, newest: bool) -> None:
        """Hold windows at the new or the old end; where there is no room the oldest go."""
        with self._lock:
            room = (self._waiting.maxlen or 0) - len(self._waiting)
            lost = max(0, len(windows) - room)
            if newest:
                self._waiting.extend(windows)
            else:
                self._waiting.extendleft(reversed(windows[lost:]))
            self.dropped += lost
        if lost:
            self._notices.note(
                "windows_dropped",
                "warning",
                f"{counted(self.dropped, 'window', 'was')} dropped, those of routes included and the oldest "
                "first, since the database does not take them: bring it back; what was dropped is missing "
                "from reports, not from the next plan.",
                evidence={"dropped": self.dropped, "buffer": self._waiting.maxlen},
                lasting=3600.0,
            )
