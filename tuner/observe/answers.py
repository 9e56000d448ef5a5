"""Judging the head of an HTTP answer that should hold metrics, and unpacking its body within bounds."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from tuner._exceptions import ExpositionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import h11

CONTENT_TYPES = ("text/plain", "application/openmetrics-text", "text/html", "application/json")
"""Taken to the parser, which names HTML and JSON for what they are; a missing one is taken too."""

_OK = 200
_MISSING = 404
_REDIRECTS = range(300, 400)
_UNAUTHORIZED = (401, 403)


class Gunzip:
    """Unpacks a stream of gzip members up to a size; called with nothing at the end of the stream."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._most = most
        self._unpack = zlib.decompressobj(wbits=31)
        self._begun = False

    def __call__(self, chunk: bytes) -> bytes:
        """Return what a piece of the stream unpacks to.

        Raises:
            ExpositionError: it is no gzip, unpacks to too much, or ended too early.
        """
        if not chunk:
            if self._begun or not self._unpack.eof:
                raise ExpositionError("body is gzip that is cut off: scrape it again", reason="truncated")
            return b""
        parts: list[bytes] = []
        while chunk:
            if self._unpack.eof:
                self._unpack = zlib.decompressobj(wbits=31)
            try:
                part = self._unpack.decompress(chunk, self._left + 1)
            except zlib.error:
                raise ExpositionError(
                    "body is not the gzip it says: is a proxy between?", reason="gzip"
                ) from None
            self._left -= len(part)
            if self._left < 0:
                raise oversize(self._most)
            parts.append(part)
            chunk = self._unpack.unused_data if self._unpack.eof else b""
        self._begun = not self._unpack.eof
        return b"".join(parts)


def unpacker(answer: h11.Response, most: int) -> Callable[[bytes], bytes]:
    """Judge the head of an answer; return what unpacks its body.

    Raises:
        ExpositionError: a status other than 200, a foreign type or encoding, or a length over the limit.
    """
    headers = {bytes(name).decode("ascii"): bytes(value).decode("latin-1") for name, value in answer.headers}
    _judge_status(answer.status_code)
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind and kind not in CONTENT_TYPES:
        shown = kind[:60] if kind.isprintable() else "a broken type"
        raise ExpositionError(f"answers {shown}, not metrics: check the address", reason="content_type")
    length = headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > most:
        raise oversize(most)
    return _of_encoding(headers, most)


def _judge_status(status: int) -> None:
    """Refuse every answer but 200."""
    if status in _REDIRECTS:
        raise ExpositionError(
            f"redirects (HTTP {status}), which is not followed: name the address that answers itself",
            reason="redirect",
        )
    if status in _UNAUTHORIZED:
        raise ExpositionError(
            f"asks for credentials (HTTP {status}): let the tuner read metrics without", reason="http"
        )
    if status == _MISSING:
        raise ExpositionError(
            f"answers HTTP {status}: is that the right address? see engines.metrics_path", reason="http"
        )
    if status != _OK:
        raise ExpositionError(f"answers HTTP {status}: look into the log of the engine", reason="http")


def _of_encoding(headers: Mapping[str, str], most: int) -> Callable[[bytes], bytes]:
    """Return what turns the body's chunks into text."""
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding in {"gzip", "x-gzip"}:
        return Gunzip(most)
    if encoding not in {"", "identity"}:
        raise ExpositionError(
            "is packed in a way that nobody asked for: serve it plain or as gzip", reason="encoding"
        )
    return bytes


def oversize(most: int) -> ExpositionError:
    """Return the error of a body over the limit."""
    return ExpositionError(
        f"body is over the limit of {most} bytes: is this a metrics page?", reason="oversize"
    )
