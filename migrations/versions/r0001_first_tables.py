"""The first tables."""
# ruff: noqa: INP001, D103 - found by path, not imported as a package; upgrade and downgrade say what they are

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0001"
down_revision = None
branch_labels = None
depends_on = None

COUNTS = (
    *("steps", "request_steps", "request_step_seconds", "drafts", "draft_tokens", "accepted", "emitted"),
    *("first_tokens", "prompt_tokens", "finished", "request_seconds", "preemptions"),
)
LISTS = ("accepted_by_position", "exposed_by_position", "joint")
GAUGES = (
    *("running", "waiting", "kv_usage", "kv_tokens", "gpu_utilisation", "tensor_active", "dram_active"),
)

IMMUTABLE = ("id", "pool", "number", "version", "content", "why", "fit_ids", "created_at")
"""Columns of ``schedules`` that never change."""


def windows(name: str, *further: sa.Column) -> None:
    op.create_table(
        name,
        sa.Column("start_time", sa.Double, nullable=False),
        sa.Column("series_id", sa.Integer, nullable=False),
        sa.Column("end_time", sa.Double, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("fingerprint_id", sa.Integer, nullable=False),
        sa.Column("draft_lens", sa.Text),
        sa.Column("restarts", sa.BigInteger, nullable=False),
        *(sa.Column(column, sa.Double) for column in COUNTS),
        *(sa.Column(column, sa.Text) for column in LISTS),
        *(sa.Column(column, sa.Double) for column in GAUGES),
        *further,
        sa.PrimaryKeyConstraint("start_time", "series_id", name=f"pk_{name}"),
        sa.ForeignKeyConstraint(["fingerprint_id"], ["fingerprints.id"], name=f"fk_{name}_fingerprint_id"),
        sqlite_with_rowid=False,
    )


def merged(name: str) -> None:
    windows(
        name,
        sa.Column("windows", sa.Integer, nullable=False),
        sa.Column("until_time", sa.Double, nullable=False),
    )


def upgrade() -> None:
    op.create_table(
        "series",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("engine", sa.Text, nullable=False),
        sa.Column("route", sa.Text, nullable=False),
        sa.Column("last_start", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_series"),
        sa.UniqueConstraint("pool", "engine", "route", name="uq_series_pool_engine_route"),
    )
    op.create_table(
        "fingerprints",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_fingerprints"),
        sa.UniqueConstraint("content", name="uq_fingerprints_content"),
    )
    windows("windows_raw")
    merged("windows_minute")
    merged("windows_hour")
    tiers = op.create_table(
        "tiers",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("rolled_up_to", sa.Double),
        sa.Column("kept_from", sa.Double),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_tiers"),
    )
    op.bulk_insert(tiers, [{"name": name, "revision": 0} for name in ("raw", "minute", "hour")])
    op.create_table(
        "stale_buckets",
        sa.Column("tier", sa.Text, nullable=False),
        sa.Column("bucket", sa.Double, nullable=False),
        sa.Column("series_id", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("tier", "bucket", "series_id", name="pk_stale_buckets"),
        sa.ForeignKeyConstraint(["series_id"], ["series.id"], name="fk_stale_buckets_series_id"),
        sqlite_with_rowid=False,
    )
    fits_and_schedules()
    findings_and_events()
    guard()


def fits_and_schedules() -> None:
    op.create_table(
        "fits",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("route", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("span_start", sa.Double, nullable=False),
        sa.Column("span_end", sa.Double, nullable=False),
        sa.Column("windows", sa.Integer, nullable=False),
        sa.Column("counts", sa.Text, nullable=False),
        sa.Column("residuals", sa.Text, nullable=False),
        sa.Column("fingerprint_id", sa.Integer, nullable=False),
        sa.Column("code_version", sa.Text, nullable=False),
        sa.Column("parameters", sa.Text, nullable=False),
        sa.Column("keep", sa.SmallInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_fits"),
        sa.UniqueConstraint("pool", "kind", "route", "created_at", name="uq_fits_pool_kind_route_created_at"),
        sa.ForeignKeyConstraint(["fingerprint_id"], ["fingerprints.id"], name="fk_fits_fingerprint_id"),
    )
    op.create_table(
        "schedules",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("fit_ids", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("state_since", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_schedules"),
        sa.UniqueConstraint("pool", "number", name="uq_schedules_pool_number"),
        sa.CheckConstraint("state in ('proposed', 'active', 'superseded')", name="ck_schedules_state"),
    )
    for state in ("active", "proposed"):
        one = sa.text(f"state = '{state}'")
        op.create_index(
            f"uq_schedules_{state}",
            "schedules",
            ["pool"],
            unique=True,
            sqlite_where=one,
            postgresql_where=one,
        )


def findings_and_events() -> None:
    op.create_table(
        "findings",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("code", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("severity", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("evidence", sa.Text, nullable=False),
        sa.Column("first_seen", sa.Double, nullable=False),
        sa.Column("last_seen", sa.Double, nullable=False),
        sa.Column("resolved_at", sa.Double),
        sa.PrimaryKeyConstraint("id", name="pk_findings"),
    )
    still_open = sa.text("resolved_at is null")
    op.create_index(
        "uq_findings_open",
        "findings",
        ["code", "subject"],
        unique=True,
        sqlite_where=still_open,
        postgresql_where=still_open,
    )
    op.create_index("ix_findings_resolved_at", "findings", ["resolved_at"])
    op.create_table(
        "events",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("token", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sa.UniqueConstraint("token", name="uq_events_token"),
    )
    op.create_table(
        "job_runs",
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("period_start", sa.Double, nullable=False),
        sa.Column("token", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("job", "period_start", name="pk_job_runs"),
    )
    leases = op.create_table(
        "leases",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("renewals", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
    op.bulk_insert(leases, [{"name": "leader", "holder": "", "fence": 0, "renewals": 0}])


def guard() -> None:
    """Refuse changes of what must stay as it is, whoever asks for them."""
    if op.get_bind().dialect.name == "sqlite":
        refuse_sqlite("schedules_content", f"UPDATE OF {', '.join(IMMUTABLE)}", "schedules")
        refuse_sqlite("schedules_deleted", "DELETE", "schedules")
        refuse_sqlite("events_changed", "UPDATE", "events")
        refuse_sqlite("events_deleted", "DELETE", "events")
        return
    op.execute(
        "CREATE FUNCTION tuner_refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION '% of % is refused: rows are immutable', TG_OP, TG_TABLE_NAME; END $$"
    )
    refuse_postgres("schedules_content", f"UPDATE OF {', '.join(IMMUTABLE)}", "schedules")
    refuse_postgres("schedules_deleted", "DELETE", "schedules")
    refuse_postgres("events_changed", "UPDATE", "events")
    refuse_postgres("events_deleted", "DELETE", "events")
    for table in ("schedules", "events"):
        op.execute(
            f"CREATE TRIGGER {table}_truncated BEFORE TRUNCATE ON {table} EXECUTE FUNCTION tuner_refuse()"
        )


def refuse_sqlite(name: str, change: str, table: str) -> None:
    op.execute(
        f"CREATE TRIGGER {name} BEFORE {change} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, 'change of {table} is refused: rows are immutable'); END"
    )


def refuse_postgres(name: str, change: str, table: str) -> None:
    op.execute(
        f"CREATE TRIGGER {name} BEFORE {change} ON {table} FOR EACH ROW EXECUTE FUNCTION tuner_refuse()"
    )


def downgrade() -> None:
    for table in ("leases", "job_runs", "events", "findings", "schedules", "fits", "stale_buckets", "tiers"):
        op.drop_table(table)
    for table in ("windows_hour", "windows_minute", "windows_raw", "fingerprints", "series"):
        op.drop_table(table)
    if op.get_bind().dialect.name != "sqlite":
        op.execute("DROP FUNCTION tuner_refuse()")
