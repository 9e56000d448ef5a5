"""Text exposition -> samples: what one scrape of ``/metrics`` says, or why it says nothing.

A body counts whole or not at all. Of every line the *shape* is checked (a comment, or a name, an
optional label set, one number, an optional timestamp); the label sets and values of the wanted
names are read by prometheus_client's own parser, the rest is dropped before it gets there, since
parsing a body of vLLM whole costs ten times as much (``python -m bench.exposition``). What the
shape check cannot see is a broken label set in a family that nobody asked for.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/ and
https://prometheus.io/docs/specs/om/open_metrics_spec/.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tuner._exceptions import ExpositionError, InputError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

MAX_BODY_BYTES = 16 * 2**20
"""300 times a body of vLLM; more is no metrics page, and would cost seconds to check."""
MAX_SERIES = 5000
"""Wanted samples of one body. vLLM with one rank has 60, 64 ranks 3 840, and 50 routes of the plugin 1 500.
Each costs 25 us to read for the first time and 0.5 KB to hold: 195 000 of them stalled a round for 56 s."""

_LINE = re.compile(
    r"([a-zA-Z_:][a-zA-Z0-9_:]*|(?=\{))"
    r"(?:[ \t]*\{[^\n]*\})?[ \t]*(?<=[ \t}])"
    r"(?:[-+]?(?:[0-9.][0-9.eE+-]*|[iI][nN][fF](?:[iI][nN][iI][tT][yY])?|[nN][aA][nN]))"
    r"(?:[ \t]+[-+0-9.eE]+)?[ \t]*"
    r"(?:#[ \t]+\{[^\n]*)?"
)
"""Shape of a sample: name, labels, value, timestamp, exemplar (OpenMetrics, ignored)."""

_EXEMPLAR = re.compile(r'^((?:[^"#]|"(?:[^"\\]|\\.)*")*?(?<=[^ \t]))[ \t]+#[ \t]+\{.*$')
"""Group 1: the sample in front of the first ``#`` that stands outside quotes."""

_JSON = re.compile(r'\s*\{\s*(?:\}|"[^"]*"\s*:)')
"""Start of a JSON object; ``{"name", ...}`` without a colon is a sample with a quoted name."""

_SUFFIXES = ("_total", "_count", "_sum", "_bucket", "_created")
_LIBRARY = ("python_", "process_", "go_", "promhttp_", "jvm_", "scrape_")
"""Prefixes of what client libraries add to any process' metrics."""
_NAMES_SHOWN = 3
_SHOWN = 60
"""Characters of a bad line that an error message quotes."""


class SeriesKey(NamedTuple):
    """Identity of a series: its name and its full label set, in any order."""

    name: str
    labels: frozenset[tuple[str, str]]

    def label(self, name: str) -> str:
        """Return the value of one label, empty where the series has none."""
        return next((value for key, value in self.labels if key == name), "")


@dataclass(frozen=True, slots=True)
class Scrape:
    """The wanted samples of one body, raw: NaN, infinite and negative values are still in it."""

    samples: Mapping[SeriesKey, float] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Declared type by wanted sample name; empty for a body without TYPE lines."""
    repeated: tuple[SeriesKey, ...] = ()
    """Series told twice with one value, kept once."""
    contradicted: tuple[SeriesKey, ...] = ()
    """Series told twice with two values, left out."""
    names: tuple[str, ...] = ()
    """The first names in the body, wanted or not, to say whose metrics these are."""


class TimedScrape(NamedTuple):
    """What came of one scrape, and when."""

    time: float
    """Unix seconds."""
    result: Scrape | InputError


def parse(body: str | bytes, *, wanted: Collection[str]) -> Scrape:
    """Read the samples whose name is exactly one of ``wanted``.

    Raises:
        ExpositionError: the body is empty, larger than 16 MiB, not UTF-8, HTML, JSON, cut off, holds
            more than 5 000 wanted samples or a line that is neither sample nor comment; its ``reason``
            says which.
    """
    text = _decode(body)
    _refuse_other_formats(text)
    lines, openmetrics = _whole_lines(text)
    names = wanted if isinstance(wanted, frozenset) else frozenset(wanted)
    families = _families(names)
    kinds: dict[str, str] = {}
    heard = _Samples()
    match = _LINE.fullmatch
    for number, line in enumerate(lines, start=1):
        if line.startswith("#"):
            if line.startswith("# TYPE "):
                _declare(line, families, kinds)
            continue
        found = match(line)
        if found is None:
            if line.strip(" \t"):
                raise _malformed(number, line)
        elif found[1] in names:
            if heard.count == MAX_SERIES:
                raise ExpositionError(
                    f"holds more than {MAX_SERIES} series of the engine's metrics, the last of "
                    f"{found[1][:_SHOWN]}: a label of it has too many values; drop it where it is made",
                    reason="too_many_series",
                )
            try:
                heard.add(_EXEMPLAR.sub(r"\1", line) if openmetrics else line)
            except (ValueError, KeyError, IndexError, OverflowError):
                raise _malformed(number, line) from None
    return heard.scrape(kinds, _first_names(lines))


def _first_names(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the first names that do not come from a client library and so tell what was scraped."""
    names: list[str] = []
    for line in lines:
        found = None if line.startswith(("#", *_LIBRARY)) else _LINE.fullmatch(line)
        if found is not None and found[1] and found[1] not in names:
            names.append(found[1])
            if len(names) == _NAMES_SHOWN:
                break
    return tuple(names)


def _decode(body: str | bytes) -> str:
    """Return the text with bare line feeds."""
    if len(body) > MAX_BODY_BYTES:
        raise ExpositionError(
            f"body of {len(body)} bytes is over the limit of {MAX_BODY_BYTES}: is this a metrics page?",
            reason="oversize",
        )
    if isinstance(body, bytes):
        try:
            body = body.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ExpositionError(
                f"body is not UTF-8 (byte {error.start}): is it compressed or binary?", reason="undecodable"
            ) from None
    return body.replace("\r\n", "\n") if "\r" in body else body


def _refuse_other_formats(text: str) -> None:
    """Name what else servers answer at ``/metrics``: nothing, a login page, JSON."""
    head = text.lstrip()[:1]
    if not head:
        raise ExpositionError(
            "body is empty: the engine may still be starting, scrape it again", reason="empty"
        )
    if head == "<":
        raise ExpositionError(
            "body is HTML, not metrics: check the address and whether it asks for a login", reason="html"
        )
    if head in '"[' or _JSON.match(text):
        raise ExpositionError(
            "body is JSON, not text exposition: check the path, this engine serves metrics elsewhere",
            reason="json",
        )


def _whole_lines(text: str) -> tuple[list[str], bool]:
    """Split into lines; a body that does not end where a line ends was cut off.

    A value cut from 1234 to 12 would read as a restart, so nothing of such a body is used.
    """
    lines = text.split("\n")
    last = lines.pop()
    if last == "# EOF":
        return lines, True
    if last:
        raise ExpositionError(
            f"body is cut off: no line feed after {last[-_SHOWN:]!r}; scrape again with a longer timeout",
            reason="truncated",
        )
    if "# EOF" in lines:
        end = lines.index("# EOF")
        if any(lines[end + 1 :]):
            raise ExpositionError(
                f"line {end + 2} follows # EOF: two bodies in one answer", reason="malformed"
            )
        return lines[:end], True
    return lines, False


def _declare(line: str, families: Mapping[str, tuple[str, ...]], kinds: dict[str, str]) -> None:
    """Note one TYPE line; a malformed one declares nothing."""
    parts = line.split()
    if len(parts) == 4:  # noqa: PLR2004 - "#", "TYPE", name, type
        for name in families.get(parts[2], ()):
            kinds[name] = parts[3]


@lru_cache(maxsize=16)
def _families(names: frozenset[str]) -> dict[str, tuple[str, ...]]:
    """Return family name -> wanted sample names; families are declared with or without suffix."""
    families: dict[str, tuple[str, ...]] = {}
    for name in names:
        for suffix in ("", *_SUFFIXES):
            if name.endswith(suffix):
                family = name.removesuffix(suffix)
                families[family] = (*families.get(family, ()), name)
    return families


@lru_cache(maxsize=8192)
def _identity(head: str) -> SeriesKey:
    """Return the identity in front of a value: equal text scrape after scrape, so parsed once.

    An empty label is no label, as in Prometheus. The cache holds 200 bodies' worth of series;
    without it a body costs 1.2 ms instead of 0.5.
    """
    (family,) = text_string_to_metric_families(f"{head} 0")
    (sample,) = family.samples
    return SeriesKey(sample.name, frozenset(pair for pair in sample.labels.items() if pair[1]))


class _Samples:
    """The samples of one body as they are read."""

    def __init__(self) -> None:
        self.values: dict[SeriesKey, float] = {}
        self.repeated: list[SeriesKey] = []
        self.contradicted: dict[SeriesKey, None] = {}
        self.count = 0
        """Lines read, repeated ones too: each is held."""

    def add(self, line: str) -> None:
        """Read one line whose shape is known to be right."""
        self.count += 1
        end = line.rfind("}") + 1 or len(line.split(None, 1)[0])
        key = _identity(line[:end])
        numbers = [float(text) for text in line[end:].split()]
        value = numbers[0]
        if key not in self.values:
            self.values[key] = value
        elif self.values[key] == value:
            self.repeated.append(key)
        else:
            self.contradicted[key] = None

    def scrape(self, kinds: Mapping[str, str], names: tuple[str, ...]) -> Scrape:
        """Return what was read, without the series that contradict themselves."""
        samples = {key: value for key, value in self.values.items() if key not in self.contradicted}
        return Scrape(samples, kinds, tuple(self.repeated), tuple(self.contradicted), names)


def _malformed(number: int, line: str) -> ExpositionError:
    """Name the first line that is neither sample nor comment."""
    return ExpositionError(
        f"line {number} is neither sample nor comment: {line[:_SHOWN]!r}; is this a Prometheus metrics page?"
    )
