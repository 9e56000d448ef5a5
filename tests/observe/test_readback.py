"""Reading back what an engine runs: whole answers, refusals, and everything that is no answer."""

from __future__ import annotations

import json
import logging
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from tuner.fleet import Schedule
from tuner.observe.outcomes import SourceError
from tuner.observe.readback import LARGEST_ANSWER, Readback, read_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ANSWER: dict[str, Any] = {
    "version": "3f2a90c1b2d4",
    "schedule": [[1, 8, 4], [9, 64, 2]],
    "source": "pushed",
    "applied_at": 1_800_000_000.5,
    "expires_at": None,
    "fence": 7,
    "allowed_draft_lens": [4, 2, 0],
    "max_draft_len": 4,
    "max_batch": 64,
    "boot_id": "b-1",
    "engine_version": "0.32.0",
    "plugin_version": "0.1.0",
    "supported": True,
    "reasons": [],
}
TOKEN = "s3cret-token"  # noqa: S105 - a token of this test alone


@contextmanager
def admin(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """Serve one kind of answer on loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def reply(status: int, body: bytes, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    """Answer with a status and a body."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def ask(url: str, *, token: str | None = None, seconds: float = 5.0) -> Readback | SourceError:
    with httpx2.Client(trust_env=False) as client:
        return read_back(client, url, token, seconds=seconds)


def told(**changes: object) -> Readback | SourceError:
    """Return what becomes of the answer with some fields changed."""
    with admin(reply(200, json.dumps({**ANSWER, **changes}).encode())) as url:
        return ask(url)


def test_an_answer_is_read_whole() -> None:
    """Every field of the contract comes back in its own type."""
    read = told()
    assert read == Readback(
        version="3f2a90c1b2d4",
        schedule=Schedule.from_ranges([[1, 8, 4], [9, 64, 2]]),
        source="pushed",
        fence=7,
        applied_at=1_800_000_000.5,
        expires_at=None,
        allowed_draft_lens=(0, 2, 4),
        max_draft_len=4,
        max_batch=64,
        boot_id="b-1",
        engine_version="0.32.0",
        plugin_version="0.1.0",
        supported=True,
        reasons=(),
    )


def test_an_engine_without_a_table_says_so() -> None:
    """Started without one, it runs one draft length and takes no push."""
    read = told(schedule=[], supported=False, reasons=["started_without_schedule"], source="startup")
    assert isinstance(read, Readback)
    assert (read.schedule, read.supported, read.reasons) == (None, False, ("started_without_schedule",))


def test_secrets_of_an_answer_are_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    """Only known fields are kept: keys that an engine tells by mistake are in no value, text or log."""
    caplog.set_level(logging.DEBUG, logger="tuner")
    good = told(api_key="sk-x", admin_api_key="ad-y", args={"api_key": "sk-x"})
    bad = told(api_key="sk-x", max_batch="ad-y")
    assert isinstance(good, Readback)
    assert isinstance(bad, SourceError)
    assert not any(
        secret in text for secret in ("sk-x", "ad-y") for text in (repr(good), repr(bad), caplog.text)
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"schedule": "[[1,8,4]]"},
        {"schedule": [[1, 8]]},
        {"schedule": [[2, 8, 4]]},
        {"schedule": [[1, 8, -4]]},
        {"schedule": [[1, 8.5, 4]]},
        {"schedule": [[1, 8, True]]},
        {"schedule": [[1, 10**30, 4]]},
        {"schedule": [[i, i, 1] for i in range(1, 5000)]},
        {"source": "somewhere"},
        {"source": None},
        {"version": 12},
        {"fence": -1},
        {"fence": 1.5},
        {"fence": True},
        {"applied_at": "yesterday"},
        {"applied_at": float("nan")},
        {"applied_at": float("inf")},
        {"allowed_draft_lens": [1, "2"]},
        {"allowed_draft_lens": {"1": 2}},
        {"max_batch": 2.5},
        {"reasons": [1]},
        {"reasons": "none"},
    ],
)
def test_a_field_that_cannot_be_spoils_the_answer(changes: dict[str, object]) -> None:
    """A table is trusted whole or not at all; asking again would not help."""
    read = told(**changes)
    assert isinstance(read, SourceError)
    assert read.reason.startswith("answer cannot be used: ")
    assert (read.retryable, len(read.reason) < 200, "\n" in read.reason) == (False, True, False)


@pytest.mark.parametrize(
    ("status", "retryable", "word"),
    [
        (401, False, "token"),
        (403, False, "token"),
        (404, False, "plugin"),
        (418, False, "HTTP 418"),
        (408, True, "HTTP 408"),
        (429, True, "HTTP 429"),
        (500, True, "HTTP 500"),
        (503, True, "HTTP 503"),
    ],
)
def test_statuses_say_what_to_do(status: int, retryable: bool, word: str) -> None:
    """A refusal is not asked again, an overload is; nothing of the body is quoted."""
    with admin(reply(status, b'{"error": "sk-x"}')) as url:
        read = ask(url)
    assert isinstance(read, SourceError)
    assert (read.retryable, word in read.reason, "sk-x" in read.reason) == (retryable, True, False)


def test_redirects_are_not_followed() -> None:
    """The token goes to the configured address alone."""
    asked: list[str | None] = []

    def thief(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.headers.get("Authorization"))
        reply(200, json.dumps(ANSWER).encode())(handler)

    with admin(thief) as elsewhere, admin(reply(302, b"", Location=elsewhere)) as url:
        read = ask(url, token=TOKEN)
    assert isinstance(read, SourceError)
    assert (read.reason[:8], asked) == ("HTTP 302", [])


def test_the_token_is_sent_and_never_told() -> None:
    """It is in the request, and in no value and no error."""
    asked: list[str | None] = []

    def guard(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.headers.get("Authorization"))
        reply(200, json.dumps(ANSWER).encode())(handler)

    with admin(guard) as url:
        read = ask(url, token=TOKEN)
        odd = ask(url, token=f"{TOKEN}\r\nX: y")
        odder = ask(url, token=f"{TOKEN}\u20ac")
    assert asked == [f"Bearer {TOKEN}"]
    assert isinstance(read, Readback)
    assert all(isinstance(one, SourceError) and TOKEN not in one.reason for one in (odd, odder))


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"<html><body>login</body></html>", "not JSON"),
        (b"", "not JSON"),
        (b"[1, 2]", "no JSON object"),
        (b"[" * 100_000, "not JSON"),
        (b'{"fence": ' + b"9" * 6000 + b"}", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"x" * (LARGEST_ANSWER + 1), f"over {LARGEST_ANSWER} bytes"),
    ],
)
def test_what_is_no_answer_is_an_error(body: bytes, word: str) -> None:
    """HTML, nothing, other JSON, endless nesting, a huge body: an error in one line."""
    with admin(reply(200, body)) as url:
        read = ask(url)
    assert isinstance(read, SourceError)
    assert word in read.reason


def test_a_packed_answer_is_refused() -> None:
    """A small body could unpack to gigabytes."""
    with admin(reply(200, b"\x1f\x8b", **{"Content-Encoding": "gzip"})) as url:
        read = ask(url)
    assert isinstance(read, SourceError)
    assert "packed" in read.reason


@pytest.mark.parametrize("where", ["body", "header"])
def test_one_byte_at_a_time_is_given_up(where: str) -> None:
    """Each byte comes in time, the answer does not: the whole exchange is bounded."""
    ended = threading.Event()

    def trickle(handler: BaseHTTPRequestHandler) -> None:
        if where == "body":
            handler.send_response(200)
            handler.end_headers()
        while not ended.wait(0.05):
            try:
                handler.wfile.write(b"H")
                handler.wfile.flush()
            except OSError:
                return

    with admin(trickle) as url:
        begun = time.monotonic()
        read = ask(url, seconds=0.5)
        taken = time.monotonic() - begun
        ended.set()
    assert isinstance(read, SourceError)
    assert read.retryable
    assert taken < 10


def test_silence_and_a_closed_port_may_be_asked_again() -> None:
    """No answer in time, and nobody there: both are the engine's state of the moment."""
    ended = threading.Event()

    def silence(_: BaseHTTPRequestHandler) -> None:
        ended.wait(10)

    with admin(silence) as url:
        silent = ask(url, seconds=0.3)
        ended.set()
    closed = ask(url)
    assert isinstance(silent, SourceError)
    assert isinstance(closed, SourceError)
    assert (silent.retryable, closed.retryable) == (True, True)


@pytest.mark.parametrize("url", ["", "ftp://10.0.0.1", "http://", "10.0.0.1:8000"])
def test_what_is_no_address_is_not_asked(url: str) -> None:
    """A template that gives no http address is a fault of the settings."""
    read = ask(url)
    assert isinstance(read, SourceError)
    assert (read.retryable, "admin.url_template" in read.reason) == (False, True)


def test_credentials_in_an_address_are_not_told() -> None:
    """Whatever fails, user and password are in no message."""
    for url in ("http://u:p4ss@127.0.0.1:9", "http://u:p4ss@127.0.0.1:99999", "http://u:p4ss@[::1"):
        read = ask(url, seconds=0.5)
        assert isinstance(read, SourceError)
        assert "p4ss" not in read.reason
