"""Connections and units of work: short transactions that are kept whole or not at all."""

from __future__ import annotations

import os
import random
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from psycopg import IsolationLevel
from sqlalchemy import create_engine, event, exc, select

from tuner._exceptions import FencedError, StoreError
from tuner.store.errors import translate
from tuner.store.place import check_file, parse_place
from tuner.store.tables import leases

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator

    import psycopg
    from sqlalchemy.engine import Connection, Engine
    from sqlalchemy.pool import ConnectionPoolEntry

    from tuner.store.place import Place

T = TypeVar("T")

LEADER = "leader"
"""Name of the lease that writers are held to."""

POOL_SIZE = 5
"""Connections in all: the jobs (one writes at a time), the web server's readers, one to spare."""
POOL_TIMEOUT = 5.0
"""Seconds to wait for a connection; no unit of work lasts that long."""
BUSY_SECONDS = 2.0
"""Wait for a lock. Three attempts make 6 s at most, within the 10 s that a clean stop may take."""
ATTEMPTS = 3
RETRY_SECONDS = 5.0
"""No attempt begins later than this after the first."""
JITTER_SECONDS = (0.02, 0.2)
"""Pause before an attempt, uniform, so that two writers that collided do not again."""
CONNECT_SECONDS = 3
STATEMENT_MILLISECONDS = 30_000
"""A statement that takes longer is given up: the largest reads 60 000 rows, in about a second."""
MIGRATION_SECONDS = 60.0
"""Wait for another process that migrates."""
WAL_LIMIT_BYTES = 64 << 20
"""Size that the write-ahead log is cut to after a burst."""


class Database:
    """One database: reads see one moment, writes are fenced, repeated when it helps, and never half done."""

    def __init__(self, url: str, *, password: str | Callable[[], str | None] | None = None) -> None:
        """Check the place; the first connection is made at the first use.

        Raises:
            StoreError: the URL or the file cannot be used.
        """
        self.place = parse_place(url)
        self._password = password if password is not None else self.place.password
        if self.place.file is not None:
            check_file(self.place.file)
        self.engine = _sqlite(self.place) if self.place.file is not None else self._postgres()
        self._random = random.Random()  # noqa: S311 - jitter, no secret

    @property
    def is_sqlite(self) -> bool:
        """Whether this is SQLite; PostgreSQL otherwise."""
        return self.place.file is not None

    @property
    def checked_out(self) -> int:
        """Connections in use now."""
        return int(self.engine.pool.checkedout())  # type: ignore[attr-defined]  # QueuePool has it

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` on one moment of the database, read-only.

        Raises:
            StoreError: see :mod:`tuner.store.errors`.
        """
        return self._unit(work, self._reading)

    def write(self, work: Callable[[Connection], T], *, fence: int | None) -> T:
        """Run ``work`` in one transaction, committed unless it raises.

        It may run up to ``ATTEMPTS`` times, the last of which alone is kept, and must not count on a first
        run not to have been committed: an answer can be lost after the commit.

        Args:
            work: statements; no network, no long computation.
            fence: fence of the lease that the caller holds, ``None`` for the lease itself.

        Raises:
            FencedError: another process has the lead, or nobody as the lease's row is gone.
            StoreError: see :mod:`tuner.store.errors`.
        """

        def fenced(connection: Connection) -> T:
            if fence is not None:
                self._check_fence(connection, fence)
            return work(connection)

        return self._unit(fenced, self._writing)

    def _check_fence(self, connection: Connection, fence: int) -> None:
        """Compare fences under a lock, so that no other process takes the lead before this commits."""
        held = connection.scalar(select(leases.c.fence).where(leases.c.name == LEADER).with_for_update())
        if held is None:
            raise FencedError(
                f"{self.place}: the row of the lease was deleted: whoever takes the lead next makes it anew"
            )
        if held != fence:
            raise FencedError(
                f"{self.place}: fence {fence} is not the leader's, which is {held}: another tuner leads, "
                "stand by"
            )

    def _unit(self, work: Callable[[Connection], T], session: Callable[[], Any]) -> T:
        """Run one unit of work, again where that may help."""
        deadline = time.monotonic() + RETRY_SECONDS
        attempt = 1
        while True:
            try:
                with session() as connection:
                    return work(connection)
            except exc.SQLAlchemyError as error:
                refused, at_once = translate(error, self.place, self._secret())
            except (UnicodeError, OverflowError) as error:
                refused, at_once = StoreError(f"{self.place}: cannot hold such a value: {error}"), False
            if not at_once or attempt == ATTEMPTS or time.monotonic() > deadline:
                raise refused
            attempt += 1
            time.sleep(self._random.uniform(*JITTER_SECONDS))

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self.engine.connect() as connection:
            self._prepare(connection, writes=False)
            with connection.begin():
                yield connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self.engine.connect() as connection:
            self._prepare(connection, writes=True)
            with connection.begin():
                yield connection

    def _prepare(self, connection: Connection, *, writes: bool) -> None:
        """Say how the next transaction begins: readers see one moment, writers take the server's defaults.

        SQLAlchemy's own option would leave READ WRITE behind in the connection, which overrules a server
        that was turned read-only.
        """
        connection.execution_options(writes=writes)
        if not self.is_sqlite:
            driver: Any = connection.connection.dbapi_connection
            driver.isolation_level = None if writes else IsolationLevel.REPEATABLE_READ
            driver.read_only = None if writes else True

    @contextmanager
    def migrating(self) -> Iterator[Connection]:
        """Hold the database against all other writers and migrations until the block ends, then commit.

        Raises:
            StoreError: it is held by another process for longer than ``MIGRATION_SECONDS``.
        """
        try:
            with self.engine.connect() as connection:
                # One connection of its own, thrown away after: its time-outs and foreign keys are set apart.
                connection.detach()
                if self.is_sqlite:
                    connection.exec_driver_sql(f"PRAGMA busy_timeout = {MIGRATION_SECONDS * 1000:.0f}")
                    connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
                    connection.rollback()
                self._prepare(connection, writes=True)
                with connection.begin():
                    if not self.is_sqlite:
                        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{MIGRATION_SECONDS:.0f}s'")
                        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
                        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({ADVISORY_KEY})")
                    yield connection
        except exc.SQLAlchemyError as error:
            raise translate(error, self.place, self._secret())[0] from None

    def _secret(self) -> str | None:
        """Read the password, if one was given."""
        try:
            return self._password() if callable(self._password) else self._password
        except OSError:
            return None

    def _postgres(self) -> Engine:
        """Make the engine; the password reaches the driver alone, at each connection."""
        engine = create_engine(
            self.place.url,
            pool_size=POOL_SIZE,
            max_overflow=0,
            pool_timeout=POOL_TIMEOUT,
            pool_pre_ping=True,
            hide_parameters=True,
            connect_args={
                "connect_timeout": CONNECT_SECONDS,
                "application_name": "tuner",
                # A server that vanished without a word is noticed within 10 s instead of two hours.
                "keepalives_idle": 5,
                "keepalives_interval": 2,
                "keepalives_count": 3,
                "tcp_user_timeout": 10_000,
            },
        )

        @event.listens_for(engine, "do_connect")
        def give_password(
            _dialect: object, _record: object, _args: object, parameters: dict[str, Any]
        ) -> None:
            password = self._secret()
            if password:
                parameters["password"] = password

        @event.listens_for(engine, "connect")
        def set_limits(connection: psycopg.Connection, _record: object) -> None:
            with connection.cursor() as cursor:
                cursor.execute(f"SET lock_timeout = {BUSY_SECONDS * 1000:.0f}")
                cursor.execute(f"SET statement_timeout = {STATEMENT_MILLISECONDS}")
            connection.commit()

        return engine


ADVISORY_KEY = 0x74756E6572
"""``tuner`` in ASCII: the advisory lock that migrations take on PostgreSQL."""


def _sqlite(place: Place) -> Engine:
    """Make an engine whose transactions say themselves how they begin."""
    engine = create_engine(
        place.url,
        pool_size=POOL_SIZE,
        max_overflow=0,
        pool_timeout=POOL_TIMEOUT,
        hide_parameters=True,
    )
    assert place.file is not None
    file = place.file

    @event.listens_for(engine, "connect")
    def set_up(connection: sqlite3.Connection, record: ConnectionPoolEntry) -> None:
        # The driver would begin transactions by itself, deferred, and too late for a lock.
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000:.0f}")
        connection.execute("PRAGMA journal_mode = WAL")
        # Each commit, some 20 a minute, reaches the disk: a power cut loses nothing that was committed.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")
        record.info["file"] = _identity(file)

    @event.listens_for(engine, "checkout")
    def same_file(_connection: object, record: ConnectionPoolEntry, _proxy: object) -> None:
        if _identity(file) != record.info.get("file"):
            # The file was replaced or deleted: what is written to the old one is lost.
            raise exc.DisconnectionError

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("writes", False)
        # A reader that wants to write after another's commit is refused at once, whatever the time-out: so
        # writers take the lock first, and readers cannot write.
        connection.exec_driver_sql(f"PRAGMA query_only = {'OFF' if writes else 'ON'}")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _identity(file: os.PathLike[str]) -> tuple[int, int] | None:
    """Return what tells one file from another of the same name."""
    try:
        status = os.stat(file)  # noqa: PTH116 - called at each checkout
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def refuse(message: str) -> StoreError:
    """Return an error for what the database must never hold."""
    return StoreError(message, retryable=False)
