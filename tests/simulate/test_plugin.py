"""The plugin's admin API: who may push, what is refused and why, leases and fences."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.simulate.helper import BEARER, TOKEN, held, one_pool, value
from tuner.simulate import Fleet

TABLE = [[1, 8, 4], [9, 64, 1]]


@pytest.fixture
def fleet() -> Fleet:
    """Return one engine whose table at start-up holds 4, 2 and 1."""
    return Fleet(one_pool(engines=1), token=TOKEN)


def push(fleet: Fleet, **changes: Any) -> tuple[int, dict[str, Any]]:
    """Push a table."""
    body = {"version": "v1", "fence": 1, "ttl_seconds": None, "schedule": TABLE, **changes}
    return fleet.put_schedule("p", 0, body, BEARER)


def read(fleet: Fleet) -> dict[str, Any]:
    """Read back."""
    status, document = fleet.get_schedule("p", 0)
    assert status == 200
    return document


def test_reading_back_tells_the_startup_table(fleet: Fleet) -> None:
    """Before any push the table of the start-up runs, and its draft lengths are those allowed."""
    told = read(fleet)
    assert told["schedule"] == [[1, 8, 4], [9, 24, 2], [25, 64, 1]]
    assert (told["source"], told["version"], told["fence"]) == ("startup", "startup", 0)
    assert told["allowed_draft_lens"] == [1, 2, 4]
    assert (told["max_draft_len"], told["max_batch"]) == (4, 64)
    assert told["supported"] is True
    assert told["reasons"] == []


def test_a_push_runs_and_is_read_back(fleet: Fleet) -> None:
    """A confirmed push stays, and the page's info names its version."""
    status, told = push(fleet)
    assert status == 200
    assert told == read(fleet)
    assert (told["version"], told["schedule"], told["source"]) == ("v1", TABLE, "pushed")
    assert told["expires_at"] is None
    assert value(fleet.body("p", 0), "tuner:schedule_info", version="v1", source="pushed") == 1
    fleet.advance(40)
    assert read(fleet)["source"] == "pushed"


def test_a_lease_reverts_by_itself(fleet: Fleet) -> None:
    """A push with a time to live goes back to the schedule before, at its end and not earlier."""
    push(fleet, ttl_seconds=6)
    assert read(fleet)["expires_at"] == fleet.now + 6
    fleet.advance(5.5)
    assert read(fleet)["source"] == "pushed"
    fleet.advance(1)
    told = read(fleet)
    assert (told["source"], told["version"]) == ("reverted", "startup")
    assert told["schedule"] == [[1, 8, 4], [9, 24, 2], [25, 64, 1]]
    assert fleet.engines.state.table[0, 30] == 1


def test_a_lease_falls_back_to_the_last_confirmed_push(fleet: Fleet) -> None:
    """After a confirmed push and two leases in a row, the confirmed one comes back."""
    push(fleet)
    push(fleet, version="v2", schedule=[[1, 64, 2]], ttl_seconds=10)
    push(fleet, version="v3", schedule=[[1, 64, 4]], ttl_seconds=10)
    fleet.advance(11)
    assert (read(fleet)["version"], read(fleet)["source"]) == ("v1", "reverted")


def test_a_lease_is_renewed_and_confirmed(fleet: Fleet) -> None:
    """Pushing the same version again moves the end; without a time to live it stays for good."""
    push(fleet, ttl_seconds=8)
    first = read(fleet)["applied_at"]
    fleet.advance(5)
    push(fleet, ttl_seconds=8)
    fleet.advance(5)
    assert (read(fleet)["source"], read(fleet)["applied_at"]) == ("pushed", first)
    push(fleet)
    fleet.advance(20)
    assert read(fleet)["source"] == "pushed"


def test_a_lower_fence_is_refused(fleet: Fleet) -> None:
    """409 for a fence below the highest one seen, even after its lease has ended; nothing changes."""
    push(fleet, fence=7, ttl_seconds=5)
    fleet.advance(10)
    status, document = push(fleet, version="v2", fence=6)
    assert (status, document["reasons"]) == (409, ["fence"])
    assert (read(fleet)["fence"], read(fleet)["source"]) == (7, "reverted")
    assert push(fleet, version="v2", fence=7)[0] == 200


def test_a_version_has_one_body(fleet: Fleet) -> None:
    """409 for the same version with another table; the same one again is no change."""
    push(fleet)
    status, document = push(fleet, schedule=[[1, 64, 2]])
    assert (status, document["reasons"]) == (409, ["version_conflict"])
    assert push(fleet, fence=2)[0] == 200
    assert read(fleet)["schedule"] == TABLE


@pytest.mark.parametrize(
    ("authorization", "status"), [(None, 401), ("Basic abc", 401), ("Bearer ", 401), ("Bearer wrong", 403)]
)
def test_a_push_needs_the_token(fleet: Fleet, authorization: str | None, status: int) -> None:
    """401 without a token, 403 with a wrong one; nothing changes."""
    body = {"version": "v1", "fence": 1, "ttl_seconds": None, "schedule": TABLE}
    assert fleet.put_schedule("p", 0, body, authorization)[0] == status
    assert read(fleet)["source"] == "startup"


def test_without_a_token_nothing_is_pushed() -> None:
    """An engine without a configured token refuses every push."""
    fleet = Fleet(one_pool(engines=1))
    assert push(fleet)[0] == 403


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"schedule": [[1, 64, 3]]}, "not allowed"),
        ({"schedule": [[1, 64, 5]]}, "over the maximum"),
        ({"schedule": [[1, 8, 4], [10, 64, 1]]}, "must start at 9"),
        ({"schedule": [[2, 64, 4]]}, "must start at 1"),
        ({"schedule": [[1, 64, True]]}, "is not [first, last, draft_len]"),
        ({"schedule": [[1, 64]]}, "is not [first, last, draft_len]"),
        ({"schedule": []}, "must be a list"),
        ({"fence": -1}, "fence"),
        ({"fence": 1.5}, "fence"),
        ({"version": ""}, "version"),
        ({"version": 3}, "version"),
        ({"ttl_seconds": 0}, "ttl_seconds"),
        ({"ttl_seconds": "30"}, "ttl_seconds"),
        ({"extra": 1}, "unknown field"),
    ],
)
def test_a_bad_push_is_refused_with_its_reason(fleet: Fleet, changes: dict[str, Any], reason: str) -> None:
    """422 with reasons that name the fault; nothing changes."""
    status, document = push(fleet, **changes)
    assert status == 422
    assert reason in " ".join(document["reasons"])
    assert read(fleet)["source"] == "startup"


@pytest.mark.parametrize(
    ("body", "status"), [(b"{", 422), (b"[]", 422), (b" " * 70_000, 413), (b"[" * 60_000, 422)]
)
def test_bodies_that_are_no_request(fleet: Fleet, body: bytes, status: int) -> None:
    """What is no JSON object is refused, what is too large too."""
    assert fleet.put_schedule("p", 0, body, BEARER)[0] == status


def test_an_engine_without_a_table_takes_none() -> None:
    """An engine started without a schedule says that it is not supported, and refuses a push."""
    fleet = Fleet(one_pool(engines=1, schedule=()), token=TOKEN)
    told = read(fleet)
    assert (told["supported"], told["schedule"]) == (False, [[1, 64, 4]])
    status, document = push(fleet)
    assert status == 422
    assert "started_without_schedule" in document["reasons"][0]


def test_a_table_ends_or_goes_on_as_the_engine_has_it(fleet: Fleet) -> None:
    """A table short of the largest batch keeps its last draft length; one beyond it is cut."""
    assert push(fleet, schedule=[[1, 4, 4], [5, 9, 2]])[0] == 200
    assert fleet.engines.state.table[0, [4, 5, 9, 64]].tolist() == [4, 2, 2, 2]
    assert push(fleet, version="v2", schedule=[[1, 500, 1]])[0] == 200
    assert fleet.engines.state.table[0].tolist() == [1] * 65


def test_a_push_changes_what_is_drafted() -> None:
    """Draft tokens per draft follow the pushed table within a step or two."""
    fleet = held(8, 4)
    fleet.advance(10)
    body = json.dumps({"version": "v", "fence": 1, "schedule": [[1, 64, 4]]}).encode()
    assert fleet.put_schedule("p", 0, body, BEARER)[0] == 200
    before = fleet.body("p", 0)
    fleet.advance(10)
    after = fleet.body("p", 0)
    drafts, tokens = (
        value(after, name) - value(before, name)
        for name in ("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_draft_tokens_total")
    )
    assert tokens / drafts == 4
