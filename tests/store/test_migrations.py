"""The schema's way from nothing to this release's, on both databases, by one process at a time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text

from tests.store.processes import ROOT, child
from tests.store.samples import SCHEDULE, T0, window
from tuner._exceptions import StoreError
from tuner.store import Revision, open_store, schema
from tuner.store.tables import metadata

if TYPE_CHECKING:
    from pathlib import Path

    from tuner.store import Store


def alembic(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run alembic by its own command line, as an operator would."""
    return subprocess.run(
        [sys.executable, "-m", "alembic", "-c", "migrations/alembic.ini", "-x", f"url={url}", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=120,
    )


def tables(store: Store) -> set[str]:
    """Return the names of all tables."""
    return store._database.read(lambda connection: set(inspect(connection).get_table_names()))


def downgrade(store: Store) -> None:
    """Take all migrations back."""
    config = Config()
    config.set_main_option("script_location", str(schema.migrations_folder()))
    with store._database.migrating() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "base")


def test_there_is_one_head() -> None:
    """Two migrations that follow the same one would make an upgrade fail at the operator's."""
    assert len(schema.scripts().get_heads()) == 1


def test_a_second_head_is_caught(tmp_path: Path) -> None:
    """A copy of the migrations with a rival of the newest one is refused, by the names of both."""
    folder = tmp_path / "migrations"
    shutil.copytree(schema.migrations_folder(), folder, ignore=shutil.ignore_patterns("__pycache__"))
    [newest] = schema.scripts(folder).get_heads()
    parent = schema.scripts(folder).get_revision(newest)
    assert parent is not None
    rival = f"revision = 'r9998'\ndown_revision = {parent.down_revision!r}\n"
    (folder / "versions" / "r9998_rival.py").write_text(rival + "def upgrade(): ...\ndef downgrade(): ...\n")
    with pytest.raises(StoreError, match=f"2 heads .*{newest}, r9998"):
        schema.scripts(folder)


def test_the_migrations_make_the_tables_of_the_code(store: Store) -> None:
    """A fresh upgrade is what the code expects: tables, columns, types, keys and indices."""

    def compare(connection: Any) -> list[Any]:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, metadata))

    assert store._database.read(compare) == []


def test_alembic_check_finds_no_difference(url: str) -> None:
    """``alembic check`` by the command line agrees, and upgrade, downgrade and current work there too."""
    assert alembic(url, "upgrade", "head").returncode == 0
    checked = alembic(url, "check")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "No new upgrade operations detected" in checked.stdout
    assert str(schema.scripts().get_current_head()) in alembic(url, "current").stdout
    assert alembic(url, "downgrade", "base").returncode == 0


def test_alembic_without_a_database_says_how_to_name_one() -> None:
    """The command line names both ways to say which database is meant."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TUNER_")}
    ran = subprocess.run(
        [sys.executable, "-m", "alembic", "-c", "migrations/alembic.ini", "current"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        env=environment,
    )
    assert ran.returncode != 0
    assert "-x url=" in ran.stderr
    assert "TUNER_STORE__URL" in ran.stderr


def test_up_down_up(store: Store) -> None:
    """All the way down leaves nothing of ours behind, and the way up works again, with data in between."""
    store.add_windows([window()], fence=0)
    store.propose_schedule("chat", SCHEDULE, state="active", why="", now=T0, fence=0)
    downgrade(store)
    assert tables(store) == {"alembic_version"}
    assert store.revision().current is None
    store.migrate()
    store.check()
    assert store.schedules() == []
    assert store.add_windows([window()], fence=0) == 1


def test_a_store_that_stays_open_while_a_backup_is_restored_mixes_up_no_engines(store: Store) -> None:
    """Engines are numbered otherwise in the restored database: windows go to the right ones."""
    store.add_windows([window(engine="e0"), window(engine="e1")], fence=0)
    downgrade(store)
    store.migrate()
    store.add_windows([window(engine="e2")], fence=0)
    store.add_windows([window(T0 + 15, engine=name) for name in ("e1", "e0", "e2")], fence=0)
    found = store.recent_windows("chat", T0 + 15, 10)
    assert sorted(each.engine for each in found) == ["e0", "e1", "e2"]


def test_migrating_twice_changes_nothing(store: Store) -> None:
    """The second time finds the head and leaves all as it is."""
    store.add_windows([window()], fence=0)
    head = store.revision().head
    assert store.migrate() == Revision(head, head)
    assert store.recent_windows("chat", 0.0, 10) == [window()]


def test_a_newer_schema_is_refused(store: Store) -> None:
    """A database of a later release is neither migrated nor used; the message says what to install."""
    update = text("update alembic_version set version_num = 'r9999'")
    store._database.write(lambda connection: connection.execute(update), fence=0)
    for refused in (store.migrate, store.check):
        with pytest.raises(StoreError, match="r9999 is newer than this release") as error:
            refused()
        assert not error.value.retryable
        assert "\n" not in str(error.value)


def test_an_empty_database_is_told_from_a_broken_one(url: str) -> None:
    """Before the first upgrade the remedy is the upgrade, whatever is called."""
    with closing(open_store(url)) as store:
        assert store.revision().current is None
        with pytest.raises(StoreError, match="tuner db upgrade"):
            store.check()
        with pytest.raises(StoreError, match="tuner db upgrade") as error:
            store.add_windows([window()], fence=0)
        assert not error.value.retryable


def test_two_replicas_that_start_at_once_migrate_once(url: str) -> None:
    """Two processes migrate one empty database at the same moment: one does, one waits, both are content."""
    with child(url) as a, child(url) as b:
        for each in (a, b):
            each.send("store.migrate()")
        head = schema.scripts().get_current_head()
        assert a.answer() == [head, head]
        assert b.answer() == [head, head]
        assert a.ask("store.add_windows([window()], fence=0)") == 1
        assert b.ask("store.add_windows([window()], fence=0)") == 0


def test_a_migration_that_fails_leaves_nothing_behind(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tables or none: a failure at the end of a migration undoes its beginning."""

    def fail(*_: object) -> None:
        raise StoreError("the end of the world")

    with closing(open_store(url)) as store:
        monkeypatch.setattr(schema, "current_revision", _fails_at_the_second_call(fail))
        with pytest.raises(StoreError, match="end of the world"):
            store.migrate()
        assert tables(store) == set()
        monkeypatch.undo()
        store.migrate()
        store.check()


def _fails_at_the_second_call(fail: Any) -> Any:
    real = schema.current_revision
    calls: list[None] = []

    def asked(connection: Any) -> str | None:
        calls.append(None)
        if len(calls) > 1:
            fail()
        return real(connection)

    return asked
