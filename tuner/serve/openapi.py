"""The OpenAPI 3.1 document, made of the same table that the routes are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from tuner.serve import api, history
from tuner.serve.params import LIMIT, OFFSET, POOL, Param
from tuner.serve.schemas import SCHEMAS, ref

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One read-only answer of the API."""

    path: str
    """Below ``/api/v1``; ``{pool}`` is the only part that varies."""
    schema: str
    summary: str
    answer: Callable[..., dict[str, Any]]
    """Called with (snapshot, query), or (history, snapshot, query)."""
    params: tuple[Param, ...] = ()
    needs: Literal["snapshot", "history"] = "snapshot"


STATE: Final = Param("state", "choice", "Only engines in this state.", choices=("up", "down", "unknown"))
SEVERITY: Final = Param(
    "severity", "choice", "Only findings of this severity.", choices=("info", "warning", "critical")
)
ACTIVE: Final = Param(
    "active",
    "choice",
    "`false` also gives findings that are over.",
    default="true",
    choices=("true", "false"),
)
ONE_POOL: Final = Param("pool", "text", "The pool.", required=True)
SINCE: Final = Param(
    "since", "number", "Only windows that begin at these unix seconds or later.", default=0, high=10**11
)

ENDPOINTS: Final = (
    Endpoint("/status", "Status", "The daemon, its jobs and sources", api.status),
    Endpoint("/pools", "Pools", "Every pool in short", api.pools, (LIMIT, OFFSET)),
    Endpoint("/pools/{pool}", "Pool", "All that is known of a pool; the keys of `tuner replay`", api.pool),
    Endpoint("/pools/{pool}/explain", "Explain", "Why the schedule of a pool is what it is", api.explain),
    Endpoint(
        "/engines", "Engines", "Engines and how they answered", api.engines, (POOL, STATE, LIMIT, OFFSET)
    ),
    Endpoint("/acceptance", "AcceptanceList", "Acceptance by pool and route", api.acceptance, (POOL,)),
    Endpoint("/crossover", "CrossoverList", "Crossover by pool", api.crossover, (POOL,)),
    Endpoint(
        "/schedules",
        "Schedules",
        "Schedule versions, newest first",
        history.schedules,
        (POOL, LIMIT),
        "history",
    ),
    Endpoint(
        "/findings",
        "Findings",
        "What was noticed, with when",
        history.findings,
        (POOL, SEVERITY, ACTIVE, LIMIT, OFFSET),
        "history",
    ),
    Endpoint("/events", "Events", "What was done and by whom", history.events, (LIMIT,), "history"),
    Endpoint(
        "/windows",
        "Windows",
        "The newest windows of a pool, oldest first",
        history.windows,
        (ONE_POOL, SINCE, LIMIT),
        "history",
    ),
)

API: Final = "/api/v1"
DOCUMENT_PATH: Final = f"{API}/openapi.json"


def openapi_document(version: str) -> dict[str, Any]:
    """Return the document for a release."""
    paths: dict[str, Any] = {f"{API}{end.path}": {"get": _operation(end)} for end in ENDPOINTS}
    paths[API] = {"get": _index()}
    paths[DOCUMENT_PATH] = {"get": _document()}
    paths["/metrics"] = {"get": _metrics()}
    paths["/-/healthy"] = {"get": _health("healthy", "Whether a restart would help")}
    paths["/-/ready"] = {"get": _health("ready", "Whether the daemon does its work")}
    paths["/-/reload"] = {"post": _reload()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tuner",
            "version": version,
            "description": "Keeps LLM serving engines on the speculative draft length that pays. All of it "
            "is read only but /-/reload. Every GET answers HEAD too.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "security": [{}, {"basic": []}, {"bearer": []}],
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _operation(end: Endpoint) -> dict[str, Any]:
    parameters = [param.schema() for param in end.params]
    codes = {"401": "Authentication is needed", "422": "A query parameter cannot be used"}
    if "{pool}" in end.path:
        text = {"type": "string", "minLength": 1}
        parameters.insert(0, {"name": "pool", "in": "path", "required": True, "schema": text})
    if "{pool}" in end.path or any(param.name == "pool" for param in end.params):
        codes["404"] = "There is no such pool"
    if end.needs == "history":
        codes["503"] = "The database does not answer"
    return {
        "operationId": end.schema,
        "summary": end.summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": end.summary, "content": {"application/json": {"schema": ref(end.schema)}}},
            **{code: _error(text) for code, text in sorted(codes.items())},
        },
    }


def _error(text: str) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": ref("Error")}}}


def _text(text: str) -> dict[str, Any]:
    return {"description": text, "content": {"text/plain": {"schema": {"type": "string"}}}}


def _document() -> dict[str, Any]:
    content = {"application/json": {"schema": {"type": "object"}}}
    return {
        "operationId": "OpenApi",
        "summary": "This document",
        "responses": {
            "200": {"description": "OpenAPI 3.1", "content": content},
            "401": _error("As elsewhere"),
        },
    }


def _index() -> dict[str, Any]:
    content = {"application/json": {"schema": ref("Index")}}
    return {
        "operationId": "Index",
        "summary": "Where the API is described",
        "responses": {
            "200": {"description": "Paths", "content": content},
            "401": _error("As elsewhere"),
        },
    }


def _metrics() -> dict[str, Any]:
    content = {
        media: {"schema": {"type": "string"}} for media in ("text/plain", "application/openmetrics-text")
    }
    return {
        "operationId": "Metrics",
        "summary": "Metrics of the tuner, in the format that is asked for",
        "responses": {"200": {"description": "Samples", "content": content}, "401": _text("As elsewhere")},
    }


def _health(name: str, summary: str) -> dict[str, Any]:
    return {
        "operationId": name.capitalize(),
        "summary": summary,
        "security": [],
        "responses": {"200": _text("Yes"), "503": _text("No, and why, one reason a line")},
    }


def _reload() -> dict[str, Any]:
    codes = {
        "401": "The bearer token is needed",
        "403": "Wrong token, none configured, or web.enable_lifecycle is off",
        "422": "The settings were refused; the old ones stay",
    }
    return {
        "operationId": "Reload",
        "summary": "Read the settings again",
        "security": [{"bearer": []}],
        "responses": {"200": _text("Done"), **{code: _text(text) for code, text in codes.items()}},
    }
