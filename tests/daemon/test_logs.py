"""The log: one event a line, in either form, and no secret in it."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest
import structlog

from tuner.daemon.logs import configure, redact

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Put logging back as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("GET http://u:pa55@host/x failed", "pa55"),
        ("postgresql+psycopg://tuner:s3cret@db/tuner", "s3cret"),
        ("Authorization: Bearer abcdefgh123", "abcdefgh123"),
        ("headers {'X-Api-Key': 'sk-x'}", "sk-x"),
        ('{"api_key":"sk-x","admin_api_key":"ad-y","speculative_num_steps":3}', "sk-x"),
        ('{"api_key":"sk-x","admin_api_key":"ad-y","speculative_num_steps":3}', "ad-y"),
        ("dsn password=hunter2 host=db", "hunter2"),
        ("sent Bearer tok-1234567", "tok-1234567"),
    ],
)
def test_secrets_are_hidden(text: str, hidden: str) -> None:
    """Credentials in URLs, headers, JSON and connection strings do not reach the log."""
    assert hidden not in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "http://10.0.0.5:8000/metrics answered 503",
        "token_file /etc/tuner/token: cannot be read",
        "1.05 ms per token",
        "2 tokens: 3 drafts",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    """Addresses, paths of secret files and figures are told."""
    assert redact(text) == text


def test_logfmt_is_one_line_an_event(capfd: pytest.CaptureFixture[str]) -> None:
    """A multi-line text is one event, with time, level and facts by name."""
    log = configure("info", "logfmt")
    log.debug("not told")
    log.info("target down", url="http://u:p@h/m", error="first\nsecond")
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert 'level=info event="target down"' in lines[0]
    assert lines[0].startswith("ts=")
    assert 'url=http://h/m error="first second"' in lines[0]


def test_json_is_one_object_a_line_and_libraries_are_told_alike(capfd: pytest.CaptureFixture[str]) -> None:
    """Events of libraries come in the same form; those below warning do not come."""
    log = configure("debug", "json")
    log.error("boom", count=3, ok=False, none=None)
    logging.getLogger("some.library").warning("slow %s", "password=hunter2")
    logging.getLogger("some.library").info("chatter")
    events = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [(e["event"], e["level"]) for e in events] == [
        ("boom", "error"),
        ("slow password=<hidden>", "warning"),
    ]
    assert (events[0]["count"], events[0]["ok"], events[0]["none"]) == (3, False, None)
