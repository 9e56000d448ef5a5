"""The tables. ``migrations/`` builds them in a database, and a test holds the two to each other."""

from __future__ import annotations

from dataclasses import fields

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from tuner.fleet import Counts, Gauges

COUNT_COLUMNS: tuple[str, ...] = (
    *("steps", "request_steps", "request_step_seconds", "drafts", "draft_tokens", "accepted", "emitted"),
    *("first_tokens", "prompt_tokens", "finished", "request_seconds", "preemptions"),
)
"""Fields of :class:`tuner.fleet.Counts` that are one number; a test holds them to the class."""
LIST_COLUMNS: tuple[str, ...] = ("accepted_by_position", "exposed_by_position", "joint")
"""Fields of :class:`tuner.fleet.Counts` that are kept as JSON text, NULL where empty."""
GAUGE_COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(Gauges))

assert {*COUNT_COLUMNS, *LIST_COLUMNS} == {field.name for field in fields(Counts)}, "Counts has a new field"

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
"""Constraints are named, so that a later migration can change them on both databases."""

series = Table(
    "series",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("pool", Text, nullable=False),
    Column("engine", Text, nullable=False),
    Column("route", Text, nullable=False),
    Column("last_start", Double, nullable=False),
    UniqueConstraint("pool", "engine", "route"),
)
"""One row per engine and route; windows name it by number. ``last_start``: when its newest window
began, or up to an hour before."""

fingerprints = Table(
    "fingerprints",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("content", Text, nullable=False, unique=True),
)
"""Every fingerprint seen, as canonical JSON."""


def _windows(name: str, *further: Column[int] | Column[float]) -> Table:
    """Return one tier of windows.

    The key begins with time because everything asks by time: rows are appended at the end of the tree, whose
    pages stay full, and retention cuts a contiguous piece. ``series_id`` is no foreign key: without an index
    that begins with it, deleting one name of an engine would read all windows.
    """
    return Table(
        name,
        metadata,
        Column("start_time", Double, primary_key=True),
        Column("series_id", Integer, primary_key=True, autoincrement=False),
        Column("end_time", Double, nullable=False),
        Column("state", Text, nullable=False),
        Column("reason", Text, nullable=False),
        Column("fingerprint_id", Integer, ForeignKey("fingerprints.id"), nullable=False),
        Column("draft_lens", Text),
        Column("restarts", BigInteger, nullable=False),
        *(Column(column, Double) for column in COUNT_COLUMNS),
        *(Column(column, Text) for column in LIST_COLUMNS),
        *(Column(column, Double) for column in GAUGE_COLUMNS),
        *further,
        sqlite_with_rowid=False,
    )


def _merged(name: str) -> Table:
    return _windows(
        name,
        Column("windows", Integer, nullable=False),
        Column("until_time", Double, nullable=False),
    )


windows_raw = _windows("windows_raw")
"""Windows as they were observed."""
windows_minute = _merged("windows_minute")
"""Windows of one minute and one kind, merged. ``windows``: how many. ``end_time - start_time``: seconds that
they cover; ``until_time``: end of the last of them, later where others lie between."""
windows_hour = _merged("windows_hour")

tiers = Table(
    "tiers",
    metadata,
    Column("name", Text, primary_key=True),
    Column("rolled_up_to", Double),
    Column("kept_from", Double),
    Column("revision", BigInteger, nullable=False),
)
"""One row per tier of windows. ``rolled_up_to``: windows that begin before are in the next tier;
``kept_from``: windows that begin before were deleted; NULL: none yet. ``revision`` moves with every change
of the tier's rows."""

stale_buckets = Table(
    "stale_buckets",
    metadata,
    Column("tier", Text, primary_key=True),
    Column("bucket", Double, primary_key=True),
    Column("series_id", Integer, ForeignKey("series.id"), primary_key=True, autoincrement=False),
    sqlite_with_rowid=False,
)
"""Minutes (tier ``raw``) and hours (tier ``minute``) that got windows after they had been rolled up."""

fits = Table(
    "fits",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("pool", Text, nullable=False),
    Column("route", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("source", Text, nullable=False),
    Column("span_start", Double, nullable=False),
    Column("span_end", Double, nullable=False),
    Column("windows", Integer, nullable=False),
    Column("counts", Text, nullable=False),
    Column("residuals", Text, nullable=False),
    Column("fingerprint_id", Integer, ForeignKey("fingerprints.id"), nullable=False),
    Column("code_version", Text, nullable=False),
    Column("parameters", Text, nullable=False),
    Column("keep", SmallInteger, nullable=False),
    UniqueConstraint("pool", "kind", "route", "created_at"),
)
"""Fits with their provenance. ``keep``: 0 as long as raw windows, 1 as minutes (the first of its hour), 2 as
hours (the first of its day), 3 for ever (a schedule cites it)."""

schedules = Table(
    "schedules",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("pool", Text, nullable=False),
    Column("number", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("fit_ids", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("state", Text, nullable=False),
    Column("state_since", Double, nullable=False),
    UniqueConstraint("pool", "number"),
    CheckConstraint("state in ('proposed', 'active', 'superseded')", name="state"),
    Index(
        "uq_schedules_active",
        "pool",
        unique=True,
        sqlite_where=text("state = 'active'"),
        postgresql_where=text("state = 'active'"),
    ),
    Index(
        "uq_schedules_proposed",
        "pool",
        unique=True,
        sqlite_where=text("state = 'proposed'"),
        postgresql_where=text("state = 'proposed'"),
    ),
)
"""Versions of schedules. Triggers refuse every change but one of ``state``, and every deletion."""

findings = Table(
    "findings",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("code", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("severity", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("evidence", Text, nullable=False),
    Column("first_seen", Double, nullable=False),
    Column("last_seen", Double, nullable=False),
    Column("resolved_at", Double),
    Index(
        "uq_findings_open",
        "code",
        "subject",
        unique=True,
        sqlite_where=text("resolved_at is null"),
        postgresql_where=text("resolved_at is null"),
    ),
    Index(None, "resolved_at"),
)
"""Findings from when they were first seen to when they were gone."""

events = Table(
    "events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", Double, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("token", Text, nullable=False, unique=True),
)
"""The audit trail. Triggers refuse change and deletion. ``token`` names the call that wrote the row, so that
a repeated call whose first answer was lost writes one."""

job_runs = Table(
    "job_runs",
    metadata,
    Column("job", Text, primary_key=True),
    Column("period_start", Double, primary_key=True),
    Column("token", Text, nullable=False),
)
"""Periods that a job has been run for."""

leases = Table(
    "leases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("renewals", BigInteger, nullable=False),
)
"""Who leads. Holds no time: hosts' clocks are never compared."""
