"""Label values and their bounds: how many of each kind ``/metrics`` shows, and what a value may hold."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

LABELS: Final = frozenset(
    {
        "pool", "route", "position", "draft_len", "batch", "engine", "version", "python_version", "state",
        "result", "code", "severity", "source", "stage", "job_name", "what", "label", "le",
    }
)  # fmt: skip
"""Every label name there is. None holds a measured value, a schedule's text, a request's id or an address;
``job`` and ``instance`` belong to the server that scrapes, which would rename ours to ``exported_job``."""

MAX_POOLS: Final = 100
MAX_ROUTES: Final = 50
"""Routes of one pool, those with most drafts first. At 8 positions and three numbers each, 50 routes are
1 200 series a pool, about what one vLLM engine shows."""
MAX_POSITIONS: Final = 16
"""Draft positions of one route; the longest drafts that engines offer."""
MAX_DRAFT_LENS: Final = 17
"""Draft lengths of one pool: 0 to 16."""
MAX_ENGINES: Final = 4000
"""Engines of all pools together: two series each, 0.7 MB of a scrape and 0.1 s of one core."""
MAX_FINDINGS: Final = 500
"""Findings told apart by code, severity, pool and route."""
MAX_SOURCES: Final = 500
"""The database and metrics servers come first, then discovery and scrape of pools."""
MAX_VERSIONS: Final = 5
"""Schedule versions of one pool, newest first."""

BATCHES: Final = (
    1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096,
)  # fmt: skip
"""Batch sizes that series are given for. Fixed, since measured ones move from cycle to cycle and would
each begin a series of their own; ranges of a schedule that fall between two of them are in the API."""

MAX_CHARS: Final = 128
"""A label value is cut after so many characters."""

OTHER: Final = "(other)"
"""Value that counts of what lies beyond a bound are summed under; no name of a pool or route has brackets."""

_OF_POOLS = ("discovery:", "scrape:")
"""How the sources of single pools are named; the pool follows."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]*@")


@lru_cache(maxsize=16_384)  # the values of 4000 engines and all the rest; each is needed in every scrape
def clean(value: str) -> str:
    """Return a label value without control characters, credentials of a URL, and length beyond bounds."""
    text = _CREDENTIALS.sub("", _CONTROL.sub(" ", value)).strip()
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"


def first(values: Iterable[str], most: int) -> tuple[list[str], int]:
    """Return the first ``most`` of ``values`` in alphabetical order, and how many are left out."""
    ordered = sorted(set(values))
    return ordered[:most], max(0, len(ordered) - most)


def first_sources(names: Iterable[str], most: int) -> tuple[list[str], int]:
    """Return the first ``most`` sources and how many are left out: those that all pools depend on first."""
    ordered = sorted(set(names), key=lambda name: (name != "store", name.startswith(_OF_POOLS), name))
    return ordered[:most], max(0, len(ordered) - most)
