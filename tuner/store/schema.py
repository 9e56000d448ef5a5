"""The schema's version: which one a database has, which one this release wants, and the way there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError

from tuner._exceptions import StoreError
from tuner.store.errors import UPGRADE

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from tuner.store.database import Database

PACKAGE = Path(__file__).resolve().parent.parent


class Revision(NamedTuple):
    """Versions of the schema by their names in ``migrations/``."""

    current: str | None
    """What the database has; ``None`` for an empty one."""
    head: str
    """What this release wants."""


def migrations_folder() -> Path:
    """Return the folder of migrations: inside an installed package, beside it in a checkout."""
    for folder in (PACKAGE / "migrations", PACKAGE.parent / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise StoreError(f"{PACKAGE / 'migrations'}: not found: the installation is incomplete, install it again")


def scripts(folder: Path | None = None) -> ScriptDirectory:
    """Return the migrations, which have exactly one head.

    Raises:
        StoreError: two of them follow the same one, so nobody knows which is the newest.
    """
    directory = ScriptDirectory(str(folder or migrations_folder()))
    heads = directory.get_heads()
    if len(heads) != 1:
        raise StoreError(
            f"{directory.dir}: {len(heads)} heads ({', '.join(sorted(heads))}): make one of them the "
            "down_revision of the other"
        )
    return directory


def current_revision(connection: Connection) -> str | None:
    """Return the version of the database, ``None`` for an empty one."""
    return MigrationContext.configure(connection).get_current_revision()


def revision(database: Database) -> Revision:
    """Return the version of the database and the one that this release wants."""
    head = scripts().get_current_head()
    assert head is not None, "no migrations"
    return Revision(database.read(current_revision), head)


def refuse_unless_current(place: object, found: Revision) -> None:
    """Accept a database at the head only.

    Raises:
        StoreError: empty, older, or newer than this release.
    """
    if found.current is None:
        raise StoreError(f"{place}: has no tables yet: {UPGRADE}")
    if found.current == found.head:
        return
    _refuse_newer(place, found)
    raise StoreError(f"{place}: schema {found.current} is older than this release's {found.head}: {UPGRADE}")


def migrate(database: Database) -> Revision:
    """Bring the schema to the head, in one transaction and under a lock.

    A second process that does so at the same time waits, and then has nothing to do.

    Raises:
        StoreError: the schema is newer than this release, or the database refuses.
    """
    directory = scripts()
    with database.migrating() as connection:
        head = directory.get_current_head()
        assert head is not None, "no migrations"
        found = Revision(current_revision(connection), head)
        if found.current == head:
            return found
        if found.current is not None:
            _refuse_newer(database.place, found)
        config = Config()
        config.set_main_option("script_location", str(directory.dir).replace("%", "%%"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        return Revision(current_revision(connection), head)


def _refuse_newer(place: object, found: Revision) -> None:
    """Refuse a version that is not among this release's migrations."""
    assert found.current is not None
    try:
        scripts().get_revision(found.current)
    except CommandError:
        raise StoreError(
            f"{place}: schema {found.current} is newer than this release, which knows up to {found.head}: "
            "install the release that made it, or restore a backup from before"
        ) from None
