"""A PostgreSQL that restarts, turns read-only, hangs or refuses: the store says so, and goes on by itself."""

from __future__ import annotations

import contextlib
import re
import time
import traceback
from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.servers import free_port
from tests.store.samples import T0, series, window
from tuner._exceptions import StoreError
from tuner.store import database, open_store, windows
from tuner.store.errors import scrub

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy.engine import Connection

    from tests.servers import PostgresServer
    from tuner.fleet import Window
    from tuner.store import Store

SECRET = "s3cr3t w'rd"  # noqa: S105 - made up


@pytest.fixture
def pg(postgres_url: str) -> Iterator[Store]:
    """A store with its tables on PostgreSQL."""
    with closing(open_store(postgres_url)) as opened:
        opened.migrate()
        yield opened
        assert opened.checked_out == 0


def refusal(store: Store) -> StoreError:
    """Return the error of a write; it is one line and says that the data should be kept."""
    with pytest.raises(StoreError) as refused:
        store.add_windows(series(3), fence=0)
    assert refused.value.retryable
    assert "\n" not in str(refused.value)
    assert store.checked_out == 0
    return refused.value


def test_a_restart_between_two_calls_is_not_noticed(pg: Store, postgres_server: PostgresServer) -> None:
    """Connections of the pool are tried before they are used, so none of them fails a call."""
    pg.add_windows([window()], fence=0)
    postgres_server.restart()
    assert pg.add_windows([window(T0 + 15)], fence=0) == 1
    assert len(pg.recent_windows("chat", 0.0, 10)) == 2


def test_a_crash_loses_nothing_that_was_saved(postgres_server: PostgresServer, pg: Store) -> None:
    """While the server is down each call is refused as retryable; when it is up again, calls go on."""
    pg.add_windows([window()], fence=0)
    postgres_server.execute("CHECKPOINT")
    postgres_server.stop(crash=True)
    try:
        assert "no connection" in str(refusal(pg))
        with pytest.raises(StoreError, match="start the server"):
            pg.recent_windows("chat", 0.0, 10)
    finally:
        postgres_server.start()
    assert pg.add_windows(series(3), fence=0) == 2
    assert pg.recent_windows("chat", 0.0, 10) == [window(), *series(3)[1:]]


def test_a_connection_cut_in_the_middle_of_a_unit_is_made_good(
    pg: Store, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole unit is repeated on a new connection, and counts once."""
    real = windows.add
    cuts: list[int] = []

    def cut_once(connection: Connection, new: Sequence[Window]) -> int:
        if not cuts:
            found = postgres_server.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'tuner'"
            )
            cuts.append(len(found))
        return real(connection, new)

    monkeypatch.setattr(windows, "add", cut_once)
    assert pg.add_windows(series(3), fence=0) == 3
    assert cuts[0] >= 1
    assert pg.recent_windows("chat", 0.0, 10) == series(3)


@pytest.mark.parametrize("how", ["whole server", "this database"])
def test_a_server_that_turns_read_only(pg: Store, postgres_server: PostgresServer, how: str) -> None:
    """Reads go on, writes are refused as retryable with the cause, and go on when the server allows them."""
    name = pg.place.rpartition("/")[2]
    turn = {
        "whole server": "ALTER SYSTEM SET default_transaction_read_only = {}",
        "this database": f"ALTER DATABASE {name} SET default_transaction_read_only = {{}}",
    }[how]
    pg.add_windows([window(T0 - 600)], fence=0)

    def set_to(value: str) -> None:
        postgres_server.execute(turn.format(value))
        postgres_server.execute("SELECT pg_reload_conf()")
        if how == "this database":
            # It takes hold in new sessions only, so the operator ends the old ones.
            postgres_server.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'tuner'"
            )

    set_to("on")
    try:
        _until_read_only(pg)
        assert "read-only" in str(refusal(pg))
        assert pg.recent_windows("chat", 0.0, 10) == [window(T0 - 600)]
        assert "read-only" in str(refusal(pg)), "after a read too"
        with pytest.raises(StoreError, match="read-only"):
            pg.lease("a", 20.0).try_acquire(0.0)
    finally:
        set_to("off")
    _until_written(pg)


def _until_read_only(store: Store) -> None:
    """Wait until the server has taken the change: sessions read the new settings between two statements."""
    for _ in range(200):
        try:
            store.once("probe", T0, fence=0)
        except StoreError:
            return
    pytest.fail("the server stayed writable")


def _until_written(store: Store) -> None:
    """Write until it is taken: no call but the same one again is needed."""
    for _ in range(200):
        with contextlib.suppress(StoreError):
            assert store.add_windows(series(3), fence=0) in (0, 3)
            return
    pytest.fail("the server stayed read-only")


def test_a_lock_of_another_session_is_named(pg: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for a lock is bounded, as on SQLite; readers go on."""
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.3)
    pg.close()
    plain = pg.place.replace("+psycopg", "")
    with psycopg.connect(plain) as other:
        other.execute("select * from leases for update")
        assert "locked by another process" in str(refusal(pg))
        assert pg.recent_windows("chat", 0.0, 10) == []
    assert pg.add_windows(series(3), fence=0) == 3


def test_a_server_that_is_not_there_is_refused_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that nobody listens on: one line with the place, retryable."""
    monkeypatch.setattr(time, "sleep", lambda _: None)
    port = free_port()
    with closing(open_store(f"postgresql+psycopg://tuner@127.0.0.1:{port}/tuner", password=SECRET)) as store:
        with pytest.raises(StoreError, match=f"127.0.0.1:{port}/tuner: no connection") as refused:
            store.revision()
        assert refused.value.retryable
        _holds_no_secret(refused.value)


def test_a_wrong_password_is_told_without_it(pg: Store, postgres_server: PostgresServer) -> None:
    """A server that is given the wrong password: the setting is named, the password is not."""
    name = pg.place.rpartition("/")[2]
    postgres_server.execute(f"DROP ROLE IF EXISTS locked_{name}")
    postgres_server.execute(f"CREATE ROLE locked_{name} LOGIN PASSWORD 'other'")
    postgres_server.execute(f"GRANT pg_read_all_data TO locked_{name}")
    rules = postgres_server.process.folder / "data" / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"host all locked_{name} 127.0.0.1/32 scram-sha-256\n{before}")
    try:
        postgres_server.execute("SELECT pg_reload_conf()")
        url = pg.place.replace("postgres@", f"locked_{name}@")
        asked: list[str] = []

        def password() -> str:
            asked.append(SECRET)
            return SECRET

        with closing(open_store(url, password=password)) as store:
            refused = _until_login_is_refused(store)
            assert "store.password_file" in str(refused)
            _holds_no_secret(refused)
            assert asked, "the password is read when it is used"
            postgres_server.execute(f"""ALTER ROLE locked_{name} PASSWORD 's3cr3t w''rd'""")
            assert store.revision().current is not None, "the right one is taken without a restart"
            assert "s3cr3t" not in f"{store!r} {store._database.engine.url!r} {store._database.engine!r}"
    finally:
        rules.write_text(before)
        postgres_server.execute("SELECT pg_reload_conf()")


def _until_login_is_refused(store: Store) -> StoreError:
    """Wait until the server has read its new rules."""
    for _ in range(200):
        try:
            store.revision()
        except StoreError as error:
            return error
        store.close()
    pytest.fail("the server never asked for a password")


def _holds_no_secret(error: StoreError) -> None:
    """Look for the password in all that may be printed of an error."""
    shown = "".join(traceback.format_exception(error)) + repr(error) + repr(error.__context__)
    assert "s3cr3t" not in shown
    assert not re.search(r"password=(?!\*\*\*)\S", str(error))


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("could not use password=hunter2 host=h", "could not use password=*** host=h"),
        ("in password = 'a b' here", "in password = *** here"),
        ("bad url postgresql://u:hunter2@h/db", "bad url postgresql://***@h/db"),
        ("first\nsecond hunter2", "first"),
        ("plain hunter2 in the middle", "plain *** in the middle"),
        ("", ""),
    ],
)
def test_what_a_driver_says_is_cleaned(said: str, shown: str) -> None:
    """Drivers may quote the connection string: one line is kept, and no password."""
    assert shown == scrub(said, "hunter2")
