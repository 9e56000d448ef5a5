"""Who leads: one row, taken over when it stops moving, without comparing the clocks of two hosts."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from sqlalchemy import select, update

from tuner.store.database import LEADER
from tuner.store.tables import leases

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import Connection

    from tuner.store.database import Database


class LeaseKeeper:
    """One process's view of the lease.

    The holder raises a counter at each renewal. A stand-by remembers the counter and when, by its own
    monotonic clock, it first saw it: unmoved for ``ttl``, the holder is taken for dead. Each acquisition
    raises the fence, and every write of a lower one is refused by the database, so a holder that only slept
    does no harm.
    """

    def __init__(self, database: Database, holder: str, ttl: float, check: Callable[[], None]) -> None:
        """Prepare to stand by.

        Args:
            database: where the lease is.
            holder: name for people, such as host and process; made unique here.
            ttl: seconds without renewal after which the lease may be taken.
            check: raises unless the schema is this release's; called before the lead is taken.
        """
        self._database = database
        self._check = check
        self.holder = f"{holder}#{uuid.uuid4().hex[:12]}"
        self.ttl = ttl
        self.fence: int | None = None
        """Fence held; ``None`` while standing by."""
        self._renewed = 0.0
        self._seen: tuple[int, int] | None = None
        self._seen_since = 0.0

    def try_acquire(self, monotonic: float) -> int | None:
        """Take the lease if it is free or its holder is dead; call it every few seconds while standing by.

        Args:
            monotonic: seconds of this process's monotonic clock.

        Returns:
            The fence for all writes, or ``None`` while another process leads.

        Raises:
            StoreError: the database cannot be asked, or its schema is not this release's.
        """
        holder, *seen = self._database.read(_read)
        if holder == self.holder:
            self.fence = seen[0]
            self._renewed = monotonic
            return self.fence
        self.fence = None
        counters = (seen[0], seen[1])
        if holder:
            if counters != self._seen:
                self._seen, self._seen_since = counters, monotonic
            if monotonic - self._seen_since < self.ttl:
                return None
        self._check()

        def take(connection: Connection) -> int | None:
            now_held = _read(connection)
            if now_held[0] == self.holder:
                return now_held[1]  # the answer to an earlier attempt was lost
            result = connection.execute(
                update(leases)
                .where(leases.c.name == LEADER, leases.c.holder == holder)
                .where(leases.c.fence == counters[0], leases.c.renewals == counters[1])
                .values(holder=self.holder, fence=counters[0] + 1, renewals=counters[1] + 1)
            )
            return counters[0] + 1 if result.rowcount else None

        self.fence = self._database.write(take, fence=None)
        self._seen = None
        self._renewed = monotonic
        return self.fence

    def renew(self, monotonic: float) -> bool:
        """Show that this process lives; call it several times per ``ttl``.

        Returns:
            Whether it still leads.

        Raises:
            StoreError: the database cannot be asked; it leads until :meth:`expired` says otherwise.
        """
        fence = self.fence
        if fence is None:
            return False

        def move(connection: Connection) -> bool:
            result = connection.execute(
                update(leases)
                .where(leases.c.name == LEADER, leases.c.holder == self.holder, leases.c.fence == fence)
                .values(renewals=leases.c.renewals + 1)
            )
            return bool(result.rowcount)

        if self._database.write(move, fence=None):
            self._renewed = monotonic
            return True
        self.fence = None
        return False

    def expired(self, monotonic: float) -> bool:
        """Tell whether another process may have taken the lead: not renewed for ``ttl``, or not held."""
        return self.fence is None or monotonic - self._renewed >= self.ttl

    def release(self) -> None:
        """Give the lease up, so that a stand-by need not wait; nothing if it is not held.

        Raises:
            StoreError: the database cannot be told; the stand-by waits for ``ttl`` then.
        """
        fence, self.fence = self.fence, None
        if fence is None:
            return

        def give_up(connection: Connection) -> None:
            connection.execute(
                update(leases)
                .where(leases.c.name == LEADER, leases.c.holder == self.holder, leases.c.fence == fence)
                .values(holder="", renewals=leases.c.renewals + 1)
            )

        self._database.write(give_up, fence=None)


def _read(connection: Connection) -> tuple[str, int, int]:
    """Return holder, fence and renewals."""
    row = connection.execute(
        select(leases.c.holder, leases.c.fence, leases.c.renewals).where(leases.c.name == LEADER)
    ).one()
    return row[0], row[1], row[2]
