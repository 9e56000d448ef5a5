"""A migrated store on SQLite and on a real PostgreSQL: what holds on one holds on the other."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tuner.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers import PostgresServer
    from tuner.store import Store


@pytest.fixture(scope="session")
def shared_database(postgres_server: PostgresServer) -> str:
    """One database for all tests here: making one for each writes 8 MB a time."""
    return postgres_server.new_database()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer, shared_database: str) -> str:
    """The URL of a database that holds nothing."""
    name = shared_database.rpartition("/")[2]
    postgres_server.execute(f"ALTER DATABASE {name} RESET ALL")
    postgres_server.execute("DROP SCHEMA public CASCADE", name)
    postgres_server.execute("CREATE SCHEMA public", name)
    return shared_database


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'tuner.db'}"
    found = request.getfixturevalue("postgres_url")
    assert isinstance(found, str)
    return found


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """A store with its tables; no connection may be left in use."""
    with closing(open_store(url)) as opened:
        opened.migrate()
        yield opened
        assert opened.checked_out == 0


@pytest.fixture
def sqlite_file(tmp_path: Path) -> Path:
    """Where an SQLite database may be made."""
    return tmp_path / "tuner.db"


@pytest.fixture
def sqlite_store(sqlite_file: Path) -> Iterator[Store]:
    """A store with its tables on SQLite."""
    with closing(open_store(f"sqlite:///{sqlite_file}")) as opened:
        opened.migrate()
        yield opened
        assert opened.checked_out == 0
