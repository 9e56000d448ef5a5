"""Health and readiness: open, fast, with reasons."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.serve.worlds import Ledger, decision, snapshot
from tuner.cycle import Evidence, State, run_once

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import httpx2

    from tuner.fleet import Window

    Served = Callable[..., httpx2.Client]

PATHS = {"/-/healthy": "unhealthy", "/-/ready": "not_ready"}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_good_daemon_answers_200(served: Served, path: str, method: str) -> None:
    """GET says so in one line, HEAD without a body."""
    answer = served().request(method, path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.text == ("" if method == "HEAD" else f"tuner is {path[3:]}\n")


@pytest.mark.parametrize(("path", "field"), PATHS.items())
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_bad_one_answers_503_with_its_reasons(served: Served, path: str, field: str, method: str) -> None:
    """One reason a line, also where a reason had several lines."""
    shown = snapshot(**{field: ("job cycle hangs", "store: no\nanswer")})
    answer = served(view=lambda: shown).request(method, path)
    assert answer.status_code == 503
    assert answer.text == ("" if method == "HEAD" else "job cycle hangs\nstore: no answer\n")


def test_health_and_readiness_are_apart(served: Served) -> None:
    """A daemon that stands by or starts is healthy: a restart would not help."""
    shown = snapshot(not_ready=("starting",))
    client = served(view=lambda: shown)
    assert client.get("/-/healthy").status_code == 200
    assert client.get("/-/ready").status_code == 503


def test_a_fit_in_another_thread_does_not_delay_health(served: Served) -> None:
    """While fits run one after the other and a lock is held, 50 health requests are answered."""
    client, lock, done = served(), threading.Lock(), threading.Event()
    windows = tuple(window for one in decision().pools for window in one.windows)
    cycles: list[float] = []

    def fit() -> None:
        with lock:
            while not done.is_set():
                started = time.monotonic()
                run_once(Evidence(windows), State(), 2e9)
                cycles.append(time.monotonic() - started)

    worker = threading.Thread(target=fit)
    worker.start()
    try:
        answers = [client.get("/-/healthy") for _ in range(50)]
        assert lock.locked()
    finally:
        done.set()
        worker.join(60.0)
    assert {answer.status_code for answer in answers} == {200}
    assert cycles


class _Hanging(Ledger):
    """A database that answers when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Semaphore(0)
        self.go = threading.Event()

    def recent_windows(self, pool: str, since: float, limit: int) -> list[Window]:
        """Wait, then answer."""
        self.asked.release()
        assert self.go.wait(60.0)
        return super().recent_windows(pool, since, limit)


def test_a_database_that_hangs_delays_its_own_callers_only(served: Served) -> None:
    """Twenty requests hang in the database; health, metrics, status and reasons are answered (case B59)."""
    history = _Hanging()
    client = served(history=history)
    codes: list[int] = []

    def ask() -> None:
        codes.append(client.get("/api/v1/windows", params={"pool": "chat"}).status_code)

    callers = [threading.Thread(target=ask) for _ in range(20)]
    for caller in callers:
        caller.start()
    try:
        assert history.asked.acquire(timeout=30.0)
        paths: Sequence[str] = (
            "/-/healthy",
            "/-/ready",
            "/metrics",
            "/api/v1/status",
            "/api/v1/pools/chat",
            "/",
        )
        assert [client.get(path).status_code for path in paths] == [200] * len(paths)
        assert codes == []
    finally:
        history.go.set()
        for caller in callers:
            caller.join(30.0)
    assert codes == [200] * 20


def test_a_database_that_never_answers_is_given_up(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its time the caller is told; when every thread hangs, callers are told at once."""
    monkeypatch.setattr("tuner.serve.app.ANSWER_SECONDS", 0.05)
    history = _Hanging()
    client = served(history=history)
    try:
        answers = [client.get("/api/v1/windows", params={"pool": "chat"}) for _ in range(12)]
    finally:
        history.go.set()
    assert {answer.status_code for answer in answers} == {503}
    reasons = [answer.json()["error"] for answer in answers]
    assert "did not answer within" in reasons[0]
    assert "too many requests wait" in reasons[-1]
    assert answers[0].headers["retry-after"] == "10"
