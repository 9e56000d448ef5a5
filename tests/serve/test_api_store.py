"""The API over a real database: what was written is what is answered."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.serve.test_api import check
from tests.serve.worlds import NOW, chat_windows, finding
from tuner.fleet import Schedule
from tuner.store import Store, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import httpx2

    Served = Callable[..., httpx2.Client]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A SQLite database with windows, a schedule, findings and an event."""
    opened = open_store(f"sqlite:///{tmp_path / 'tuner.db'}")
    opened.migrate()
    keeper = opened.lease("test", 20.0)
    fence = keeper.try_acquire(0.0)
    assert fence is not None
    opened.add_windows(chat_windows(), fence=fence)
    table = Schedule.from_ranges([[1, 8, 4], [9, 64, 2]])
    opened.propose_schedule("chat", table, state="active", why="first", now=NOW, fence=fence)
    opened.record_findings([finding_of("source_down"), finding_of("old_one")], now=NOW - 60.0, fence=fence)
    opened.record_findings([finding_of("source_down")], now=NOW, fence=fence)
    opened.add_event("tuner", "propose", {"pool": "chat"}, "better", {"gain": 0.1}, now=NOW, fence=fence)
    yield opened
    opened.close()


def finding_of(code: str) -> Any:
    """Return a finding of the pool ``chat`` without a number that a database cannot keep."""
    return replace(finding(code, pool="chat"), evidence={"have": 1})


def test_answers_are_what_was_written(served: Served, store: Store) -> None:
    """Schedules, findings, events and windows come back whole, in the form of the document."""
    client = served(history=store)

    def get(path: str, schema: str) -> Any:
        answer = client.get(f"/api/v1{path}")
        assert answer.status_code == 200, answer.text
        check(answer.json(), schema)
        return answer.json()

    (schedule,) = get("/schedules?pool=chat", "Schedules")["schedules"]
    assert (schedule["state"], schedule["schedule"], schedule["number"]) == (
        "active",
        [[1, 8, 4], [9, 64, 2]],
        1,
    )
    assert [f["code"] for f in get("/findings", "Findings")["findings"]] == ["source_down"]
    over = {f["code"]: f["resolved_at"] for f in get("/findings?active=false", "Findings")["findings"]}
    assert over["source_down"] is None
    assert over["old_one"] == NOW
    (event,) = get("/events", "Events")["events"]
    assert (event["actor"], event["action"], event["detail"]) == ("tuner", "propose", {"gain": 0.1})
    windows = get("/windows?pool=chat&limit=1000", "Windows")["windows"]
    assert len(windows) == len(chat_windows())
    emitted = sum(window["counts"]["emitted"] for window in windows)
    assert emitted == sum(window.counts.emitted or 0.0 for window in chat_windows())


def test_no_connection_is_left_out_after_failures(served: Served, store: Store) -> None:
    """Two hundred requests, good and bad, leave no connection of the pool in use (case B59)."""
    client = served(history=store)
    paths = ("/windows?pool=chat&limit=1", "/windows?pool=no", "/findings?limit=0", "/events", "/schedules")
    codes = {client.get(f"/api/v1{path}").status_code for path in paths for _ in range(40)}
    assert codes == {200, 404, 422}
    assert store.checked_out == 0


def test_a_database_without_tables_is_503(served: Served, tmp_path: Path) -> None:
    """A store that is not migrated answers with its own line, and the rest goes on."""
    empty = open_store(f"sqlite:///{tmp_path / 'empty.db'}")
    try:
        client = served(history=empty)
        answer = client.get("/api/v1/events")
        assert answer.status_code == 503
        assert "\n" not in answer.json()["error"]
        assert client.get("/api/v1/status").status_code == 200
    finally:
        empty.close()
