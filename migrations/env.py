"""What alembic runs: on the connection that the tuner gives it, or on one of its own by the command line."""
# ruff: noqa: INP001 - found by path, not imported as a package

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from alembic import context

from tuner._exceptions import TunerError
from tuner.store.database import Database
from tuner.store.tables import metadata

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection


def run(connection: Connection) -> None:
    """Migrate in the transaction that ``connection`` is in: all of it or nothing."""
    context.configure(
        connection=connection,
        target_metadata=metadata,
        compare_type=True,
        # SQLite changes a table by building it anew.
        render_as_batch=connection.dialect.name == "sqlite",
        transactional_ddl=True,
    )
    with context.begin_transaction():
        context.run_migrations()


def own_database() -> Database:
    """Open the database that the command line or the environment names."""
    arguments = context.get_x_argument(as_dictionary=True)
    url = arguments.get("url") or os.environ.get("TUNER_STORE__URL")
    if not url:
        raise TunerError(
            "no database named: alembic -x url=sqlite:////path/tuner.db, or set TUNER_STORE__URL"
        )
    file = arguments.get("password_file") or os.environ.get("TUNER_STORE__PASSWORD_FILE")
    return Database(url, password=Path(file).read_text().strip() if file else None)


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
elif context.is_offline_mode():
    raise TunerError("--sql is not supported: name a database, the migration looks at it")
else:
    database = own_database()
    try:
        with database.migrating() as held:
            run(held)
    finally:
        database.close()
