"""Targets from an HTTP endpoint: 200, ``application/json``, a whole list; without it the last one stays."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

import httpx2

from tuner._exceptions import InputError
from tuner.observe.discovery.groups import read_groups
from tuner.observe.discovery.spec import Answer

if TYPE_CHECKING:
    from collections.abc import Mapping

LARGEST_ANSWER = 8 * 2**20
"""Bytes: 20 000 targets with 400 bytes each."""
GRACE = 1.0
"""Seconds beyond the time-out until a request is given up that sends a header a byte at a time."""
_OK = 200


class HttpSd:
    """The endpoint of one pool."""

    def __init__(self, client: httpx2.Client, url: str, *, interval: float, timeout: float) -> None:
        self._client = client
        self._url = url
        self._interval = interval
        self._timeout = timeout
        self._said: tuple[Mapping[str, str], ...] = ()
        self._asking: _Asking | None = None

    def read(self) -> Answer:
        """Ask, and return what the endpoint says; what it said last beside an error."""
        try:
            self._said = read_groups(self._ask())
        except InputError as error:
            return Answer(self._said, (f"{self._url}: {error}",))
        return Answer(self._said)

    def _ask(self) -> object:
        """Return the document that is served, in bounded time.

        A read time-out counts from byte to byte, so a header that trickles would last for hours: the
        request runs in a thread of its own and is left behind. None is begun while one is left.

        Raises:
            InputError: no answer, or not one to use.
        """
        if self._asking is None or self._asking.finished.is_set():
            self._asking = _Asking()
            arguments = (self._asking, monotonic() + self._timeout)
            threading.Thread(target=self._request, args=arguments, name="http_sd", daemon=True).start()
        if not self._asking.finished.wait(self._timeout + GRACE):
            raise InputError(f"did not answer within {self._timeout:g} s: look at its load")
        asking, self._asking = self._asking, None
        if asking.error is not None:
            raise asking.error
        return asking.document

    def _request(self, asking: _Asking, deadline: float) -> None:
        """Ask once; runs in a thread."""
        try:
            asking.document = self._document(deadline)
        except InputError as error:
            asking.error = error
        except httpx2.TimeoutException:
            asking.error = InputError(f"did not answer within {self._timeout:g} s: look at its load")
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:120] or type(error).__name__
            asking.error = InputError(f"cannot be reached ({reason}): check address and network")
        finally:
            asking.finished.set()

    def _document(self, deadline: float) -> object:
        """Return what is served.

        Raises:
            InputError: another status, another type, too large, too slow, or not JSON.
        """
        headers = {
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "X-Prometheus-Refresh-Interval-Seconds": f"{self._interval:g}",
        }
        request = {"headers": headers, "timeout": self._timeout, "follow_redirects": False}
        with self._client.stream("GET", self._url, **request) as answer:  # type: ignore[arg-type] # one table of keywords
            if answer.status_code != _OK:
                raise InputError(f"answers HTTP {answer.status_code}: look into its log")
            kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                raise InputError(f"answers {kind[:60] or 'no type'}, not application/json: check the address")
            if answer.headers.get("content-encoding", "identity") != "identity":
                raise InputError("is packed although nobody asked for that: serve it plain")
            content = bytearray()
            for chunk in answer.iter_raw():
                content += chunk
                if len(content) > LARGEST_ANSWER:
                    raise InputError(f"is larger than {LARGEST_ANSWER} bytes: split the pool")
                if monotonic() > deadline:
                    raise InputError(f"did not answer within {self._timeout:g} s: look at its load")
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise InputError("is not JSON: serve a list of target groups") from None


@dataclass(eq=False, slots=True)
class _Asking:
    """One request under way."""

    finished: threading.Event
    document: object = None
    error: InputError | None = None

    def __init__(self) -> None:
        self.finished = threading.Event()
        self.document = None
        self.error = None
