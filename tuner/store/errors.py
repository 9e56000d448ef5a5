"""Errors of the drivers → :class:`StoreError`: one line that names place and remedy, without a password."""

from __future__ import annotations

import re
import sqlite3
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import exc

from tuner._exceptions import StoreError

if TYPE_CHECKING:
    from tuner.store.place import Place

UPGRADE = "run tuner db upgrade"


class Cause(NamedTuple):
    """What an error of a driver means."""

    problem: str
    remedy: str
    retryable: bool
    """The same call may succeed later, without anybody changing the call."""
    at_once: bool = False
    """It may succeed within a second, so the unit of work is repeated."""


LOCKED = Cause("locked by another process", "end whoever holds the lock", retryable=True, at_once=True)
LOST = Cause("no connection", "start the server or check address and network", retryable=True, at_once=True)
FULL = Cause("the disk is full", "make room; nothing that was saved is lost", retryable=True)
READ_ONLY = Cause("read-only", "make it writable; writes go on by themselves then", retryable=True)
NO_SCHEMA = Cause("tables or columns are missing", UPGRADE, retryable=False)
CONTRADICTS = Cause(
    "contradicts what is stored", "restart tuner; if it stays, restore a backup", retryable=False
)
UNKNOWN = Cause("refused the statement", "see docs/database.md", retryable=False)

SQLITE_CAUSES: dict[int, Cause] = {
    sqlite3.SQLITE_BUSY: LOCKED,
    sqlite3.SQLITE_LOCKED: LOCKED,
    sqlite3.SQLITE_PROTOCOL: LOCKED,
    sqlite3.SQLITE_FULL: FULL,
    sqlite3.SQLITE_READONLY: READ_ONLY,
    sqlite3.SQLITE_PERM: READ_ONLY,
    sqlite3.SQLITE_IOERR: Cause("input/output error", "check disk space and disk health", retryable=True),
    sqlite3.SQLITE_CANTOPEN: Cause(
        "cannot be opened", "check that its folder exists, is writable and has room", retryable=True
    ),
    sqlite3.SQLITE_CONSTRAINT: CONTRADICTS,
    sqlite3.SQLITE_NOMEM: Cause("out of memory", "give the process more", retryable=True),
    sqlite3.SQLITE_CORRUPT: Cause("damaged", "restore a backup", retryable=False),
    sqlite3.SQLITE_NOTADB: Cause("not an SQLite database", "restore a backup", retryable=False),
}
"""Primary result codes (https://www.sqlite.org/rescode.html)."""
_PRIMARY = 0xFF
"""Extended result codes carry the primary one in their lowest byte."""

POSTGRES_CAUSES: dict[str, Cause] = {
    "23": CONTRADICTS,
    "25006": READ_ONLY,
    "53100": FULL,
    "53": Cause("out of memory or connections", "raise the server's limits", retryable=True),
    "55P03": LOCKED,
    "40": LOCKED,
    "57014": Cause("a statement took too long", "look for locks and load on the server", retryable=True),
    "57": LOST,
    "58": Cause("input/output error of the server", "check its disk", retryable=True),
    "08": LOST,
    "28": Cause("login refused", "check user and store.password_file", retryable=True),
    "3D": Cause("no such database", "create it, owned by the user of tuner", retryable=True),
    "42501": Cause("permission denied", "make the user of tuner the owner of its tables", retryable=True),
    "42P01": NO_SCHEMA,
    "42703": NO_SCHEMA,
    "XX": Cause("the server reports damage", "see the server's log", retryable=False),
}
"""SQLSTATE or its class (PostgreSQL 15, appendix A); a whole code outvotes its class."""

_REFUSED_LOGIN = re.compile(
    r'password authentication failed|no password supplied|no pg_hba\.conf entry|role ".*" does not exist'
)
"""libpq gives no SQLSTATE while it connects; a server that speaks another language is told as unreachable,
with its own words."""
_CREDENTIALS = re.compile(r"(?i)(password\s*=\s*)('[^']*'|\S+)|(://)[^/\s@]*@")
"""A password as libpq writes it in a connection string or a URL."""


def scrub(text: str, password: str | None) -> str:
    """Return the first line of ``text`` without credentials."""
    line = text.strip().splitlines()[0] if text.strip() else ""
    if password:
        line = line.replace(password, "***")
    return _CREDENTIALS.sub(lambda match: f"{match[1] or match[3]}***" + ("@" if match[3] else ""), line)


def cause_of(error: BaseException) -> Cause:
    """Tell what an error of SQLAlchemy or a driver means."""
    if isinstance(error, exc.TimeoutError):
        return Cause("all connections are in use", "wait", retryable=True)
    origin = getattr(error, "orig", None) or error
    if isinstance(origin, sqlite3.Error):
        code: int = getattr(origin, "sqlite_errorcode", 0)
        if code == sqlite3.SQLITE_ERROR and "no such" in str(origin):
            return NO_SCHEMA
        return SQLITE_CAUSES.get(code & _PRIMARY, UNKNOWN)
    state = getattr(origin, "sqlstate", None)
    if state is None and _REFUSED_LOGIN.search(str(origin)):
        return POSTGRES_CAUSES["28"]
    if state is None:
        connection_gone = isinstance(error, exc.OperationalError | exc.InterfaceError) or bool(
            getattr(error, "connection_invalidated", False)
        )
        return LOST if connection_gone else UNKNOWN
    return POSTGRES_CAUSES.get(state) or POSTGRES_CAUSES.get(state[:2]) or UNKNOWN


def translate(error: exc.SQLAlchemyError, place: Place, password: str | None) -> tuple[StoreError, bool]:
    """Return the error to raise, and whether repeating the unit of work at once may help."""
    cause = cause_of(error)
    origin = getattr(error, "orig", None) or error
    said = scrub(str(origin), password)
    message = f"{place}: {cause.problem} ({said}): {cause.remedy}"
    return StoreError(message, retryable=cause.retryable), cause.at_once
