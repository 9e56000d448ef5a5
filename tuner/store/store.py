"""The store: one object for all that is remembered. Every call is one short transaction."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from tuner.store import journal, windows
from tuner.store.database import Database
from tuner.store.lease import LeaseKeeper
from tuner.store.retention import retain
from tuner.store.rollup import roll_up
from tuner.store.schema import Revision, migrate, refuse_unless_current, revision
from tuner.store.size import size_bytes
from tuner.store.versions import active_schedule, propose_schedule, schedules

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tuner.fleet import Finding, Schedule, Window
    from tuner.store.records import (
        Deleted,
        EventRecord,
        FindingRecord,
        FitRecord,
        RollUp,
        ScheduleRecord,
    )


MOST_ROWS = 2**31 - 1
"""Largest limit of a query that PostgreSQL takes for an integer without asking."""


def open_store(url: str, *, password: str | Callable[[], str | None] | None = None) -> Store:
    """Open a database without touching its schema; call :meth:`Store.migrate` or :meth:`Store.check` first.

    Args:
        url: ``sqlite:////absolute/path`` or ``postgresql+psycopg://user@host/database``.
        password: for PostgreSQL; a callable is asked at each connection, so a changed file is followed.

    Raises:
        StoreError: the URL or the file cannot be used, with the remedy.
    """
    return Store(Database(url, password=password))


class Store:
    """What is remembered, on SQLite or PostgreSQL. Safe to use from several threads.

    Every method may raise :class:`tuner._exceptions.StoreError`, one line that names place and remedy;
    ``retryable`` tells that the same call may succeed later. Every writing method takes the ``fence`` of the
    lease and raises :class:`tuner._exceptions.FencedError` when another process has the lead; the fence is 0
    before anyone had it.
    """

    def __init__(self, database: Database) -> None:
        """Use ``database``."""
        self._database = database

    def __repr__(self) -> str:
        """Return the place without credentials."""
        return f"Store({self._database.place})"

    @property
    def place(self) -> str:
        """File or URL, without credentials."""
        return str(self._database.place)

    @property
    def checked_out(self) -> int:
        """Connections in use now; 0 between calls."""
        return self._database.checked_out

    def close(self) -> None:
        """Close all connections."""
        self._database.close()

    def migrate(self) -> Revision:
        """Bring the schema to this release's; a process that does so at the same time is waited for."""
        return migrate(self._database)

    def revision(self) -> Revision:
        """Return the schema's version and the one that this release wants."""
        return revision(self._database)

    def check(self) -> None:
        """Raise ``StoreError`` unless the schema is this release's."""
        refuse_unless_current(self._database.place, self.revision())

    def lease(self, holder: str, ttl: float) -> LeaseKeeper:
        """Return this process's keeper of the lead; ``ttl`` in seconds."""
        return LeaseKeeper(self._database, holder, ttl, self.check)

    def add_windows(self, new: Sequence[Window], *, fence: int) -> int:
        """Add windows; one that is there already, by pool, engine, route and start, is left as it is.

        Returns:
            How many were new.
        """
        if not new:
            return 0
        return self._database.write(lambda connection: windows.add(connection, new), fence=fence)

    def recent_windows(self, pool: str, since: float, limit: int) -> list[Window]:
        """Return the newest ``limit`` windows of ``pool`` that begin at ``since`` or later, oldest first.

        As they were observed while those are kept, before that merged by minute, before that by hour.
        """
        return self._database.read(lambda connection: windows.recent(connection, pool, since, _rows(limit)))

    def spread_windows(self, pool: str, since: float, now: float, limit: int) -> list[Window]:
        """Return windows of ``pool`` from all of ``[since, now]``, oldest first, ``limit // 2`` of a stretch.

        For who begins to remember: the newest of a large pool alone are minutes of one load.
        """
        return self._database.read(
            lambda connection: windows.spread(connection, pool, since, now, _rows(limit))
        )

    def roll_up(self, now: float, *, fence: int) -> RollUp:
        """Merge windows by minute and by hour; may be stopped at any moment and run again."""
        return roll_up(self._database, now, fence=fence)

    def retain(self, now: float, raw: float, minute: float, hour: float, *, fence: int) -> Deleted:
        """Delete what is older than ``raw``, ``minute`` and ``hour`` seconds, never what is not rolled up."""
        return retain(self._database, now, raw, minute, hour, fence=fence)

    def size_bytes(self) -> int:
        """Return bytes of the database: the files of SQLite, tables and indices of PostgreSQL."""
        return size_bytes(self._database)

    def save_decision(self, fits: Sequence[FitRecord], *, now: float, fence: int) -> tuple[int, ...]:
        """Save the fits of one cycle; the same fit of the same moment is saved once.

        Returns:
            Their numbers in the order given, for ``fit_ids`` of a schedule.
        """
        return self._database.write(lambda connection: journal.save_fits(connection, fits, now), fence=fence)

    def latest_fits(self, pool: str) -> list[FitRecord]:
        """Return the newest fit of each kind and route of ``pool``."""
        return self._database.read(lambda connection: journal.latest_fits(connection, pool))

    def propose_schedule(
        self,
        pool: str,
        schedule: Schedule,
        *,
        state: str,
        why: str,
        fit_ids: Sequence[int] = (),
        now: float,
        fence: int,
    ) -> ScheduleRecord:
        """Save a schedule as ``proposed`` or ``active``; the one before in that state is superseded.

        The content that is newest in that state is not saved again, and a proposal of what is active
        already withdraws the open proposal.
        """
        return self._database.write(
            lambda connection: propose_schedule(connection, pool, schedule, state, why, tuple(fit_ids), now),
            fence=fence,
        )

    def schedules(self, pool: str | None = None, limit: int = 50) -> list[ScheduleRecord]:
        """Return versions, newest first."""
        return self._database.read(lambda connection: schedules(connection, pool, _rows(limit)))

    def active_schedule(self, pool: str) -> ScheduleRecord | None:
        """Return the version in force."""
        return self._database.read(lambda connection: active_schedule(connection, pool))

    def record_findings(self, active: Sequence[Finding], *, now: float, fence: int) -> None:
        """Open findings that are new, touch those that stay, close those that are not among ``active``."""
        self._database.write(lambda connection: journal.record_findings(connection, active, now), fence=fence)

    def findings(self, *, active_only: bool = True, limit: int = 1000) -> list[FindingRecord]:
        """Return findings, newest first."""
        return self._database.read(
            lambda connection: journal.findings_of(connection, active_only, _rows(limit))
        )

    def add_event(
        self,
        actor: str,
        action: str,
        subject: Mapping[str, str],
        why: str = "",
        detail: Mapping[str, Any] | None = None,
        *,
        now: float,
        fence: int,
    ) -> None:
        """Add a line to the audit trail, which nothing changes or deletes."""
        token = uuid.uuid4().hex
        self._database.write(
            lambda connection: journal.add_event(
                connection, token, actor, action, subject, why, detail or {}, now
            ),
            fence=fence,
        )

    def events(self, limit: int = 100) -> list[EventRecord]:
        """Return the audit trail, newest first."""
        return self._database.read(lambda connection: journal.events_of(connection, _rows(limit)))

    def once(self, job: str, period_start: float, *, fence: int) -> bool:
        """Tell whether this is the first call for ``job`` and ``period_start``, and remember it."""
        token = uuid.uuid4().hex
        return self._database.write(
            lambda connection: journal.once(connection, job, period_start, token), fence=fence
        )


def _rows(limit: int) -> int:
    """Return a limit that both databases take: SQLite reads a negative one as none at all."""
    return min(max(limit, 0), MOST_ROWS)
