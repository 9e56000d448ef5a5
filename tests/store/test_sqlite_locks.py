"""Several connections to one SQLite file: who waits, who may write, and what is said of a lock."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from tests.servers import wait_until
from tests.store.processes import child
from tests.store.samples import T0, series, window
from tuner._exceptions import StoreError
from tuner.store import database, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy.engine import Connection

    from tuner.store import Store


def test_the_trap_is_there(sqlite_store: Store, sqlite_file: Path) -> None:
    """What is avoided: a transaction that read before another's commit cannot write, and does not wait."""
    with closing(sqlite3.connect(sqlite_file, isolation_level=None, timeout=30)) as a:
        a.execute("begin")
        a.execute("select count(*) from series").fetchall()
        sqlite_store.add_windows([window()], fence=0)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            a.execute("update series set last_start = 0")


def test_the_first_writer_commits_and_the_second_waits(sqlite_store: Store) -> None:
    """A: begin, select; B: update, commit; A: update. A has the lock from its begin, B waits, both commit."""
    a_has_read, b_has_begun = threading.Event(), threading.Event()
    order: list[str] = []

    def a(connection: Connection) -> None:
        connection.execute(text("select count(*) from series")).all()
        a_has_read.set()
        assert b_has_begun.wait(30)
        connection.execute(text("update tiers set revision = revision + 1 where name = 'raw'"))
        order.append("a")

    def b() -> None:
        assert a_has_read.wait(30)
        b_has_begun.set()
        sqlite_store.add_windows([window()], fence=0)
        order.append("b")

    thread = threading.Thread(target=b)
    thread.start()
    sqlite_store._database.write(a, fence=0)
    thread.join(60)
    assert order == ["a", "b"]
    assert sqlite_store.recent_windows("chat", T0, 10) == [window()]


def test_readers_neither_wait_nor_hinder(sqlite_store: Store) -> None:
    """A reader keeps its moment while a writer commits; the writer does not wait for it."""
    sqlite_store.add_windows([window()], fence=0)

    def look(connection: Connection) -> tuple[int, int]:
        query = text("select count(*) from windows_raw")
        before = connection.scalar(query)
        assert sqlite_store.add_windows(series(3, start=T0 + 15), fence=0) == 3
        return int(before or 0), int(connection.scalar(query) or 0)

    assert sqlite_store._database.read(look) == (1, 1)
    assert len(sqlite_store.recent_windows("chat", T0, 10)) == 4


def test_readers_cannot_write(store: Store) -> None:
    """A unit of work that reads is refused a write by the database itself, on both."""
    with pytest.raises(StoreError, match="read-only"):
        store._database.read(lambda connection: connection.execute(text("delete from tiers")))
    store.add_windows([window()], fence=0)


def wait_shortly(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let new connections wait for a lock for a shorter time than in production."""
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.3)
    store.close()


def test_a_lock_of_another_process_is_named_and_passes(
    sqlite_store: Store, sqlite_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit is tried three times, then given back as retryable in one line; later it succeeds by itself."""
    tries: list[float] = []
    monkeypatch.setattr(time, "sleep", tries.append)
    wait_shortly(sqlite_store, monkeypatch)
    with closing(sqlite3.connect(sqlite_file, isolation_level=None)) as other:
        other.execute("begin immediate")
        with pytest.raises(StoreError, match="locked by another process") as refused:
            sqlite_store.add_windows([window()], fence=0)
        assert refused.value.retryable
        assert str(sqlite_file) in str(refused.value)
        assert "\n" not in str(refused.value)
        assert sqlite_store.recent_windows("chat", 0.0, 10) == [], "readers go on"
        other.execute("rollback")
    assert 1 <= len(tries) <= 2
    assert all(0 < pause < 1 for pause in tries)
    assert sqlite_store.add_windows([window()], fence=0) == 1


def test_a_lock_that_ends_in_time_is_not_noticed(
    sqlite_store: Store, sqlite_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole unit is repeated, so a lock that outlasts one attempt costs nothing but time."""
    wait_shortly(sqlite_store, monkeypatch)
    with closing(sqlite3.connect(sqlite_file, isolation_level=None, check_same_thread=False)) as other:
        other.execute("begin immediate")
        timer = threading.Timer(database.BUSY_SECONDS * 1.5, other.execute, ["rollback"])
        timer.start()
        assert sqlite_store.add_windows([window()], fence=0) == 1
        timer.join()


def test_a_unit_that_fails_leaves_nothing_behind(store: Store) -> None:
    """An error in the middle of a unit undoes all of it."""

    def half(connection: Connection) -> None:
        connection.execute(text("update tiers set revision = 77"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store._database.write(half, fence=0)
    assert store._database.read(lambda c: c.scalar(text("select max(revision) from tiers"))) == 0


def test_an_answer_lost_after_the_commit_does_not_do_things_twice(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit whose commit was done but not confirmed is repeated, and finds its own work."""
    session = store._database._writing
    monkeypatch.setattr(time, "sleep", lambda _: None)

    losing: list[bool] = []

    @contextmanager
    def lose_one_answer() -> Iterator[Connection]:
        with session() as connection:
            yield connection
        if losing:
            losing.pop()
            raise OperationalError("commit", None, busy())

    def arm() -> None:
        losing.append(True)

    monkeypatch.setattr(store._database, "_writing", lose_one_answer)

    arm()
    store.add_event("me", "push", {"pool": "chat"}, now=T0, fence=0)
    assert len(store.events()) == 1
    arm()
    assert store.once("report", T0, fence=0) is True
    assert store.once("report", T0, fence=0) is False
    arm()
    store.add_windows(series(3), fence=0)
    assert store.recent_windows("chat", T0, 10) == series(3)
    arm()
    assert store.lease("a", 20.0).try_acquire(0.0) == 1
    assert losing == [], "each call was answered at the second attempt"


def busy() -> sqlite3.OperationalError:
    """Return the driver's error of a lock, as a cause that is tried again on both databases."""
    error = sqlite3.OperationalError("lost")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    return error


def test_a_file_that_was_replaced_is_noticed(sqlite_store: Store, sqlite_file: Path) -> None:
    """What would be written to a deleted file is not lost in silence: the new file is opened and judged."""
    sqlite_store.add_windows([window()], fence=0)
    for suffix in ("", "-wal", "-shm"):
        sqlite_file.with_name(sqlite_file.name + suffix).unlink(missing_ok=True)
    with pytest.raises(StoreError, match="tuner db upgrade"):
        sqlite_store.add_windows([window()], fence=0)
    sqlite_store.migrate()
    assert sqlite_store.add_windows([window()], fence=0) == 1


def test_a_commit_reaches_the_disk(sqlite_store: Store) -> None:
    """WAL, and full synchronisation: a power cut loses nothing that was committed."""

    def ask(connection: Connection) -> tuple[object, ...]:
        names = ("journal_mode", "synchronous", "foreign_keys", "query_only")
        return tuple(connection.scalar(text(f"pragma {name}")) for name in names)

    assert sqlite_store._database.read(ask) == ("wal", 2, 1, 1)
    assert sqlite_store._database.write(ask, fence=0) == ("wal", 2, 1, 0)


def test_the_store_survives_a_kill_in_the_middle_of_a_write(sqlite_file: Path) -> None:
    """SIGKILL within a transaction: the file opens, is sound, and holds what was committed before."""
    url = f"sqlite:///{sqlite_file}"
    with closing(open_store(url)) as store:
        store.migrate()
    with child(url) as other:
        assert other.ask("store.add_windows(series(10), fence=0)") == 10
        flag = sqlite_file.with_name("deleted")
        other.send(f"delete_and_hang({str(flag)!r})")
        wait_until(flag.exists, "deletion by the other process")
        other.process.kill()
        other.process.wait()
    with closing(open_store(url)) as store:
        assert store.recent_windows("chat", T0, 100) == series(10)
        assert store.add_windows([window(T0 + 600)], fence=0) == 1
        assert store._database.read(lambda c: c.scalar(text("pragma integrity_check"))) == "ok"
