"""``/metrics`` as text: Prometheus' own format or OpenMetrics, whichever the client would rather have."""

from __future__ import annotations

import gzip
import threading
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from tuner.serve.metrics import TunerCollector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from prometheus_client import Metric

    from tuner.serve.snapshot import Snapshot

GZIP_FROM: Final = 1400
"""Bodies below this size go as they are: they fit one packet."""
GZIP_LEVEL: Final = 1
"""Fastest level: 0.7 MB take 2 ms and shrink to a thirteenth; level 9 takes 8 ms for a fifteenth."""
END: Final = b"# EOF\n"
MEDIA_OPENMETRICS: Final = "application/openmetrics-text"
KNOWN_VERSIONS: Final = {"", "0.0.1", "1.0.0"}
"""OpenMetrics versions that are answered with 1.0.0; 0.0.1 is what Prometheus calls its drafts."""


class Format(Enum):
    """A text format and its content type."""

    PLAIN = CONTENT_TYPE_PLAIN_0_0_4
    OPENMETRICS = CONTENT_TYPE_LATEST


class Scrape(NamedTuple):
    """An answer to one scrape."""

    body: bytes
    headers: Mapping[str, str]


class Exposition:
    """Renders the newest snapshot, once for each snapshot and format, and the process beside it each time."""

    def __init__(self, view: Callable[[], Snapshot]) -> None:
        """Take ``view``, which returns the newest snapshot and never waits."""
        self._view = view
        self._collector = TunerCollector(view)
        self._process = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._process)
        self._lock = threading.Lock()
        self._rendered: dict[Format, tuple[Snapshot, bytes]] = {}

    def scrape(self, accept: str, accept_encoding: str) -> Scrape:
        """Answer a scrape.

        Args:
            accept: the header; anything that does not prefer OpenMetrics gets the plain format.
            accept_encoding: the header; gzip is used if it is named.
        """
        form = negotiate(accept)
        # The process is looked at each time: its memory and time matter most when no snapshot comes any more.
        body = self._tuner(form) + _render(form, self._process)
        headers = {"content-type": form.value, "vary": "accept, accept-encoding"}
        if len(body) >= GZIP_FROM and accepts_gzip(accept_encoding):
            return Scrape(gzip.compress(body, GZIP_LEVEL, mtime=0), {**headers, "content-encoding": "gzip"})
        return Scrape(body, headers)

    def _tuner(self, form: Format) -> bytes:
        """Render the snapshot; scrapes that come together wait for one rendering."""
        snapshot = self._view()
        with self._lock:
            held = self._rendered.get(form)
            if held is not None and held[0] is snapshot:
                return held[1]
            text = _render(form, _OneSnapshot(self._collector, snapshot)).removesuffix(END)
            self._rendered[form] = snapshot, text
            return text


class _OneSnapshot(Collector):
    """Gives the families of one snapshot, whatever the newest one is meanwhile."""

    def __init__(self, collector: TunerCollector, snapshot: Snapshot) -> None:
        self._collector, self._snapshot = collector, snapshot

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        return self._collector.collect_from(self._snapshot)


def _render(form: Format, source: Collector | CollectorRegistry) -> bytes:
    """Return the text of a collector or registry, OpenMetrics with its end mark."""
    if form is Format.OPENMETRICS:
        text: bytes = generate_openmetrics(source)  # type: ignore[no-untyped-call]  # has no annotations
        return text
    return generate_latest(source)


def negotiate(accept: str) -> Format:
    """Return OpenMetrics where the header names a version of it that is known and wants nothing more."""
    best = {Format.PLAIN: 0.0, Format.OPENMETRICS: 0.0}
    for part in accept.split(","):
        media, *raw = (piece.strip() for piece in part.split(";"))
        parameters = dict(piece.split("=", 1) for piece in raw if "=" in piece)
        weight = _weight(parameters.get("q", "1"))
        if media.lower() == MEDIA_OPENMETRICS and parameters.get("version", "").strip('"') in KNOWN_VERSIONS:
            best[Format.OPENMETRICS] = max(best[Format.OPENMETRICS], weight)
        elif media.lower() in {"text/plain", "text/*"}:
            best[Format.PLAIN] = max(best[Format.PLAIN], weight)
    wanted = best[Format.OPENMETRICS]
    return Format.OPENMETRICS if wanted > 0 and wanted >= best[Format.PLAIN] else Format.PLAIN


def accepts_gzip(header: str) -> bool:
    """Tell whether an Accept-Encoding header names gzip with a weight above 0."""
    for part in header.split(","):
        coding, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if coding == "gzip":
            return all(_weight(p.removeprefix("q=")) > 0 for p in parameters if p.startswith("q="))
    return False


def _weight(text: str) -> float:
    """Return a quality value; 0 for what is none."""
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0.0 <= weight <= 1.0 else 0.0
