"""One HTTP exchange with a metrics server: bounded in time and size, no redirects, no surprises.

``requests`` bounds the wait for the *next* byte, so a server that sends one byte a second holds a caller for
hours; it follows redirects with the token, and reads ``.netrc`` and proxies from the environment. This
transport, mounted under prometheus-api-client, does none of it.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import requests
from requests.adapters import BaseAdapter
from requests.structures import CaseInsensitiveDict

from tuner.observe.outcomes import SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAX_ANSWER_BYTES = 64 * 2**20
"""Three times the answer about 1000 engines (60 series of 350 bytes each); parsing it takes 2 s."""


class TransferError(Exception):
    """An exchange without a whole answer; never leaves the package."""

    def __init__(self, error: SourceError, *, too_large: bool = False) -> None:
        super().__init__(error.reason)
        self.error = error
        self.too_large = too_large


class Reply(requests.Response):
    """A whole answer whose JSON is parsed once, for prometheus-api-client and for us."""

    _document: Any = None

    def json(self, **options: Any) -> Any:  # noqa: ANN401 - what the server sent
        """Return the parsed body; raises ValueError where it is none."""
        if self._document is None:
            self._document = super().json(**options)
        return self._document

    @property
    def document(self) -> dict[str, Any] | None:
        """The body as a JSON object, ``None`` where it is none."""
        try:
            document = self.json()
        except ValueError:
            return None
        return document if isinstance(document, dict) else None


class BoundedTransport(BaseAdapter):
    """Sends requests; each has ``seconds`` in all, from the first connection attempt to the last byte."""

    def __init__(self, seconds: float, *, ca_file: Path | None, max_bytes: int = MAX_ANSWER_BYTES) -> None:
        super().__init__()
        self._seconds = seconds
        self._ca_file = ca_file
        self._max_bytes = max_bytes
        self.reply: Reply | None = None
        """The last answer, whatever its status."""

    def send(self, request: requests.PreparedRequest, *_unused: object, **_settings: object) -> Reply:
        """Send one request; parameters of a POST go into its body, since proxies cut long URLs.

        Raises:
            TransferError: there is no whole answer, or it is a redirect.
        """
        parts = urlsplit(str(request.url))
        headers = {name: str(value) for name, value in (request.headers or {}).items()}
        headers.pop("Accept-Encoding", None)
        headers |= {"Accept-Encoding": "identity", "Connection": "close"}
        path, body = parts.path or "/", b""
        if request.method == "POST":
            body = parts.query.encode()
            headers |= {"Content-Type": "application/x-www-form-urlencoded", "Content-Length": str(len(body))}
        elif parts.query:
            path = f"{path}?{parts.query}"
        status, answered, content = self._exchange(
            parts.scheme, parts.netloc, str(request.method), path, body, headers
        )
        self.reply = Reply()
        self.reply.status_code = status
        self.reply.headers = CaseInsensitiveDict(answered)
        self.reply._content = content  # noqa: SLF001 - the one way to give a Response a body that was read
        self.reply.request = request
        self.reply.url = str(request.url)
        self.reply.encoding = "utf-8"
        if http.client.MULTIPLE_CHOICES <= status < http.client.BAD_REQUEST:
            raise TransferError(
                SourceError(
                    f"HTTP {status}: redirects are not followed, give the final address", retryable=False
                )
            )
        return self.reply

    def close(self) -> None:
        """Nothing is kept open."""

    def _exchange(
        self, scheme: str, netloc: str, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """Return status, headers and body."""
        connection = self._connection(scheme, netloc)
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            if connection.sock is not None:
                with suppress(OSError):
                    # The plain socket's shutdown, which may be called while another thread reads TLS.
                    socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)

        watchdog = threading.Timer(self._seconds, expire)
        watchdog.daemon = True
        watchdog.start()
        try:
            connection.request(method, path, body or None, dict(headers))
            response = connection.getresponse()
            content = response.read(self._max_bytes + 1)
            left = response.length or 0
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise TransferError(self._explain(error, timed_out=expired.is_set())) from None
        finally:
            watchdog.cancel()
            connection.close()
        if len(content) > self._max_bytes:
            raise TransferError(
                SourceError(f"answer over {self._max_bytes} bytes", retryable=False), too_large=True
            )
        if expired.is_set():
            raise TransferError(self._explain(TimeoutError(), timed_out=True))
        if left > 0:
            raise TransferError(SourceError("connection closed before the answer was whole", retryable=True))
        return response.status, response.getheaders(), content

    def _connection(self, scheme: str, netloc: str) -> http.client.HTTPConnection:
        """Return an unopened connection."""
        if scheme != "https":
            return http.client.HTTPConnection(netloc, timeout=self._seconds)
        try:
            context = ssl.create_default_context(cafile=self._ca_file)
        except (OSError, ssl.SSLError) as error:
            reason = f"ca_file {self._ca_file} cannot be used: {getattr(error, 'strerror', None) or error}"
            raise TransferError(SourceError(reason, retryable=False)) from None
        return http.client.HTTPSConnection(netloc, timeout=self._seconds, context=context)

    def _explain(self, error: Exception, *, timed_out: bool) -> SourceError:
        """Name what went wrong, without addresses: these may hold secrets."""
        if timed_out or isinstance(error, TimeoutError):
            return SourceError(f"no whole answer within {self._seconds:.1f} s", retryable=True)
        if isinstance(error, ssl.SSLCertVerificationError):
            return SourceError(f"certificate refused: {error.verify_message}; see ca_file", retryable=False)
        if isinstance(error, ConnectionRefusedError):
            return SourceError("connection refused: is the server running?", retryable=True)
        if isinstance(error, socket.gaierror):
            return SourceError("host name is unknown", retryable=True)
        what = getattr(error, "strerror", None) or type(error).__name__
        return SourceError(f"connection failed: {what}", retryable=True)
