"""What a server answers, however badly, becomes a value: samples, no data, something undefined, an error."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.observe.prometheus.stub import (
    Stub,
    cut,
    hang,
    matrix,
    reply,
    trickle,
    trickle_headers,
)
from tests.servers import free_port
from tuner.fleet import Target
from tuner.observe.outcomes import NoData, SourceError, Undefined
from tuner.observe.prometheus import PrometheusSource, SourceAnswer
from tuner.observe.prometheus.transport import BoundedTransport

if TYPE_CHECKING:
    from pathlib import Path

NOW = 2_000_000_000.0
TARGET = Target("chat", "a:1", "http://a:1/metrics")
UP = ({"__name__": "up", "instance": "a:1", "job": "vllm"}, [(NOW - 10.0, "1")])
TOKENS = ({"__name__": "tokens_total", "instance": "a:1", "job": "vllm"}, [(NOW - 10.0, "40")])
TOO_MANY = reply({"status": "error", "errorType": "execution", "error": "too many samples"}, 422)
OVERLOADED = reply({"status": "error", "errorType": "timeout", "error": "query timed out"}, 503)
HANG_SECONDS = 30.0
"""Only a hang takes this long; the deadline is half a second."""


class Clock:
    """A monotonic clock that sleeping moves, and the sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def source(stub: Stub, clock: Clock | None = None, **settings: Any) -> PrometheusSource:
    """A source with half a second for a call, or with an injected clock five."""
    if clock is not None:
        settings |= {"monotonic": clock, "sleep": clock.sleep}
    settings = {"timeout": 0.5 if clock is None else 5.0, "scrape_interval": 15.0} | settings
    return PrometheusSource("main", stub.url, **settings)


def ask(asked: PrometheusSource, until: float = NOW) -> SourceAnswer:
    return asked.scrapes([TARGET], 'job="vllm"', frozenset({"tokens_total"}), until - 30, until)


@pytest.mark.parametrize(
    ("answer", "reason", "retryable"),
    [
        (reply("<html>login</html>", content_type="text/html"), "not JSON", False),
        (reply({"status": "error", "errorType": "timeout", "error": "query timed out"}), "refused", False),
        (
            reply({"status": "success", "data": {"resultType": "scalar", "result": [1, "5"]}}),
            "no list",
            False,
        ),
        (reply({"status": "success", "data": {"resultType": "matrix", "result": [5]}}), "no series", False),
        (reply({"status": "success", "data": []}), "no list", False),
        (reply({"status": "error", "error": "parse error"}, 400), "HTTP 400: parse error", False),
        (reply("", 401), "HTTP 401", False),
        (reply("", 302, Location="http://127.0.0.1:1/"), "redirects are not followed", False),
        (reply("[1]"), "not JSON", False),
        (cut, "closed before", True),
        (hang, "no whole answer within", True),
        (trickle, "no whole answer within", True),
        (trickle_headers, "no whole answer within", True),
    ],
)
def test_every_bad_answer_is_an_error(answer: Any, reason: str, retryable: bool) -> None:
    """No exception leaves, nothing becomes 0, and no call outlasts its time."""
    began = time.monotonic()
    with Stub(answer).serve() as stub:
        asked = source(stub)
        got = ask(asked)
        assert isinstance(got.error, SourceError)
        assert reason in got.error.reason
        assert got.error.retryable is retryable
        assert got.scraped == {}
        assert not asked.up
    assert time.monotonic() - began < HANG_SECONDS


@pytest.mark.parametrize("sample", [[1], "x", [NOW - 10, "much"], [NOW - 10, None], 7])
def test_malformed_samples_are_an_error(sample: Any) -> None:
    """One sample that is none makes the answer unusable; it is not left out in silence."""
    document = matrix(UP)
    document["data"]["result"][0]["values"] = [sample]
    with Stub(reply(document)).serve() as stub:
        asked = source(stub)
        assert isinstance(ask(asked).error, SourceError)
        assert isinstance(asked.series(frozenset({"up"}), "", NOW - 30, NOW), SourceError)


def test_a_refused_connection_is_tried_again_in_time() -> None:
    """A server that restarts is asked three times within the deadline, no more."""
    clock = Clock()
    url = f"http://127.0.0.1:{free_port()}"
    error = ask(PrometheusSource("main", url, scrape_interval=15.0, monotonic=clock, sleep=clock.sleep)).error
    assert error is not None
    assert "connection refused" in error.reason
    assert len(clock.slept) == 2
    assert sum(clock.slept) < 1.0


def test_the_four_answers_stay_four_things() -> None:
    """Empty, NaN, infinite and failed: none is a number, and only the last counts against the source."""
    vector = {"resultType": "vector", "result": []}
    nan = {"resultType": "vector", "result": [{"metric": {}, "value": [1, "NaN"]}]}
    infinite = {"resultType": "vector", "result": [{"metric": {}, "value": [1, "+Inf"]}]}
    scalar = {"resultType": "scalar", "result": [1, "5"]}
    for data, kind, up in (
        (vector, NoData, True),
        (nan, Undefined, True),
        (infinite, Undefined, True),
        (scalar, float, True),
        (None, SourceError, False),
    ):
        answer = reply({"status": "success", "data": data}) if data else reply("oops", 500)
        with Stub(answer).serve() as stub:
            asked = source(stub, Clock())
            assert isinstance(asked.value("x", NOW), kind)
            assert asked.up is up


def test_the_range_ends_now_however_long_the_process_has_run() -> None:
    """The client's own default window is computed when it is imported; ours moves."""
    with Stub(reply(matrix(UP, TOKENS))).serve() as stub:
        asked = source(stub)
        for until in (NOW, NOW + 3600.0):
            ask(asked, until)
            assert abs(float(stub.requests[-1].form["time"]) - until) <= 2.0
            assert float(stub.requests[-1].form["timeout"]) <= 0.5
        assert stub.requests[0].form["query"].startswith('{__name__=~"tokens_total|up",job="vllm"}[')


def test_overload_is_retried_twice_and_no_more() -> None:
    """A 503 may pass: three requests, with growing waits by chance, inside the deadline."""
    with Stub(OVERLOADED).serve() as stub:
        clock = Clock()
        error = ask(source(stub, clock)).error
        assert error is not None
        assert error.reason == "HTTP 503: query timed out"
        assert len(stub.requests) == 3
        assert 0 < clock.slept[0] < 0.31 < sum(clock.slept) < 15.0 / 2


def test_overload_that_passes_is_an_answer() -> None:
    """The second try is as good as a first."""
    with Stub(OVERLOADED, reply(matrix(UP, TOKENS))).serve() as stub:
        got = ask(source(stub, Clock()))
        assert got.error is None
        assert [one.time for one in got.scraped[TARGET]] == [NOW - 10]


def test_retry_after_is_honoured() -> None:
    """After a 429 with Retry-After nothing is sent for that long, by any pool; then it is asked again."""
    limited = reply({"status": "error", "error": "rate limit"}, 429, Retry_After="30")
    with Stub(limited, reply(matrix(UP, TOKENS))).serve() as stub:
        clock = Clock()
        asked = source(stub, clock)
        assert ask(asked).error is not None
        clock.now = 29.0
        waiting = ask(asked).error
        assert waiting is not None
        assert "not asked for another 1 s" in waiting.reason
        assert len(stub.requests) == 1
        clock.now = 30.5
        assert ask(asked).error is None
        assert len(stub.requests) == 2


def test_retry_after_may_be_a_date() -> None:
    """It is held against the server's own clock, not against ours."""
    dates = {"Date": "Sun, 29 Nov 2026 16:00:00 GMT", "Retry_After": "Sun, 29 Nov 2026 16:01:00 GMT"}
    with Stub(reply("", 503, **dates)).serve() as stub:
        clock = Clock()
        asked = source(stub, clock)
        ask(asked)
        clock.now = 59.0
        ask(asked)
        assert len(stub.requests) == 1


def test_a_server_that_hangs_is_left_alone_for_a_while() -> None:
    """Other pools of the same round do not wait for it too."""
    with Stub(hang).serve() as stub:
        asked = source(stub)
        ask(asked)
        error = ask(asked).error
        assert error is not None
        assert "not asked for another" in error.reason
        assert len(stub.requests) == 1


def test_get_is_used_where_post_is_not_allowed() -> None:
    """Some gateways let only reads through."""
    with Stub(reply("", 405), reply(matrix(UP, TOKENS))).serve() as stub:
        asked = source(stub)
        assert ask(asked).error is None
        ask(asked, NOW + 15)
        assert [request.method for request in stub.requests] == ["POST", "GET", "GET"]
        assert stub.requests[1].form["query"] == stub.requests[0].form["query"]


def test_an_answer_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body is read up to a bound; one engine over it is a finding, not memory."""
    monkeypatch.setattr(BoundedTransport.__init__, "__kwdefaults__", {"max_bytes": 1000})
    with Stub(reply(matrix(*[UP] * 50))).serve() as stub:
        got = ask(source(stub))
        assert got.error is None
        assert [finding.code for finding in got.findings] == ["query_too_large"]


def test_credentials_come_from_files_at_each_use(tmp_path: Path) -> None:
    """A token that was renewed is used at once; one that is missing is an error that names the file."""
    token = tmp_path / "token"
    token.write_text("first\n")
    with Stub(reply(matrix(UP))).serve() as stub:
        asked = source(stub, bearer_token_file=token, headers={"X-Scope-OrgID": "team"})
        ask(asked)
        token.write_text("second")
        ask(asked)
        assert [r.headers["authorization"] for r in stub.requests] == ["Bearer first", "Bearer second"]
        assert stub.requests[0].headers["x-scope-orgid"] == "team"
        token.unlink()
        error = ask(asked).error
        assert error is not None
        assert str(token) in error.reason
        assert len(stub.requests) == 2


def test_basic_authentication(tmp_path: Path) -> None:
    """The password is read from its file; the user's name is no secret."""
    password = tmp_path / "password"
    password.write_text("pass word\n")
    with Stub(reply(matrix(UP))).serve() as stub:
        ask(source(stub, username="tuner", password_file=password))
        assert stub.requests[0].headers["authorization"] == "Basic dHVuZXI6cGFzcyB3b3Jk"


def test_the_environment_adds_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither a .netrc nor a proxy of the shell the daemon was started from changes where secrets go."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with Stub(reply(matrix(UP))).serve() as stub:
        assert ask(source(stub)).error is None
        assert "authorization" not in stub.requests[0].headers


def test_nothing_secret_is_shown() -> None:
    """Credentials in a URL are used, and appear in no error, finding or repr, nor do the server's echoes."""
    echo = reply({"status": "error", "error": "cannot reach http://u:p@10.0.0.1/x"}, 500)
    with Stub(echo).serve() as stub:
        clock = Clock()
        url = stub.url.replace("http://", "http://user:hunter2@") + "/prefix"
        asked = PrometheusSource("main", url, scrape_interval=15.0, monotonic=clock, sleep=clock.sleep)
        got = ask(asked)
        clock.now += 400.0
        shown = f"{asked!r} {got!r} {asked.findings()!r} {vars(asked)!r}"
        assert stub.requests[0].headers["authorization"].startswith("Basic ")
        assert stub.requests[0].path.startswith("/prefix/api/v1/query")
        assert "hunter2" not in shown
        assert "u:p" not in shown
        assert "metrics_source_down" in shown


def test_five_minutes_of_errors_are_one_finding() -> None:
    """Down is down from the first error on, an answer ends it, an empty one too."""
    with Stub(reply("", 500)).serve() as stub:
        clock = Clock()
        asked = source(stub, clock)
        for minute in range(5):
            clock.now = minute * 60.0
            assert ask(asked).findings == ()
        clock.now = 301.0
        (finding,) = ask(asked).findings
        assert (finding.code, finding.severity) == ("metrics_source_down", "critical")
        assert finding.evidence["reason"] == "HTTP 500"
        stub.answers = [reply(matrix())]
        assert [f.code for f in ask(asked).findings] == ["target_not_in_source"]
        assert asked.up


def test_a_wrong_certificate_file_is_named(tmp_path: Path) -> None:
    """A CA file that is not there is an error of ours, with its path."""
    asked = PrometheusSource(
        "main", "https://127.0.0.1:1", ca_file=tmp_path / "ca.pem", scrape_interval=15.0, timeout=0.5
    )
    error = ask(asked).error
    assert error is not None
    assert str(tmp_path / "ca.pem") in error.reason
