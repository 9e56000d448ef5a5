"""``docs/metrics.md`` and the catalogue say the same, in both directions."""

from __future__ import annotations

import re
from pathlib import Path

from tests.serve.samples import scrape_text
from tests.serve.worlds import snapshot
from tuner.serve import labels, observed
from tuner.serve.catalogue import CANNOT_SAY, METRICS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text()
ROW = re.compile(r"^\| `(tuner_\w+)` \| (\w+) \| ([^|]*) \| (yes|) ?\| (.*) \|$", re.MULTILINE)
PROCESS = re.compile(r"^\| `(process_\w+)` \|", re.MULTILINE)


def _row(name: str, kind: str, names: tuple[str, ...], interval: bool, meaning: str) -> tuple[str, ...]:
    return (name, kind, ", ".join(f"`{label}`" for label in names), "yes" if interval else "", meaning)


def test_the_table_is_the_catalogue() -> None:
    """Each metric has one row with its kind, labels, interval and meaning, and no row is without a metric."""
    wanted = [_row(m.name, m.kind, m.labels, m.interval, m.meaning) for m in METRICS]
    rows = [tuple(cell.strip() for cell in row) for row in ROW.findall(PAGE)]
    assert sorted(rows) == sorted(wanted)


def test_metrics_of_the_process_are_listed() -> None:
    """What the client library adds is documented too."""
    shown = set(re.findall(r"^# TYPE (process_\w+) ", scrape_text(snapshot()), re.MULTILINE))
    assert set(PROCESS.findall(PAGE)) == shown


def test_what_cannot_be_said_is_explained() -> None:
    """Every value of ``what`` has a row of its own."""
    assert (
        tuple(re.findall(r"^\| `(\w+)` \| (?!gauge|counter)", PAGE.split("## Cannot say")[1], re.MULTILINE))
        == CANNOT_SAY
    )


def test_bounds_are_those_of_the_code() -> None:
    """The numbers of the bounds are the constants."""
    section = PAGE.split("## Bounds")[1]
    for number in (
        labels.MAX_POOLS, labels.MAX_ROUTES, labels.MAX_POSITIONS, labels.MAX_ENGINES, labels.MAX_FINDINGS,
        labels.MAX_SOURCES, labels.MAX_VERSIONS, labels.MAX_CHARS,
    ):  # fmt: skip
        assert f" {number} " in section
    assert ", ".join(str(batch) for batch in labels.BATCHES) in " ".join(section.split())
    assert f"{observed.GOODPUT_SECONDS / 60:g} minutes" in PAGE
