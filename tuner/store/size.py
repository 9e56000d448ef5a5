"""How much room the database takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import text

from tuner.store.tables import metadata

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from tuner.store.database import Database


def size_bytes(database: Database) -> int:
    """Return bytes on disk: the files of SQLite, tables with their indices of PostgreSQL."""
    file = database.place.file
    if file is not None:
        parts = (file, file.with_name(f"{file.name}-wal"), file.with_name(f"{file.name}-shm"))
        return sum(part.stat().st_size for part in parts if part.exists())

    def ask(connection: Connection) -> int:
        query = text(
            "SELECT coalesce(sum(pg_total_relation_size(to_regclass(name))), 0) "
            "FROM unnest(CAST(:names AS text[])) AS name"
        )
        return int(connection.scalar(query, {"names": list(metadata.tables)}) or 0)

    return database.read(ask)
