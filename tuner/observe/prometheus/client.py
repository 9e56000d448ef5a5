"""Questions to a metrics server through prometheus-api-client, and what can come of them.

The client's own habits would hurt a daemon: no time-out, four tries, windows whose ends are computed when
the module is imported, and exceptions of four libraries. Everything here is passed explicitly, one request
is one request, and every outcome is a value.
"""

from __future__ import annotations

import base64
import random
import re
import time
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from tuner.observe.outcomes import (
    HTTP_OK,
    HTTP_SERVER_ERROR,
    HTTP_TIMEOUT,
    HTTP_TOO_MANY,
    SourceError,
    instant_value,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tuner.observe.outcomes import Reading
    from tuner.observe.prometheus.transport import BoundedTransport

MAX_RETRIES = 2
"""After a refused connection or a 503; one that used its whole time is not asked again."""
RETRY_SECONDS = 0.2
"""First wait before a retry; the second is twice as long, both times 0.5 to 1.5 by chance."""
LEAST_SECONDS = 0.05
"""Less time than this is no attempt."""
LONGEST_WAIT = 600.0
"""Most seconds for which a server's Retry-After is honoured."""
HTTP_UNPROCESSABLE = 422
HTTP_METHOD_NOT_ALLOWED = 405
HTTP_NOT_IMPLEMENTED = 501
_TOO_LARGE = re.compile(r"too many|limit|exceed|more than|max", re.IGNORECASE)
"""What Prometheus, Mimir and VictoriaMetrics say of a query over their limits."""
_OF_DATA = re.compile(r"\b(?:samples|series|chunks|bytes)\b", re.IGNORECASE)
"""What a 429 is about when it is no rate limit."""
_SHOWN = 160
"""Characters of a server's error that are passed on."""
_SECRET_IN_URL = re.compile(r"://[^/\s@]+@")


class TooLargeError(SourceError):
    """The server refuses this much at once: ask for less, not again."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Series of raw samples as the server sent them."""

    series: list[dict[str, Any]]
    warnings: tuple[str, ...] = ()
    partial: bool = False
    """Some of the data were not reachable for the server."""


@dataclass(frozen=True, slots=True, repr=False)
class Access:
    """Where a server is and how it is entered; files are read at each use, nothing of it is shown."""

    url: str
    bearer_token_file: Path | None = None
    username: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Show the address alone, without credentials."""
        return f"Access({self.shown})"

    @property
    def address(self) -> str:
        """The base address without credentials and without a slash at the end."""
        parts = urlsplit(self.url)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")

    @property
    def shown(self) -> str:
        """The address for messages: scheme and host alone, since paths and queries may hold keys."""
        parts = urlsplit(self.address)
        return f"{parts.scheme}://{parts.netloc}"

    def entry(self) -> dict[str, str] | SourceError:
        """Return the headers of a request, or which secret cannot be read."""
        headers = dict(self.headers)
        if self.bearer_token_file is not None:
            token = _secret(self.bearer_token_file)
            if isinstance(token, SourceError):
                return token
            headers["Authorization"] = f"Bearer {token}"
        elif self.username is not None:
            password = "" if self.password_file is None else _secret(self.password_file)
            if isinstance(password, SourceError):
                return password
            headers["Authorization"] = _basic(self.username, password)
        elif (parts := urlsplit(self.url)).username is not None:
            headers["Authorization"] = _basic(parts.username or "", parts.password or "")
        return headers


def _basic(username: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


def _secret(path: Path) -> str | SourceError:
    """Read a secret; its text appears nowhere but in the header."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        return SourceError(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or 'not text'}", retryable=False
        )
    if not text or "\n" in text:
        return SourceError(f"{path} must hold one line, the secret", retryable=False)
    return text


class Client:
    """Asks one server."""

    def __init__(
        self,
        access: Access,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        seed: int = 0,
    ) -> None:
        self._access = access
        self._monotonic = monotonic
        self._sleep = sleep
        self._chance = random.Random(seed)  # noqa: S311 - jitter, no secret
        self._method = "POST"
        self._not_before = float("-inf")
        self._why = ""
        self.requests = 0
        """Requests sent, for tests and for a count of load."""

    def raw_samples(self, promql: str, at: float, deadline: float) -> Answer | SourceError:
        """Ask for a range of raw samples.

        Args:
            promql: a range selector.
            at: unix seconds at which the range ends.
            deadline: by the monotonic clock; tries and waits end before.
        """
        reply = self._ask(promql, at, deadline)
        return reply if isinstance(reply, SourceError) else _matrix(reply[1])

    def value(self, promql: str, at: float, deadline: float) -> Reading:
        """Ask for one number at ``at``; see ``observe.outcomes``."""
        reply = self._ask(promql, at, deadline)
        return reply if isinstance(reply, SourceError) else instant_value(*reply)

    def rest(self, seconds: float, why: str) -> None:
        """Send nothing for a while."""
        self._not_before = max(self._not_before, self._monotonic() + min(seconds, LONGEST_WAIT))
        self._why = why

    def _ask(self, promql: str, at: float, deadline: float) -> tuple[int, dict[str, Any]] | SourceError:
        """Send a query until it is answered, refused for good, or time is up."""
        for attempt in range(MAX_RETRIES + 1):
            now = self._monotonic()
            if now < self._not_before:
                return SourceError(
                    f"not asked for another {self._not_before - now:.0f} s: {self._why}", retryable=True
                )
            if deadline - now < LEAST_SECONDS:
                return SourceError("no time left to ask", retryable=True)
            outcome = self._once(promql, at, deadline - now)
            if not isinstance(outcome, SourceError):
                return outcome
            wait = RETRY_SECONDS * 2**attempt * self._chance.uniform(0.5, 1.5)
            wait = max(wait, self._not_before - self._monotonic())
            if (
                not outcome.retryable
                or attempt == MAX_RETRIES
                or self._monotonic() + wait > deadline - LEAST_SECONDS
            ):
                return outcome
            self._sleep(wait)
        raise AssertionError  # the last attempt returns

    def _once(self, promql: str, at: float, seconds: float) -> tuple[int, dict[str, Any]] | SourceError:
        """Send one request (two where the server takes no POST); return status and document."""
        entry = self._access.entry()
        if isinstance(entry, SourceError):
            return entry
        transport = self._send(promql, at, seconds, entry)
        if isinstance(transport, SourceError):
            return transport
        reply = transport.reply
        if reply is None:
            return SourceError("no answer", retryable=True)
        if reply.status_code in (HTTP_METHOD_NOT_ALLOWED, HTTP_NOT_IMPLEMENTED) and self._method == "POST":
            self._method = "GET"
            return self._once(promql, at, seconds)
        error = self._judge(reply.status_code, reply.document, reply.headers)
        return error if error is not None else (reply.status_code, reply.document or {})

    def _send(
        self, promql: str, at: float, seconds: float, entry: Mapping[str, str]
    ) -> BoundedTransport | SourceError:
        """Let prometheus-api-client send one request and read over what it makes of the answer.

        It drops warnings and turns each kind of bad answer into another exception; the transport kept the
        answer itself.
        """
        import requests  # noqa: PLC0415 - not needed to start the command line
        from prometheus_api_client import PrometheusConnect  # noqa: PLC0415
        from prometheus_api_client.exceptions import PrometheusApiClientException  # noqa: PLC0415
        from urllib3.util.retry import Retry  # noqa: PLC0415

        from tuner.observe.prometheus.transport import BoundedTransport, TransferError  # noqa: PLC0415

        transport = BoundedTransport(seconds, ca_file=self._access.ca_file)
        self.requests += 1
        try:
            with requests.Session() as session:
                session.trust_env = False
                connect = PrometheusConnect(
                    self._access.address,
                    dict(entry),
                    retry=Retry(total=0),
                    session=session,
                    method=self._method,
                )
                session.mount(self._access.address, transport)
                connect.custom_query(promql, {"time": f"{at:.3f}", "timeout": f"{seconds:.3f}"})
        except TransferError as failure:
            return (
                TooLargeError(failure.error.reason, retryable=False) if failure.too_large else failure.error
            )
        except (PrometheusApiClientException, LookupError, TypeError, ValueError, AttributeError):
            pass  # an answer that it cannot read: the transport has it
        except requests.RequestException as error:
            return SourceError(f"request failed: {type(error).__name__}", retryable=False)
        return transport

    def _judge(
        self, status: int, document: Mapping[str, Any] | None, headers: Mapping[str, str]
    ) -> SourceError | None:
        """Return why an answer is none."""
        if status == HTTP_OK:
            if document is None:
                return SourceError(
                    "answer is not JSON: is this the address of a metrics server?", retryable=False
                )
            if document.get("status") != "success":
                return SourceError(f"refused: {_said(document)}", retryable=False)
            return None
        said = _said(document or {})
        if status == HTTP_UNPROCESSABLE and _TOO_LARGE.search(said):
            return TooLargeError(f"HTTP 422: {said}", retryable=False)
        if (wait := _retry_after(headers)) is not None:
            self.rest(wait, f"HTTP {status} with Retry-After")
        elif status == HTTP_TOO_MANY and _OF_DATA.search(said):
            return TooLargeError(f"HTTP 429: {said}", retryable=False)
        retryable = status >= HTTP_SERVER_ERROR or status in (HTTP_TIMEOUT, HTTP_TOO_MANY)
        return SourceError(f"HTTP {status}: {said}" if said else f"HTTP {status}", retryable)


def _said(document: Mapping[str, Any]) -> str:
    """Return a server's own words, one line, shortened, without credentials."""
    text = " ".join(str(document.get("error", "")).split())
    return _SECRET_IN_URL.sub("://", text)[:_SHOWN]


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Read Retry-After, seconds or a date (held against the server's own Date)."""
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(
            0.0,
            (parsedate_to_datetime(text) - parsedate_to_datetime(headers.get("Date", ""))).total_seconds(),
        )
    except (TypeError, ValueError):
        return None


def _matrix(document: Mapping[str, Any]) -> Answer | SourceError:
    """Check the shape of an answer to a range selector."""
    data = document.get("data")
    result = data.get("result") if isinstance(data, dict) else None
    if not isinstance(data, dict) or data.get("resultType") != "matrix" or not isinstance(result, list):
        return SourceError(
            "answer is no list of samples: is this the address of a metrics server?", retryable=False
        )
    if not all(isinstance(one, dict) and isinstance(one.get("metric"), dict) for one in result):
        return SourceError("answer holds something that is no series", retryable=False)
    told = document.get("warnings")
    warnings = tuple(str(text)[:_SHOWN] for text in told) if isinstance(told, list) else ()
    return Answer(result, warnings, bool(warnings) or document.get("isPartial") is True)
