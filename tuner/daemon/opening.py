"""The database of a configuration: opened, brought to this release's schema, and asked by the web server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner._exceptions import InputError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tuner.config import Config
    from tuner.daemon.leader import Leader
    from tuner.fleet import Window
    from tuner.store import EventRecord, FindingRecord, ScheduleRecord, Store


def opener(config: Config) -> Callable[[], Store]:
    """Return what opens the database, at head of the schema; it may be called until it succeeds."""

    def opened() -> Store:
        store = connect(config)
        try:
            store.migrate()
        except BaseException:
            store.close()
            raise
        return store

    return opened


def connect(config: Config) -> Store:
    """Return the database as it is, whatever its schema.

    Raises:
        StoreError: the address or the file cannot be used.
    """
    from tuner.store import open_store  # noqa: PLC0415 - SQLAlchemy and alembic cost 0.3 s

    return open_store(config.store.url, password=password(config))


def password(config: Config) -> Callable[[], str | None] | None:
    """Return what reads the password at each connection; ``None`` where none is configured."""
    path = config.store.password_file
    if path is None:
        return None

    def read() -> str | None:
        from tuner.config import read_secret  # noqa: PLC0415 - pydantic costs 0.2 s

        try:
            return read_secret(path)
        except InputError as error:
            raise StoreError(str(error), retryable=True) from None

    return read


class OpenedHistory:
    """The database for the API, once the leader could open it."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader

    @property
    def _store(self) -> Store:
        if self._leader.store is None:
            raise StoreError(f"the database is not open: {self._leader.problem}", retryable=True)
        return self._leader.store

    def schedules(self, pool: str | None = None, limit: int = 50) -> Sequence[ScheduleRecord]:
        """Return schedule versions, newest first."""
        return self._store.schedules(pool, limit)

    def findings(self, *, active_only: bool = True) -> Sequence[FindingRecord]:
        """Return findings, newest first."""
        return self._store.findings(active_only=active_only)

    def events(self, limit: int) -> Sequence[EventRecord]:
        """Return the audit trail, newest first."""
        return self._store.events(limit)

    def recent_windows(self, pool: str, since: float, limit: int) -> Sequence[Window]:
        """Return windows of a pool, oldest first."""
        return self._store.recent_windows(pool, since, limit)
