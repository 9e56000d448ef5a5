"""What the scrapes of one address showed as a whole: failed ones, bodies that contradict themselves."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tuner._exceptions import ExpositionError, InputError
from tuner.fleet import Finding
from tuner.observe.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tuner.observe.exposition import Scrape, SeriesKey, TimedScrape
    from tuner.vocabulary import Vocabulary

SHOWN = 5
"""Series that a finding names; there may be thousands."""


def of_scrapes(outcomes: Sequence[TimedScrape]) -> Iterator[Finding]:
    """Report scrapes that failed, stood twice, or told a series twice."""
    scrapes: list[Scrape] = []
    errors: list[tuple[float, InputError]] = []
    for time, result in outcomes:
        if isinstance(result, InputError):
            errors.append((time, result))
        else:
            scrapes.append(result)
    if errors:
        reasons = Counter(_reason(error) for _, error in errors)
        yield Finding(
            "scrape_invalid",
            "warning",
            f"{len(errors)} of {counted(len(outcomes), 'scrape')} cannot be used: {_examples(errors)}",
            evidence={
                "count": len(errors),
                "scrapes": len(outcomes),
                "reasons": dict(reasons),
                "first_at": errors[0][0],
            },
        )
    times = Counter(time for time, _ in outcomes)
    repeated = sum(count - 1 for count in times.values())
    if repeated:
        yield Finding(
            "scrape_time_repeated",
            "warning",
            f"{counted(repeated, 'scrape', 'carries')} the time of another one: the first of each is used",
            evidence={"count": repeated},
        )
    yield from _told_twice("series_repeated", "with one value: kept once", (s.repeated for s in scrapes))
    yield from _told_twice(
        "series_contradicted", "with different values: left out", (s.contradicted for s in scrapes)
    )


def of_strangers(scrapes: Sequence[Scrape], vocabulary: Vocabulary) -> Finding:
    """Report bodies that hold metrics, but none of the engine's."""
    names = list(dict.fromkeys(name for scrape in scrapes for name in scrape.names))[:SHOWN]
    held = f"they hold {', '.join(names)}" if names else "they hold nothing but a process' own metrics"
    return Finding(
        "engine_metrics_absent",
        "critical",
        f"none of {vocabulary.engine}'s metrics was found in {counted(len(scrapes), 'scrape')}, {held}: is "
        f"this the address and port of the engine's own /metrics, and is the engine {vocabulary.engine}?",
        evidence={"engine": vocabulary.engine, "scrapes": len(scrapes), "names": names},
    )


def _reason(error: InputError) -> str:
    """Return what is wrong with a scrape in one word."""
    return error.reason if isinstance(error, ExpositionError) else "unreadable"


def _examples(errors: Sequence[tuple[float, InputError]]) -> str:
    """Return every kind of fault with its count and its first message, the most frequent kind first."""
    first: dict[str, InputError] = {}
    for _, error in errors:
        first.setdefault(_reason(error), error)
    counts = Counter(_reason(error) for _, error in errors)
    return "; ".join(f"{count} {reason} ({first[reason]})" for reason, count in counts.most_common())


def content_type_finding(content_type: str) -> Finding | None:
    """Warn of a content type that this parser ignores and Prometheus does not.

    Prometheus 3 marks a target down whose content type is no metrics format, unless a fallback
    protocol is configured; Prometheus 2 parsed such a body as text.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind in ("text/plain", "application/openmetrics-text", "application/vnd.google.protobuf"):
        return None
    return Finding(
        "content_type_unknown",
        "warning",
        f"served as {kind or 'no content type'}: Prometheus 3 needs fallback_scrape_protocol to read it",
        evidence={"content_type": content_type},
    )


def _told_twice(code: str, how: str, keys: Iterable[Sequence[SeriesKey]]) -> Iterator[Finding]:
    """Report series that occur twice in one body."""
    counted = Counter(key.name for some in keys for key in some)
    if counted:
        name, count = counted.most_common(1)[0]
        yield Finding(
            code,
            "warning",
            f"{name} stands twice in a scrape {how}; look for a proxy that joins two bodies",
            evidence={"count": count, "series": dict(counted.most_common(SHOWN))},
        )
