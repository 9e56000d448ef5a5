"""The OpenAPI document: it is one, it describes every route, and a fuzzer finds no fault by it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import schemathesis
from hypothesis import HealthCheck, Phase, settings
from starlette.routing import Route

from tests.serve.worlds import Ledger, snapshot
from tuner.serve.app import build_app
from tuner.serve.gate import HEALTH
from tuner.serve.openapi import DOCUMENT_PATH, ENDPOINTS, openapi_document
from tuner.serve.schemas import SCHEMAS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx2

    Served = Callable[..., httpx2.Client]

DOCUMENT = openapi_document("1.2.3")


def _refs(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for inner in value.values():
            yield from _refs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _refs(inner)


def test_the_document_is_served(served: Served) -> None:
    """What is served is what is built, with the version of the daemon."""
    answer = served().get(DOCUMENT_PATH)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == DOCUMENT


def test_every_route_is_described_and_every_description_has_a_route() -> None:
    """Paths and methods of the app and of the document are the same, but for the landing page."""
    shown = snapshot()
    routes = {
        route.path: set(route.methods or ()) - {"HEAD"}
        for route in build_app(lambda: shown).routes
        if isinstance(route, Route)
    }
    del routes["/"]
    described = {path: {method.upper() for method in item} for path, item in DOCUMENT["paths"].items()}
    assert routes == described


def test_every_schema_is_used_and_every_reference_leads_somewhere() -> None:
    """No schema is left over, and none is missing."""
    names = {reference.rsplit("/", 1)[1] for reference in _refs(DOCUMENT)}
    assert names == set(SCHEMAS)
    ids = [operation["operationId"] for item in DOCUMENT["paths"].values() for operation in item.values()]
    assert len(ids) == len(set(ids))


def test_only_reload_is_not_a_read() -> None:
    """A new way to change something must be put under the token knowingly."""
    writes = [
        (path, method)
        for path, item in DOCUMENT["paths"].items()
        for method in item
        if method not in {"get", "head"}
    ]
    assert writes == [("/-/reload", "post")]
    assert DOCUMENT["paths"]["/-/reload"]["post"]["security"] == [{"bearer": []}]
    open_paths = {
        path for path, item in DOCUMENT["paths"].items() if item.get("get", {}).get("security") == []
    }
    assert open_paths == HEALTH
    assert len(ENDPOINTS) == 11


shown_to_fuzzer = snapshot()
reloads: list[int] = []
# A token file that is there and empty: no token is the right one.
fuzzed = build_app(
    lambda: shown_to_fuzzer,
    token_file=Path(os.devnull),
    reload=lambda: reloads.append(1),
    history=Ledger(),
)
schema = schemathesis.openapi.from_dict(DOCUMENT)
schema.app = fuzzed


@schema.parametrize()
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
def test_the_fuzzer_finds_no_fault(case: schemathesis.Case[Any]) -> None:
    """Whatever is sent by the document or against it: no 5xx, answers as described, nothing written."""
    response = case.call()
    assert response.status_code < 500 or response.status_code == 503
    case.validate_response(response)
    if case.method.upper() not in {"GET", "HEAD"}:
        assert response.status_code in {401, 403, 405}
    assert reloads == []


def test_the_page_lists_every_path_and_its_parameters() -> None:
    """``docs/http-api.md`` and the document name the same paths, methods and query parameters."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "http-api.md").read_text()
    rows = re.findall(r"^\| `(/\S*)` \| ([A-Z]+) \| (.*) \|$", page, re.MULTILINE)
    listed = {
        (path, method): set(re.findall(r"`(\w+)`", text.rpartition(":")[2])) if path != "/-/reload" else set()
        for path, method, text in rows
    }
    assert listed.pop(("/", "GET")) == set()
    described = {
        (path, method.upper()): {
            param["name"] for param in operation.get("parameters", ()) if param["in"] == "query"
        }
        for path, item in DOCUMENT["paths"].items()
        for method, operation in item.items()
    }
    assert listed == described
