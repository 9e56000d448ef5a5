"""Where the database is: its URL, and for SQLite whether the file can hold one."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from tuner._exceptions import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import URL

SQLITE_HEADER = b"SQLite format 3\x00"
"""First bytes of a database file (https://www.sqlite.org/fileformat.html, 1.3)."""

NETWORK_FILE_SYSTEMS: dict[int, str] = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB 2",
    0x01021997: "9P",
    0x65735546: "FUSE",
    0x00C36400: "Ceph",
    0x0BD00BD0: "Lustre",
    0x5346414F: "AFS",
    0x6B414653: "AFS",
    0x73757245: "Coda",
    0x47504653: "GPFS",
    0x01161970: "GFS2",
    0x7461636F: "OCFS2",
    0x19830326: "BeeGFS",
    0x564C: "NCP",
}
"""``f_type`` of statfs(2), by include/uapi/linux/magic.h and the manual page. WAL needs memory shared between
all processes that open the file (https://www.sqlite.org/wal.html), which none of these promises."""

_F_TYPE_BYTES = ctypes.sizeof(ctypes.c_long)
_F_TYPE_MASK = 0xFFFFFFFF
"""Magic numbers have 32 bits; the kernel's signed word may be sign-extended."""
_STATFS_BYTES = 512
"""Room for ``struct statfs``, which has 120 bytes on 64-bit Linux; ``f_type`` is its first word."""


@dataclass(frozen=True, slots=True)
class Place:
    """A database that was asked for; ``str()`` of it has no credentials."""

    url: URL
    """Without password."""
    password: str | None
    file: Path | None
    """The SQLite file; ``None`` for PostgreSQL."""

    def __str__(self) -> str:
        """Return the file, or the URL without password."""
        return str(self.file) if self.file is not None else self.url.render_as_string(hide_password=True)

    __repr__ = __str__


def parse_place(url: str) -> Place:
    """Read a database URL.

    Raises:
        StoreError: neither SQLite with a file nor PostgreSQL by psycopg.
    """
    remedy = "use sqlite:////absolute/path/tuner.db or postgresql+psycopg://user@host/database"
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise StoreError(f"store.url cannot be read as a database URL: {remedy}") from None
    password = parsed.password
    bare = parsed._replace(password=None)
    if parsed.drivername in ("sqlite", "sqlite+pysqlite"):
        if not parsed.database or parsed.database == ":memory:" or parsed.database.startswith("file:"):
            raise StoreError(f"store.url {bare}: memory of a process is lost with it: {remedy}")
        return Place(bare, None, Path(parsed.database).absolute())
    if parsed.drivername in ("postgresql", "postgresql+psycopg"):
        return Place(bare.set(drivername="postgresql+psycopg"), password, None)
    raise StoreError(f"store.url {bare}: {parsed.drivername} is not supported: {remedy}")


def file_system_type(path: Path) -> int:
    """Return ``f_type`` of the file system that ``path`` lies on, 0 where the system cannot tell."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    if not hasattr(libc, "statfs") or libc.statfs(os.fsencode(path), buffer) != 0:
        return 0
    return ctypes.c_long.from_buffer_copy(buffer.raw[:_F_TYPE_BYTES]).value & _F_TYPE_MASK


def check_file(file: Path, file_system: Callable[[Path], int] = file_system_type) -> None:
    """Refuse a path that cannot hold a database in WAL mode.

    Args:
        file: where the database is or will be.
        file_system: returns ``f_type`` of a path.

    Raises:
        StoreError: the folder is missing or read-only, or the path is a folder, a file that is no database,
            or on a network file system.
    """
    folder = file.parent
    if not folder.is_dir():
        raise StoreError(f"{folder}: no such folder: create it, owned by the user that tuner runs as")
    if file.is_dir():
        raise StoreError(f"{file}: is a folder: name a file in it, as in {file / 'tuner.db'}")
    network = NETWORK_FILE_SYSTEMS.get(file_system(folder))
    if network is not None:
        raise StoreError(
            f"{file}: lies on {network}, where SQLite loses data: move it to a local disk, or use PostgreSQL"
        )
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        raise StoreError(f"{folder}: not writable: SQLite keeps two files beside the database; chown it")
    if not file.exists():
        return
    if not os.access(file, os.R_OK | os.W_OK, effective_ids=True):
        raise StoreError(f"{file}: not readable and writable by this user: chown it to the user of tuner")
    if not file.is_file():
        raise StoreError(f"{file}: is not a regular file: name another")
    with file.open("rb") as opened:
        header = opened.read(len(SQLITE_HEADER))
    if header and header != SQLITE_HEADER:
        raise StoreError(f"{file}: is not an SQLite database: name another file, or restore a backup over it")
