"""JSON schemas of the API's answers: what is listed as required is always there, fields may be added."""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
NUMBER: Final[Schema] = {"type": "number"}
WHOLE: Final[Schema] = {"type": "integer"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
FLAG: Final[Schema] = {"type": "boolean"}
SECONDS: Final[Schema] = {"type": "number", "description": "Unix seconds, or a duration in seconds."}
ANY: Final[Schema] = {"type": "object"}
SEVERITY: Final[Schema] = {"enum": ["info", "warning", "critical"]}


def maybe(schema: Schema) -> Schema:
    """Return a schema that null fits too: untold, never zero."""
    return {**schema, "type": [schema["type"], "null"]}


def listed(schema: Schema) -> Schema:
    """Return a list of ``schema``."""
    return {"type": "array", "items": schema}


def record(required: dict[str, Schema], **optional: Schema) -> Schema:
    """Return an object; further fields are allowed."""
    return {"type": "object", "properties": {**required, **optional}, "required": list(required)}


def ref(name: str) -> Schema:
    """Return a reference to a named schema."""
    return {"$ref": f"#/components/schemas/{name}"}


RANGES: Final[Schema] = listed({"type": "array", "items": COUNT, "minItems": 3, "maxItems": 3})
STATES: Final[Schema] = record({"up": COUNT, "down": COUNT, "unknown": COUNT})
PAGE: Final[dict[str, Schema]] = {"total": COUNT, "offset": COUNT}
UNKNOWN: Final[Schema] = record({"not_enough_data": TEXT})

POSITION: Final[Schema] = record(
    {
        "position": COUNT,
        "hazard": maybe(NUMBER),
        "low": NUMBER,
        "high": NUMBER,
        "exposed": NUMBER,
        "accepted": NUMBER,
        "state": {"enum": ["measured", "censored", "extrapolated"]},
    },
    reason=TEXT,
    weak=FLAG,
)
ACCEPTANCE: Final[Schema] = record(
    {"pool": TEXT, "route": TEXT, "alpha": maybe(NUMBER), "positions": listed(POSITION)},
    alpha_low=NUMBER,
    alpha_high=NUMBER,
    alpha_unknown=TEXT,
)
CROSSOVER: Final[Schema] = {
    "anyOf": [
        record({"tokens": NUMBER, "low": NUMBER, "high": NUMBER, "excluding_overhead": maybe(NUMBER)}),
        UNKNOWN,
    ]
}
FINDING: Final[Schema] = record(
    {
        "code": TEXT,
        "severity": SEVERITY,
        "subject": ANY,
        "message": TEXT,
        "evidence": ANY,
    },
    first_seen=SECONDS,
    last_seen=SECONDS,
    resolved_at=maybe(NUMBER),
)
EXPLANATION: Final[Schema] = record(
    {
        "batch": WHOLE,
        "choices": listed(
            record({"draft_len": COUNT, "tokens_per_second": NUMBER, "low": NUMBER, "high": NUMBER})
        ),
        "why": TEXT,
    }
)
JOB: Final[Schema] = record(
    {
        "name": TEXT,
        "runs": COUNT,
        "errors": COUNT,
        "missed": COUNT,
        "skipped": COUNT,
        "last_start": maybe(NUMBER),
        "last_seconds": NUMBER,
        "last_success": maybe(NUMBER),
    }
)
SUMMARY: Final[dict[str, Schema]] = {
    "pool": TEXT,
    "mode": maybe(TEXT),
    "engine": maybe(TEXT),
    "engines": COUNT,
    "targets": STATES,
    "windows_held": COUNT,
    "schedule": maybe(RANGES),
    "versions": listed(record({"version": TEXT, "state": TEXT, "created_at": SECONDS})),
}
WINDOW: Final[Schema] = record(
    {
        "pool": TEXT,
        "engine": TEXT,
        "route": TEXT,
        "start": SECONDS,
        "end": SECONDS,
        "state": {"enum": ["good", "idle", "transition", "partial", "suspect"]},
        "reason": TEXT,
        "batch": maybe(NUMBER),
        "draft_len": maybe(NUMBER),
        "draft_lens": maybe(listed(COUNT)),
        "tokens_in_flight": maybe(NUMBER),
        "step_seconds": maybe(NUMBER),
        "tokens_per_second": maybe(NUMBER),
        "counts": ANY,
        "gauges": ANY,
        "fingerprint": ANY,
    }
)
ENGINE: Final[Schema] = record(
    {
        "pool": TEXT,
        "engine": TEXT,
        "url": TEXT,
        "origin": TEXT,
        "labels": ANY,
        "state": {"enum": ["up", "down", "unknown"]},
        "last_scrape": maybe(NUMBER),
        "seconds": NUMBER,
        "error": TEXT,
        "tokens_per_second": maybe(NUMBER),
        "window_engines": listed(TEXT),
        "read_back": FLAG,
        "running": maybe(RANGES),
        "drift": maybe(FLAG),
    }
)
DECIDED: Final[dict[str, Schema]] = {
    "at": maybe(NUMBER),
    "windows": record({"total": COUNT, "good": COUNT, "by_state": ANY}),
    "acceptance": listed(ref("Acceptance")),
    "step_time": ANY,
    "crossover": ref("Crossover"),
    "accepted_lengths": listed(record({"route": TEXT, "draft_len": COUNT, "histogram": listed(NUMBER)})),
    "predicted_speedup": listed(
        {
            "anyOf": [
                record({"route": TEXT, "ratio": NUMBER, "low": NUMBER, "high": NUMBER}),
                record({"route": TEXT, "not_enough_data": TEXT}),
            ]
        }
    ),
    "explain": listed(ref("Explanation")),
    "findings": listed(ref("Finding")),
}

SCHEMAS: Final[dict[str, Schema]] = {
    "Error": record({"error": TEXT}),
    "Index": record({"openapi": TEXT, "paths": listed(TEXT)}),
    "Acceptance": ACCEPTANCE,
    "Crossover": CROSSOVER,
    "Finding": FINDING,
    "Explanation": EXPLANATION,
    "Status": record(
        {
            "version": TEXT,
            "at": SECONDS,
            "started_at": SECONDS,
            "uptime_seconds": SECONDS,
            "leader": FLAG,
            "fence": WHOLE,
            "ready": FLAG,
            "not_ready": listed(TEXT),
            "healthy": FLAG,
            "unhealthy": listed(TEXT),
            "config": record({"loaded_at": SECONDS, "reload_ok": FLAG}),
            "sources": {"type": "object", "additionalProperties": FLAG},
            "targets": STATES,
            "windows": record({"buffered": COUNT, "dropped": COUNT, "by_state": ANY}),
            "findings": {"type": "object", "additionalProperties": COUNT},
            "worst_findings": listed(
                record({"code": TEXT, "severity": SEVERITY, "message": TEXT, "subjects": listed(ANY)})
            ),
            "cycle_at": maybe(NUMBER),
            "jobs": listed(JOB),
            "pools": listed(TEXT),
        }
    ),
    "PoolSummary": record({**SUMMARY, "findings": COUNT}, schedule_unknown=TEXT),
    "Pools": record({"pools": listed(ref("PoolSummary")), **PAGE}),
    "Pool": record({**SUMMARY, **DECIDED}, schedule_unknown=TEXT, acceptance_unknown=TEXT),
    "Explain": record(
        {
            "pool": TEXT,
            "at": maybe(NUMBER),
            "schedule": maybe(RANGES),
            "explain": listed(ref("Explanation")),
            "crossover": ref("Crossover"),
            "findings": listed(ref("Finding")),
        },
        schedule_unknown=TEXT,
    ),
    "Engines": record({"engines": listed(ENGINE), **PAGE}),
    "AcceptanceList": record(
        {
            "acceptance": listed(ref("Acceptance")),
            "cannot_say": listed(record({"pool": TEXT, "route": TEXT, "not_enough_data": TEXT})),
        }
    ),
    "CrossoverList": record({"crossover": listed({"allOf": [record({"pool": TEXT}), ref("Crossover")]})}),
    "Schedules": record(
        {
            "schedules": listed(
                record(
                    {"pool": TEXT, "version": TEXT, "state": TEXT, "schedule": RANGES, "created_at": SECONDS}
                )
            )
        }
    ),
    "Findings": record({"findings": listed(ref("Finding")), **PAGE}),
    "Events": record(
        {"events": listed(record({"actor": TEXT, "action": TEXT, "subject": {}, "why": TEXT, "detail": {}}))}
    ),
    "Windows": record({"windows": listed(WINDOW), "truncated": FLAG}),
}
