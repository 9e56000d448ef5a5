"""What an engine says it runs: ``GET /tuner/v1/schedule`` of the tuner's plugin.

Only the fields below are read, each checked for what it must be; whatever else an engine answers (some
tell their start-up arguments, keys included) is neither kept nor quoted.
"""

from __future__ import annotations

import json
import math
import re
import threading
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tuner._exceptions import ScheduleError
from tuner.fleet import Schedule, ScheduleRange
from tuner.observe.outcomes import (
    HTTP_OK,
    HTTP_SERVER_ERROR,
    HTTP_TIMEOUT,
    HTTP_TOO_MANY,
    SourceError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx2

PATH = "/tuner/v1/schedule"
LARGEST_ANSWER = 256 * 1024
"""Bytes: a table with a row for each of 4 096 batch sizes takes 60 KB."""
MOST_ROWS = 4096
LARGEST_CELL = 2**31
MOST_DRAFT_LENS = 129
MOST_REASONS = 16
LONGEST_TEXT = 128
SECONDS = 5.0
"""For everything, from the connection to the last byte."""
MOST_LEFT_BEHIND = 8
"""Requests that were given up and still hold a thread, since a header comes a byte at a time."""
SOURCES = frozenset({"startup", "pushed", "reverted"})
LARGEST_FENCE = 2**63 - 1
_PLAIN = re.compile(r"[^\x20-\x7e]+")
_STATUSES = {
    401: "asks for a token: set admin.token_file",
    403: "refuses the token: check admin.token_file",
    404: "has no such path: load the tuner's plugin, or leave admin out",
}
_left_behind = threading.BoundedSemaphore(MOST_LEFT_BEHIND)


@dataclass(frozen=True, slots=True)
class Readback:
    """What one engine says of its schedule; an empty text or ``None`` is what it does not tell."""

    version: str
    schedule: Schedule | None
    """``None`` where the engine runs one draft length for all batch sizes."""
    source: str
    """``startup``, ``pushed`` or ``reverted``."""
    fence: int
    applied_at: float | None
    """Unix seconds by the engine's clock."""
    expires_at: float | None
    allowed_draft_lens: tuple[int, ...]
    max_draft_len: int | None
    max_batch: int | None
    boot_id: str
    engine_version: str
    plugin_version: str
    supported: bool
    reasons: tuple[str, ...]
    """Why a push is not supported."""


def read_back(
    client: httpx2.Client, admin_url: str, token: str | None, *, seconds: float = SECONDS
) -> Readback | SourceError:
    """Ask one engine which schedule it runs. Never raises; redirects are not followed.

    Args:
        client: sends the request.
        admin_url: address of the admin API, without path.
        token: bearer token, sent to this address alone and found in no message.
        seconds: for everything, however slowly the answer comes.

    Returns:
        What it says, or why nothing can be said; a refusal is not retryable, silence is.
    """
    if not _is_address(admin_url):
        return SourceError("admin address is no http(s) URL: check admin.url_template", retryable=False)
    if not _left_behind.acquire(blocking=False):
        return SourceError(f"{MOST_LEFT_BEHIND} engines still keep earlier requests open", retryable=True)
    answers: list[Readback | SourceError] = []
    finished = threading.Event()

    def ask() -> None:
        try:
            answers.append(_ask(client, admin_url.rstrip("/") + PATH, token, seconds))
        finally:
            _left_behind.release()
            finished.set()

    threading.Thread(target=ask, name="read_back", daemon=True).start()
    if not finished.wait(seconds + 1.0) or not answers:
        return SourceError(f"no answer within {seconds:g} s", retryable=True)
    return answers[0]


def _is_address(url: str) -> bool:
    """Tell whether a URL names a host to ask."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port or an address in brackets that is none
        return False


class _UnusableError(Exception):
    """There is no answer to use; never leaves this module."""

    def __init__(self, reason: str, *, retryable: bool = False) -> None:
        super().__init__(reason)
        self.error = SourceError(reason, retryable)


def _ask(client: httpx2.Client, url: str, token: str | None, seconds: float) -> Readback | SourceError:
    """Send the request and read the answer, whole or not at all.

    No message quotes what the client or the engine said: either may hold the token or a key.
    """
    import httpx2  # noqa: PLC0415 - 80 ms that nobody pays who reads back nothing

    try:
        return _read(_content(client, url, token, seconds))
    except _UnusableError as error:
        return error.error
    except httpx2.TimeoutException:
        return SourceError(f"no answer within {seconds:g} s", retryable=True)
    except (httpx2.HTTPError, httpx2.StreamError) as error:
        kind = type(error).__name__
        return SourceError(f"cannot be reached ({kind}): check address and network", retryable=True)
    except (httpx2.InvalidURL, httpx2.CookieConflict, RuntimeError, ValueError) as error:
        kind = type(error).__name__
        return SourceError(f"cannot be asked ({kind}): check address and token", retryable=False)


def _content(client: httpx2.Client, url: str, token: str | None, seconds: float) -> bytes:
    """Return the body of an answer.

    Raises:
        _UnusableError: another status than 200, packed, too large or too slow.
    """
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    deadline = monotonic() + seconds
    content = bytearray()
    with client.stream("GET", url, headers=headers, timeout=seconds, follow_redirects=False) as answer:
        status = answer.status_code
        if status != HTTP_OK:
            retryable = status >= HTTP_SERVER_ERROR or status in (HTTP_TOO_MANY, HTTP_TIMEOUT)
            raise _UnusableError(
                f"HTTP {status}: {_STATUSES.get(status, 'is no answer')}", retryable=retryable
            )
        if answer.headers.get("content-encoding", "identity") != "identity":
            raise _UnusableError("answer is packed although nobody asked for that")
        for chunk in answer.iter_raw():
            content += chunk
            if len(content) > LARGEST_ANSWER:
                raise _UnusableError(f"answer is over {LARGEST_ANSWER} bytes")
            if monotonic() > deadline:
                raise _UnusableError(f"no answer within {seconds:g} s", retryable=True)
    return bytes(content)


def _read(content: bytes) -> Readback | SourceError:
    """Take the known fields of an answer; one that is not what it must be spoils all."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return SourceError("answer is not JSON: is this the plugin's admin API?", retryable=False)
    if not isinstance(document, dict):
        return SourceError("answer is no JSON object: is this the plugin's admin API?", retryable=False)
    try:
        return _readback(document)
    except ScheduleError as error:
        return SourceError(f"answer cannot be used: {str(error)[:LONGEST_TEXT]}", retryable=False)
    except ValueError as error:
        # The name of the field alone: its value may be anything.
        return SourceError(f"answer cannot be used: {error} is not what it must be", retryable=False)


def _readback(document: Mapping[str, object]) -> Readback:
    """Return the known fields.

    Raises:
        ScheduleError: the table breaks a rule; the message quotes its numbers.
        ValueError: a field is not what it must be; the message is its name.
    """
    return Readback(
        version=_text(document, "version"),
        schedule=_schedule(document.get("schedule")),
        source=_source(document),
        fence=_whole(document, "fence", LARGEST_FENCE) or 0,
        applied_at=_time(document, "applied_at"),
        expires_at=_time(document, "expires_at"),
        allowed_draft_lens=_draft_lens(document.get("allowed_draft_lens")),
        max_draft_len=_whole(document, "max_draft_len", MOST_DRAFT_LENS),
        max_batch=_whole(document, "max_batch", LARGEST_CELL),
        boot_id=_text(document, "boot_id"),
        engine_version=_text(document, "engine_version"),
        plugin_version=_text(document, "plugin_version"),
        supported=document.get("supported") is True,
        reasons=_reasons(document.get("reasons")),
    )


def _source(document: Mapping[str, object]) -> str:
    """Return how the schedule came to run."""
    source = _text(document, "source")
    if source not in SOURCES:
        raise ValueError("source")
    return source


def _text(document: Mapping[str, object], name: str) -> str:
    """Return a short printable text, empty where it is not told."""
    value = document.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(name)  # noqa: TRY004 - one error for a field that cannot be used
    return _PLAIN.sub("?", value[:LONGEST_TEXT])


def _whole(document: Mapping[str, object], name: str, most: int) -> int | None:
    """Return a whole number from 0 to ``most``, ``None`` where it is not told."""
    value = document.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(name)
    return value


def _time(document: Mapping[str, object], name: str) -> float | None:
    """Return unix seconds, ``None`` where they are not told."""
    value = document.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(name)
    return float(value)


def _schedule(rows: object) -> Schedule | None:
    """Return the table, ``None`` where there is none.

    Raises:
        ScheduleError: the table breaks a rule.
        ValueError: it is no table.
    """
    if rows is None or rows == []:
        return None
    if not isinstance(rows, list) or len(rows) > MOST_ROWS or not all(_is_row(row) for row in rows):
        raise ValueError("schedule")
    return Schedule.from_ranges(rows)


def _is_row(row: object) -> bool:
    """Tell whether a row is first, last, draft length; whole numbers that no table needs more of."""
    if not isinstance(row, list) or len(row) != len(ScheduleRange._fields):
        return False
    return all(
        isinstance(cell, int) and not isinstance(cell, bool) and abs(cell) < LARGEST_CELL for cell in row
    )


def _draft_lens(values: object) -> tuple[int, ...]:
    """Return draft lengths, rising."""
    if values is None:
        return ()
    if not isinstance(values, list) or len(values) > MOST_DRAFT_LENS:
        raise ValueError("allowed_draft_lens")
    if any(isinstance(k, bool) or not isinstance(k, int) or not 0 <= k < MOST_DRAFT_LENS for k in values):
        raise ValueError("allowed_draft_lens")
    return tuple(sorted(set(values)))


def _reasons(values: object) -> tuple[str, ...]:
    """Return the codes of what keeps an engine from taking a push."""
    if values is None:
        return ()
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError("reasons")
    return tuple(_PLAIN.sub("?", value[:LONGEST_TEXT]) for value in values[:MOST_REASONS])
