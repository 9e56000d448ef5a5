"""What the database refuses, by who asked: one finding while anything is refused, one log line per change."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tuner.daemon.findings import store_unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from tuner.daemon.logs import Logger
    from tuner.daemon.notices import Notices


class Trouble:
    """Remembers whose last use of the database failed; safe to use from any thread.

    By who asked, because one may be refused while another is served: a lease that is renewed says nothing
    about a table that this user may not write.
    """

    def __init__(self, notices: Notices, log: Logger) -> None:
        self._notices = notices
        self._log = log
        self._lock = threading.Lock()
        self._errors: dict[str, str] = {}
        self.waiting: Callable[[], int] = lambda: 0
        """Says how many windows wait."""

    @property
    def errors(self) -> dict[str, str]:
        """Who -> why it was refused, for all that were refused last."""
        with self._lock:
            return dict(self._errors)

    def failed(self, who: str, error: str, *, told: bool = False) -> None:
        """Note that the database refused; ``told`` if that is in the log already."""
        with self._lock:
            new = self._errors.pop(who, "") != error and not told
            self._errors[who] = error
            store_unavailable(self._notices, error, self.waiting())
        if new:
            self._log.warning("database refuses", work=who, error=error)

    def worked(self, who: str) -> None:
        """Note that the database did what was asked."""
        with self._lock:
            if self._errors.pop(who, None) is None:
                return
            left = list(self._errors.values())
            if left:
                store_unavailable(self._notices, left[-1], self.waiting())
                return
            self._notices.clear("store_unavailable")
        self._log.info("database works again")
