"""What the API answers, and that it agrees with the other ways to ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from tests.serve.samples import scrape, value
from tests.serve.worlds import Ledger, decision, finding, snapshot, target
from tuner._exceptions import TunerError
from tuner.contract import decision_dict
from tuner.fleet import Finding, Schedule
from tuner.serve.openapi import openapi_document

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx2

    Served = Callable[..., httpx2.Client]

DOCUMENT = openapi_document("1")
ANSWERS = {
    "/status": "Status",
    "/pools": "Pools",
    "/pools?limit=1&offset=1": "Pools",
    "/pools/chat": "Pool",
    "/pools/thin": "Pool",
    "/pools/new": "Pool",
    "/pools/chat/explain": "Explain",
    "/pools/thin/explain": "Explain",
    "/pools/new/explain": "Explain",
    "/engines": "Engines",
    "/engines?pool=chat&state=down": "Engines",
    "/acceptance": "AcceptanceList",
    "/crossover": "CrossoverList",
    "/crossover?pool=thin": "CrossoverList",
    "/schedules?pool=chat&limit=5": "Schedules",
    "/findings": "Findings",
    "/findings?active=false&severity=warning": "Findings",
    "/events?limit=3": "Events",
    "/windows?pool=chat&since=1000000000&limit=7": "Windows",
}


def _get(client: httpx2.Client, path: str) -> Any:
    answer = client.get(f"/api/v1{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def check(document: Any, schema: str) -> None:
    """Hold a document to a schema of the OpenAPI document."""
    whole = {"$ref": f"#/components/schemas/{schema}", "components": DOCUMENT["components"]}
    jsonschema.Draft202012Validator(whole).validate(document)


def test_every_answer_is_what_the_document_says(served: Served) -> None:
    """Real answers of a fleet that is known well, one that is not, and one that is new."""
    client = served()
    for path, schema in ANSWERS.items():
        check(_get(client, path), schema)


def test_a_daemon_that_just_started_answers_too(served: Served) -> None:
    """No decision, no engine, no job: empty lists and reasons, not faults."""
    empty = snapshot(
        decision=None, targets=(), jobs=(), findings=(), schedules=(), observed=snapshot().observed
    )
    client = served(view=lambda: empty)
    for path, schema in ANSWERS.items():
        check(_get(client, path), schema)
    assert _get(client, "/pools/chat")["schedule"] is None
    assert "no cycle" in _get(client, "/pools/chat")["schedule_unknown"]


def test_a_pool_has_the_keys_and_values_of_replay(served: Served) -> None:
    """One implementation makes both, so scripts read either."""
    client = served()
    expected = decision_dict(decision())["pools"]
    for name in ("chat", "thin"):
        told = _get(client, f"/pools/{name}")
        shared = {key: told[key] for key in expected[name] if key != "findings"}
        wanted = {key: expected[name][key] for key in shared}
        assert shared == wanted
        assert [f["code"] for f in told["findings"]] == [f["code"] for f in expected[name]["findings"]]


def test_metrics_and_api_tell_the_same_numbers(served: Served) -> None:
    """The crossover of a scrape is the crossover of the API."""
    (found,) = _get(served(), "/crossover?pool=chat")["crossover"]
    series = scrape(snapshot())
    for name, key in (("", "tokens"), ("_low", "low"), ("_high", "high")):
        assert value(series, f"tuner_crossover_tokens{name}", pool="chat") == found[key]


def test_what_cannot_be_said_has_its_reason(served: Served) -> None:
    """No null without a word: the reason stands beside it."""
    client = served()
    (crossover,) = _get(client, "/crossover?pool=thin")["crossover"]
    assert "one draft length only" in crossover["not_enough_data"]
    explained = _get(client, "/pools/thin/explain")
    assert (explained["schedule"], explained["explain"]) == (None, [])
    assert "only draft length 3" in explained["schedule_unknown"]
    unknown = _get(client, "/acceptance")["cannot_say"]
    assert [(entry["pool"], entry["route"]) for entry in unknown] == [("new", "*")]
    (gain,) = _get(client, "/pools/thin")["predicted_speedup"]
    assert gain["route"] == "*"
    assert "not_enough_data" in gain


def test_routes_stand_beside_their_pool(served: Served) -> None:
    """Acceptance, histograms and speed-up of each route, the whole pool among them as `*`."""
    told = _get(served(), "/pools/chat")
    for key in ("acceptance", "predicted_speedup", "accepted_lengths"):
        assert {entry["route"] for entry in told[key]} == {"*", "tool", "web"}, key
    series = scrape(snapshot())
    for gain in told["predicted_speedup"]:
        found = value(series, "tuner_predicted_speedup_ratio", pool="chat", route=gain["route"])
        assert found == gain["ratio"]


def test_lists_come_in_pages(served: Served) -> None:
    """Pages follow each other without gap or overlap, and tell how much there is."""
    targets = tuple(target("chat", f"e{i:04}") for i in range(250))
    shown = snapshot(targets=targets)
    client = served(view=lambda: shown)
    seen: list[str] = []
    for offset in (0, 100, 200, 300):
        page = _get(client, f"/engines?pool=chat&offset={offset}")
        assert page["total"] == 250
        seen += [engine["engine"] for engine in page["engines"]]
    assert seen == sorted(one.target.engine for one in targets)


def test_windows_are_those_asked_for(served: Served) -> None:
    """The newest of a pool from a moment on, with what follows from their counts."""
    client = served()
    told = _get(client, "/windows?pool=chat&limit=4")
    assert told["truncated"] is True
    starts = [window["start"] for window in told["windows"]]
    assert starts == sorted(starts)
    last = max(window.start for window in Ledger().stored)
    assert starts[-1] == last
    (*_, one) = told["windows"]
    assert one["tokens_per_second"] > 0
    assert one["counts"]["emitted"] > 0
    rest = _get(client, f"/windows?pool=chat&since={last}")
    assert {window["start"] for window in rest["windows"]} == {last}
    assert rest["truncated"] is False


def test_findings_can_be_chosen(served: Served) -> None:
    """Active ones by default; those that are over, one pool or one severity on demand."""
    client = served()
    assert [f["code"] for f in _get(client, "/findings")["findings"]] == ["source_down"]
    both = _get(client, "/findings?active=false")["findings"]
    assert [f["resolved_at"] is None for f in both] == [True, False]
    assert _get(client, "/findings?severity=critical")["findings"] == []
    assert len(_get(client, "/findings?pool=chat&active=false")["findings"]) == 1


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("/engines?limit=0", "limit"),
        ("/engines?limit=1001", "limit"),
        ("/engines?limit=-1", "limit"),
        ("/engines?limit=1.5", "limit"),
        ("/engines?limit=", "limit"),
        ("/engines?limit=%D9%A1", "limit"),
        ("/engines?limit=99999999999999999999", "limit"),
        ("/engines?offset=x", "offset"),
        ("/engines?state=asleep", "state"),
        ("/engines?limit=1&limit=2", "limit"),
        ("/engines?limt=1", "limt"),
        ("/status?pretty=1", "pretty"),
        ("/windows", "pool"),
        ("/windows?pool=", "pool"),
        ("/windows?pool=chat&since=nan", "since"),
        ("/windows?pool=chat&since=-1", "since"),
        ("/windows?pool=chat&since=1e999", "since"),
        ("/findings?active=1", "active"),
        ("/openapi.json?x=1", "x"),
    ],
)
def test_a_bad_query_names_its_parameter(served: Served, query: str, field: str) -> None:
    """422, JSON, one line, and the name of what is wrong."""
    answer = served().get(f"/api/v1{query}")
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert field in error
    assert "\n" not in error


def test_unknown_pools_and_paths_are_404(served: Served) -> None:
    """In JSON below /api, whatever stands in the path."""
    client = served()
    for path in (
        "/pools/nowhere", "/pools/nowhere/explain", "/engines?pool=nowhere", "/acceptance?pool=nowhere",
        "/schedules?pool=nowhere", "/windows?pool=nowhere", "/nothing", "/pools/%00", "/pools/%E2%80%A8",
        "/pools/chat/", "/pools/../status/x",
    ):  # fmt: skip
        answer = client.get(f"/api/v1{path}")
        assert answer.status_code == 404, path
        assert set(answer.json()) == {"error"}


def test_a_database_that_fails_is_503_with_its_line(served: Served) -> None:
    """What the store says of its trouble is passed on; what the snapshot knows is still answered."""
    history = Ledger(fails=TunerError("store sqlite:////x.db: the disk is full: free some space"))
    client = served(history=history)
    for path in ("/schedules", "/findings", "/events", "/windows?pool=chat"):
        answer = client.get(f"/api/v1{path}")
        assert answer.status_code == 503
        assert "disk is full" in answer.json()["error"]
    assert client.get("/api/v1/pools/chat").status_code == 200


def test_without_a_database_its_answers_are_503(served: Served) -> None:
    """Before the store is open, or with none, the reason is told."""
    answer = served(history=None).get("/api/v1/events")
    assert answer.status_code == 503
    assert "no database" in answer.json()["error"]


def test_numbers_that_are_none_become_null(served: Served) -> None:
    """NaN and infinity in a finding's evidence are not JSON; the answer is still one."""
    assert str(finding().evidence["have"]) == "nan"
    told = _get(served(), "/findings")
    assert told["findings"][0]["evidence"] == {"have": None}


def test_head_answers_like_get(served: Served) -> None:
    """Every path answers HEAD with the status of GET and no body."""
    client = served()
    for path in ("/", "/metrics", "/api/v1/status", "/api/v1/pools/nowhere", "/api/v1/engines?limit=0"):
        get, head = client.get(path), client.head(path)
        assert head.status_code == get.status_code
        assert head.content == b""


def test_no_secret_of_an_address_is_told(served: Served) -> None:
    """Labels and addresses come from discovery, which leaves credentials out; none is added here."""
    (engine, *_) = _get(served(), "/engines?pool=chat")["engines"]
    assert engine["url"] == "http://127.0.0.1:8000/chat/e0"
    assert engine["labels"] == {"rack": "r1"}
    assert engine["drift"] is False


def test_engines_tell_what_they_run(served: Served) -> None:
    """The table that was read back, null where it runs none, and whether it was read at all."""
    table = Schedule.from_ranges([[1, 64, 2]])
    shown = snapshot(running={("chat", "e0"): table, ("chat", "e1"): None})
    told = _get(served(view=lambda: shown), "/engines")
    check(told, "Engines")
    rows = {engine["engine"]: (engine["read_back"], engine["running"]) for engine in told["engines"]}
    assert rows == {"e0": (True, [[1, 64, 2]]), "e1": (True, None), "t0": (False, None), "n0": (False, None)}


def test_the_status_names_the_worst_findings(served: Served) -> None:
    """Equal ones once with all their places, the grave first, and no more than fit a screen."""
    many = [finding(f"code_{i}", pool=pool) for i in range(30) for pool in ("a", "b")]
    grave = Finding("worst", "critical", "Look.", {"pool": "a"})
    told = _get(served(view=lambda: snapshot(findings=(*many, grave))), "/status")["worst_findings"]
    assert len(told) == 20
    assert told[0]["code"] == "worst"
    assert told[1]["subjects"] == [{"pool": "a"}, {"pool": "b"}]


def test_the_root_of_the_api_says_where_it_is_described(served: Served) -> None:
    """Who begins there finds the document; a path that is not there names it too."""
    client = served()
    root = client.get("/api/v1").json()
    check(root, "Index")
    assert client.get(root["openapi"]).status_code == 200
    assert set(root["paths"]) <= set(client.get(root["openapi"]).json()["paths"])
    for path in ("/api/v1/", "/api/v1/nothing", "/api"):
        answer = client.get(path)
        assert answer.status_code == 404
        assert "/api/v1/openapi.json" in answer.text
