"""Calls that fail leave no connection in use, and many at once do not starve each other."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from tests.store.samples import T0, series, window
from tuner._exceptions import FencedError, StoreError
from tuner.store import database

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sqlalchemy.engine import Connection

    from tuner.store import Store


def test_two_hundred_failing_calls_leave_nothing_in_use(store: Store) -> None:
    """Statements that fail, work that raises, fences that are too low: the pool is whole afterwards."""
    calls: list[Callable[[], object]] = [
        lambda: store._database.read(lambda c: c.execute(text("select * from nothing"))),
        lambda: store._database.write(lambda c: c.execute(text("insert into tiers values (1)")), fence=0),
        lambda: store.add_windows([window()], fence=9),
        lambda: store._database.write(lambda _: 1 / 0, fence=0),
    ]
    for number in range(200):
        with pytest.raises((StoreError, FencedError, ZeroDivisionError)):
            calls[number % len(calls)]()
        assert store.checked_out == 0
    assert store.add_windows([window()], fence=0) == 1


def test_readers_at_once_are_all_answered(store: Store) -> None:
    """Four times as many threads as connections, a writer among them: nobody fails, none is left in use."""
    store.add_windows(series(50), fence=0)
    failures: list[BaseException] = []
    start = threading.Barrier(4 * database.POOL_SIZE + 1)

    def read() -> None:
        start.wait(30)
        try:
            for _ in range(5):
                assert len(store.recent_windows("chat", T0, 50)) == 50
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test has to see it
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(4 * database.POOL_SIZE)]
    for thread in threads:
        thread.start()
    start.wait(30)
    for number in range(5):
        assert store.add_windows([window(T0 + 10_000 + number)], fence=0) == 1
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert store.checked_out == 0


def test_a_pool_in_use_is_told_in_one_line(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all connections held, a further call is refused as retryable instead of waiting for ever."""
    monkeypatch.setattr(store._database.engine.pool, "_timeout", 0.05)

    def nest(depth: int) -> object:
        def work(_: Connection) -> object:
            return nest(depth - 1) if depth else store.revision()

        return store._database.read(work)

    with pytest.raises(StoreError, match="all connections are in use") as refused:
        nest(database.POOL_SIZE)
    assert refused.value.retryable
    assert store.checked_out == 0


def test_no_lock_is_held_between_calls(sqlite_store: Store, sqlite_file: Path) -> None:
    """Between two calls anybody can write: no session stays open while a daemon talks to engines."""
    sqlite_store.add_windows([window()], fence=0)
    sqlite_store.recent_windows("chat", T0, 10)
    sqlite_store.roll_up(T0 + 7200, fence=0)
    with closing(sqlite3.connect(sqlite_file, timeout=0, isolation_level=None)) as other:
        other.execute("begin exclusive")
        other.execute("rollback")
        busy, _, _ = other.execute("pragma wal_checkpoint(truncate)").fetchone()
        assert busy == 0
