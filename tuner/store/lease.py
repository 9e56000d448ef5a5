"""Who leads: one row, taken over when it stops moving, without comparing the clocks of two hosts."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

from sqlalchemy import select, update

from tuner.store.database import LEADER
from tuner.store.names import insert_into
from tuner.store.tables import events, leases

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import Connection

    from tuner.store.database import Database

LEAD = "lead"
"""Action of the event that a new leader adds, whose detail names its ``fence``: nothing deletes events, so
the highest fence is known although the lease's row is gone."""


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
        self.lost = ""
        """Why the lead went, in words, after a renewal was refused."""
        self._last = 0
        self._renewed = 0.0
        self._seen: tuple[int, int] | None = None
        self._seen_since = 0.0

    def try_acquire(self, monotonic: float) -> int | None:
        """Take the lease if it is free or its holder is dead; call it every few seconds while standing by.

        A row that is missing, as somebody deleted it or the file was replaced, is a free lease: it is made
        anew, with a fence above the one that this process had and the one that the newest leader told of.

        Args:
            monotonic: seconds of this process's monotonic clock.

        Returns:
            The fence for all writes, or ``None`` while another process leads.

        Raises:
            StoreError: the database cannot be asked, or its schema is not this release's.
        """
        found = self._database.read(_read)
        holder, *seen = ("", 0, 0) if found is None else found
        if holder == self.holder:
            self.fence = self._last = seen[0]
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
            floor = max(counters[0], self._last)
            if now_held is None:
                floor = max(floor, _told(connection))
                free = {"name": LEADER, "holder": "", "fence": counters[0], "renewals": counters[1]}
                connection.execute(
                    insert_into(connection, leases).on_conflict_do_nothing(index_elements=["name"]), [free]
                )
            elif now_held[0] == self.holder:
                return now_held[1]  # the answer to an earlier attempt was lost
            result = connection.execute(
                update(leases)
                .where(leases.c.name == LEADER, leases.c.holder == holder)
                .where(leases.c.fence == counters[0], leases.c.renewals == counters[1])
                .values(holder=self.holder, fence=floor + 1, renewals=counters[1] + 1)
            )
            return floor + 1 if result.rowcount else None

        self.fence = self._database.write(take, fence=None)
        self._last = max(self._last, self.fence or 0)
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

        def move(connection: Connection) -> str:
            result = connection.execute(
                update(leases)
                .where(leases.c.name == LEADER, leases.c.holder == self.holder, leases.c.fence == fence)
                .values(renewals=leases.c.renewals + 1)
            )
            if result.rowcount:
                return ""
            return "its row was deleted" if _read(connection) is None else "another process took it"

        self.lost = self._database.write(move, fence=None)
        if not self.lost:
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


def _read(connection: Connection) -> tuple[str, int, int] | None:
    """Return holder, fence and renewals; ``None`` where the row is missing."""
    row = connection.execute(
        select(leases.c.holder, leases.c.fence, leases.c.renewals).where(leases.c.name == LEADER)
    ).one_or_none()
    return None if row is None else (row[0], row[1], row[2])


def _told(connection: Connection) -> int:
    """Return the fence that the newest leader told of in the audit trail; 0 if it told of none."""
    detail = connection.scalar(
        select(events.c.detail).where(events.c.action == LEAD).order_by(events.c.id.desc()).limit(1)
    )
    fence = json.loads(detail or "{}").get("fence", 0)
    return fence if isinstance(fence, int) else 0
