"""A scrape as numbers by series."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from tuner.serve.exposition import Exposition

if TYPE_CHECKING:
    from tuner.serve.snapshot import Snapshot

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape_text(shown: Snapshot, accept: str = "") -> str:
    """Return the text of a scrape."""
    return Exposition(lambda: shown).scrape(accept, "").body.decode()


def parse(text: str) -> Series:
    """Return value by name and labels; a series that comes twice fails."""
    out: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in out, f"series twice: {key}"
            out[key] = sample.value
    return out


def scrape(shown: Snapshot) -> Series:
    """Return the samples of a scrape."""
    return parse(scrape_text(shown))


def value(series: Series, name: str, **labels: str) -> float | None:
    """Return one sample, ``None`` where the series is absent."""
    return series.get((name, frozenset(labels.items())))


def named(series: Series, name: str) -> dict[frozenset[tuple[str, str]], float]:
    """Return the samples of one name by labels."""
    return {labels: number for (found, labels), number in series.items() if found == name}
