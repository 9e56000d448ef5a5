"""Fits, findings, events and runs of jobs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, insert, select, update

from tuner.fleet import Finding, Severity
from tuner.store.codec import number, to_json, words
from tuner.store.names import all_fingerprints, insert_into, number_fingerprints
from tuner.store.records import EventRecord, FindingRecord, FitRecord
from tuner.store.tables import events, findings, fits, job_runs
from tuner.store.windows import HOUR, bucket_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy.engine import Connection

DAY = 24 * HOUR
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
"""From the mildest to the worst."""


def save_fits(connection: Connection, new: Sequence[FitRecord], now: float) -> tuple[int, ...]:
    """Save fits and return their numbers."""
    fingerprint_ids = number_fingerprints(connection, (fit.fingerprint for fit in new))
    return tuple(_save_fit(connection, fit, fingerprint_ids[fit.fingerprint], now) for fit in new)


def _save_fit(connection: Connection, fit: FitRecord, fingerprint_id: int, now: float) -> int:
    """Save one fit, or find the number of the same fit of the same moment."""
    where = f"{fit.kind} fit of {fit.pool}/{fit.route}"
    same = (fits.c.pool == fit.pool) & (fits.c.kind == fit.kind) & (fits.c.route == fit.route)
    connection.execute(
        insert_into(connection, fits).on_conflict_do_nothing(
            index_elements=["pool", "kind", "route", "created_at"]
        ),
        [
            {
                "pool": words(fit.pool, where),
                "route": words(fit.route, where),
                "kind": fit.kind,
                "created_at": number(now, "now"),
                "source": words(fit.source, where),
                "span_start": number(fit.span_start, where),
                "span_end": number(fit.span_end, where),
                "windows": fit.windows,
                "counts": to_json(fit.counts, f"{where}: counts"),
                "residuals": to_json(fit.residuals, f"{where}: residuals"),
                "fingerprint_id": fingerprint_id,
                "code_version": fit.code_version,
                "parameters": to_json(fit.parameters, f"{where}: parameters"),
                "keep": _keep(connection.scalar(select(func.max(fits.c.created_at)).where(same)), now),
            }
        ],
    )
    found = connection.scalar(select(fits.c.id).where(same, fits.c.created_at == now))
    assert found is not None
    return int(found)


def _keep(before: float | None, now: float) -> int:
    """Return 2 for the first fit of a UTC day, 1 for the first of an hour, 0 for the others."""
    if before is None or bucket_of(before, DAY) != bucket_of(now, DAY):
        return 2
    return int(bucket_of(before, HOUR) != bucket_of(now, HOUR))


def latest_fits(connection: Connection, pool: str) -> list[FitRecord]:
    """Return the newest fit of each kind and route."""
    newest = (
        select(fits.c.kind, fits.c.route, func.max(fits.c.created_at).label("at"))
        .where(fits.c.pool == pool)
        .group_by(fits.c.kind, fits.c.route)
        .subquery()
    )
    known = all_fingerprints(connection)
    rows = connection.execute(
        select(fits)
        .join_from(
            fits,
            newest,
            (fits.c.kind == newest.c.kind)
            & (fits.c.route == newest.c.route)
            & (fits.c.created_at == newest.c.at),
        )
        .where(fits.c.pool == pool)
        .order_by(fits.c.kind, fits.c.route)
    )
    return [
        FitRecord(
            pool=row.pool,
            kind=row.kind,
            source=row.source,
            span_start=row.span_start,
            span_end=row.span_end,
            windows=row.windows,
            parameters=json.loads(row.parameters),
            counts=json.loads(row.counts),
            residuals=json.loads(row.residuals),
            fingerprint=known[row.fingerprint_id],
            code_version=row.code_version,
            route=row.route,
            id=row.id,
            created_at=row.created_at,
        )
        for row in rows
    ]


def record_findings(connection: Connection, active: Sequence[Finding], now: float) -> None:
    """Open, touch and close findings so that the open ones are ``active``."""
    wanted: dict[tuple[str, str], Finding] = {}
    for finding in active:
        key = finding.code, to_json(dict(finding.subject), f"finding {finding.code}: subject")
        if key not in wanted or _rank(finding) > _rank(wanted[key]):
            wanted[key] = finding
    opened = {
        (row.code, row.subject): row.id
        for row in connection.execute(
            select(findings.c.id, findings.c.code, findings.c.subject).where(findings.c.resolved_at.is_(None))
        )
    }
    gone = [each for key, each in opened.items() if key not in wanted]
    if gone:
        connection.execute(update(findings).where(findings.c.id.in_(gone)).values(resolved_at=now))
    number(now, "now")
    for key, finding in wanted.items():
        said: dict[str, Any] = {
            "severity": finding.severity,
            "message": words(finding.message, f"finding {finding.code}: message"),
            "evidence": to_json(dict(finding.evidence), f"finding {finding.code}: evidence"),
            "last_seen": now,
        }
        if key in opened:
            connection.execute(update(findings).where(findings.c.id == opened[key]).values(**said))
        else:
            connection.execute(insert(findings).values(code=key[0], subject=key[1], first_seen=now, **said))


def _rank(finding: Finding) -> int:
    return SEVERITIES.index(finding.severity)


def findings_of(connection: Connection, active_only: bool, limit: int) -> list[FindingRecord]:
    """Return findings, newest first."""
    query = select(findings).order_by(findings.c.first_seen.desc(), findings.c.id.desc()).limit(limit)
    if active_only:
        query = query.where(findings.c.resolved_at.is_(None))
    return [
        FindingRecord(
            Finding(row.code, row.severity, row.message, json.loads(row.subject), json.loads(row.evidence)),
            row.first_seen,
            row.last_seen,
            row.resolved_at,
        )
        for row in connection.execute(query)
    ]


def add_event(
    connection: Connection,
    token: str,
    actor: str,
    action: str,
    subject: Mapping[str, str],
    why: str,
    detail: Mapping[str, Any],
    now: float,
) -> None:
    """Add a line to the audit trail, once per token."""
    connection.execute(
        insert_into(connection, events).on_conflict_do_nothing(index_elements=["token"]),
        [
            {
                "at": number(now, "now"),
                "actor": words(actor, "actor"),
                "action": words(action, "action"),
                "subject": to_json(dict(subject), f"event {action}: subject"),
                "why": words(why, "why"),
                "detail": to_json(dict(detail), f"event {action}: detail"),
                "token": token,
            }
        ],
    )


def events_of(connection: Connection, limit: int) -> list[EventRecord]:
    """Return the audit trail, newest first."""
    rows = connection.execute(select(events).order_by(events.c.id.desc()).limit(limit))
    return [
        EventRecord(
            row.id, row.at, row.actor, row.action, json.loads(row.subject), row.why, json.loads(row.detail)
        )
        for row in rows
    ]


def once(connection: Connection, job: str, period_start: float, token: str) -> bool:
    """Remember a period of a job; true for the token that came first."""
    connection.execute(
        insert_into(connection, job_runs).on_conflict_do_nothing(index_elements=["job", "period_start"]),
        [
            {
                "job": words(job, "job"),
                "period_start": number(period_start, "period_start"),
                "token": token,
            }
        ],
    )
    first = connection.scalar(
        select(job_runs.c.token).where(job_runs.c.job == job, job_runs.c.period_start == period_start)
    )
    return first == token
