"""Which of several daemons on one database works: the one with the lease. The others stand by.

Only :meth:`Leader.tick` talks to the lease, from a job of its own, so that a database that hangs holds up
nothing else.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tuner._exceptions import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tuner.daemon.logs import Logger
    from tuner.store import LeaseKeeper, Store


class Leader:
    """Opens the database, takes the lease when it is free, renews it, and knows when it is lost."""

    def __init__(
        self,
        opened: Callable[[], Store],
        holder: str,
        ttl: float,
        monotonic: Callable[[], float],
        log: Logger,
    ) -> None:
        """Take how the database is opened, at head of the schema, and who asks for the lease.

        Args:
            opened: raises ``StoreError`` while it cannot; asked again at every tick.
            holder: name of this process in the lease.
            ttl: seconds for which a silent leader keeps the lease.
            monotonic: the clock that renewals are measured by.
            log: where changes are told.
        """
        self._opened = opened
        self._holder = holder
        self._ttl = ttl
        self._monotonic = monotonic
        self._log = log
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._lease: LeaseKeeper | None = None
        self._fence: int | None = None
        self._renewed = 0.0
        self.problem = "the database is not opened yet"
        """Why the database cannot be used, one line; empty while it can."""
        self.followed = False
        """Whether another daemon leads, or did, since this one lost the lead: what waited here is written
        there."""
        self._last: int | None = None
        self._doubtful = False
        self.asked = False
        """Whether the lease was asked for once, whatever came of it."""

    @property
    def store(self) -> Store | None:
        """The database, ``None`` until it could be opened."""
        return self._store

    @property
    def fence(self) -> int | None:
        """The number that every write carries; ``None`` on a stand-by."""
        return self._fence

    @property
    def sure(self) -> bool:
        """Whether nobody else can have the lease: it was renewed less than its life ago."""
        return self._fence is not None and self._monotonic() - self._renewed < self._ttl

    def tick(self) -> None:
        """Open, take or renew, whichever is next. A database that fails is told of and tried again."""
        try:
            self._tick()
        except StoreError as error:
            if self.problem != str(error):
                self._log.warning("database unavailable", error=str(error))
            self.problem = str(error)
        else:
            if self.problem and self.asked:
                self._log.info("database available")
            self.problem = ""
        finally:
            self.asked = True

    def _tick(self) -> None:
        if self._store is None:
            self._store = self._opened()
        if self._lease is None:
            self._lease = self._store.lease(self._holder, self._ttl)
        asked = self._monotonic()
        try:
            if self._fence is None:
                self._take(self._store, self._lease, asked)
            elif self._lease.renew(asked):
                self._renewed = asked
            else:
                self.lost(f"the lease was not renewed: {self._lease.lost}")
        except StoreError as error:
            self._doubtful = True
            if not error.retryable:  # such as tables that are gone: nothing is led by renewing no row
                self.lost(str(error))
            raise

    def _take(self, store: Store, lease: LeaseKeeper, asked: float) -> None:
        """Ask for the lease, in a database whose file may have been replaced since it failed."""
        if self._doubtful:
            found = store.revision()
            if found.current != found.head:
                store.migrate()
            self._doubtful = False
        fence = lease.try_acquire(asked)
        if fence is None:
            self.followed = True
            return
        if self._last is not None and fence > self._last + 1:
            self.followed = True
        with self._lock:
            self._fence, self._renewed, self._last = fence, asked, fence
        self._log.info("leading", fence=fence)

    def lost(self, why: str) -> None:
        """Stand by from now on: a renewal or a write was refused."""
        with self._lock:
            if self._fence is None:
                return
            self._fence = None
            self.followed = False
        self._log.warning("standing by", reason=why)

    def release(self) -> None:
        """Give the lease back, so that a stand-by takes over at once."""
        with self._lock:
            held, self._fence = self._fence is not None, None
        if held and self._lease is not None:
            try:
                self._lease.release()
            except StoreError as error:
                self._log.warning("lease not released: a stand-by takes it when it ends", error=str(error))


class WithoutDatabase(Leader):
    """Leads alone and remembers nothing: for a dry run."""

    def __init__(self, monotonic: Callable[[], float], log: Logger) -> None:
        """Lead at once."""
        super().__init__(_refuse, "", 0.0, monotonic, log)
        self._fence = 0
        self.problem = ""
        self.asked = True

    @property
    def sure(self) -> bool:
        """Whether nobody else can lead: there is nothing to share."""
        return True

    def tick(self) -> None:
        """Stay as it is."""


def _refuse() -> Store:
    raise StoreError("a dry run opens no database")
