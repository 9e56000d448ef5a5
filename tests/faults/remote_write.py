"""Prometheus' remote write: puts samples of any time into a real server, so that virtual time will do.

https://prometheus.io/docs/specs/prw/remote_write_spec/ asks for protocol buffers and snappy. Both are written
by hand: the few fields there are, and snappy's literals alone, which compress nothing.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import httpx2
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LITERAL = 60
"""Longest literal of snappy whose length fits into its tag; 60, 61, .. say in how many bytes it follows."""
SECONDS = 5.0


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _field(number: int, body: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(body)) + body


def _series(labels: Mapping[str, str], value: float, at: float) -> bytes:
    pairs = b"".join(
        _field(1, _field(1, name.encode()) + _field(2, text.encode()))
        for name, text in sorted(labels.items())
    )
    sample = bytes([1 << 3 | 1]) + struct.pack("<d", value) + bytes([2 << 3]) + _varint(int(at * 1000))
    return _field(1, pairs + _field(2, sample))


def _snappy(raw: bytes) -> bytes:
    out = [_varint(len(raw))]
    for start in range(0, len(raw), 65_536):
        part = raw[start : start + 65_536]
        out += [bytes([LITERAL + 1 << 2]), struct.pack("<H", len(part) - 1), part]
    return b"".join(out)


def write(url: str, pages: Iterable[tuple[Mapping[str, str], str]], at: float) -> None:
    """Put metrics pages into a server as if scraped at one moment, each under its target's labels."""
    out = []
    for target, page in pages:
        out.append(_series({"__name__": "up", **target}, 1.0, at))
        for family in text_string_to_metric_families(page):
            out += [
                _series({"__name__": sample.name, **target, **sample.labels}, sample.value, at)
                for sample in family.samples
            ]
    reply = httpx2.post(
        f"{url}/api/v1/write",
        content=_snappy(b"".join(out)),
        headers={"Content-Encoding": "snappy", "X-Prometheus-Remote-Write-Version": "0.1.0"},
        timeout=SECONDS,
        trust_env=False,
    )
    assert reply.status_code == 204, reply.text
