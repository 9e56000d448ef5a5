"""Scrapes -> tracks: which series belong to which engine, under whatever name it uses.

A *group* is one rank of one server: series whose labels agree once the labels that only number
parts of a metric (position, finish reason) are taken off. Each group has its own batch and its own
steps, so each becomes windows of its own; ranks are added up, where that makes sense, by who fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tuner.observe.deltas import Track
from tuner.vocabulary import created_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tuner.observe.exposition import Scrape, SeriesKey
    from tuner.vocabulary import Metric, Vocabulary

GroupKey = frozenset[tuple[str, str]]


@dataclass(slots=True)
class Group:
    """Everything one rank told, scrape by scrape; ``n`` scrapes."""

    key: GroupKey
    present: list[bool]
    tracks: dict[SeriesKey, Track] = field(default_factory=dict)
    used: dict[str, list[str]] = field(default_factory=dict)
    """Logical counter -> the alias in use at each scrape, empty where none was found."""
    series: dict[str, list[SeriesKey]] = field(default_factory=dict)
    """Logical counter -> its series under every alias that was ever in use."""
    gauges: dict[str, list[float | None]] = field(default_factory=dict)
    """Logical gauge -> value at each scrape; NaN and infinite values are ``None``."""
    bad_gauges: dict[str, int] = field(default_factory=dict)
    """Logical gauge -> how often it was NaN, infinite or negative."""
    started: list[float | None] = field(default_factory=list)
    kv_capacity: float | None = None
    kv_dtype: str = ""

    @property
    def single_process(self) -> bool:
        """Tell whether a start or creation time was told, as only one process alone does."""
        created = (time for track in self.tracks.values() for time in track.created)
        return any(time is not None for time in (*self.started, *created))

    def label(self, name: str) -> str:
        """Return one label of the group, empty where it has none."""
        return next((value for key, value in self.key if key == name), "")

    def members(self, logical: str, i: int) -> list[SeriesKey]:
        """Return the series of a logical counter under the alias in use at scrape ``i``."""
        used = self.used.get(logical)
        if used is None or not used[i]:
            return []
        return [key for key in self.series[logical] if key.name == used[i]]


def group_key(labels: frozenset[tuple[str, str]], metric: Metric) -> GroupKey:
    """Return the labels that say whose series this is."""
    details = metric.detail_labels
    return frozenset(pair for pair in labels if pair[0] not in details) if details else labels


def build_groups(scrapes: Sequence[Scrape], vocabulary: Vocabulary) -> list[Group]:
    """Sort the samples of all scrapes into groups and tracks, aliases resolved."""
    groups: dict[GroupKey, Group] = {}
    n = len(scrapes)
    for i, scrape in enumerate(scrapes):
        by_name: dict[str, list[tuple[SeriesKey, float]]] = {}
        for key, value in scrape.samples.items():
            by_name.setdefault(key.name, []).append((key, value))
        for logical, metric in vocabulary.counters.items():
            _place_counter(i, n, logical, metric, by_name, scrape, groups)
        for logical, metric in vocabulary.gauges.items():
            _place_gauge(i, n, logical, metric, by_name, groups)
    ordered = [groups[key] for key in sorted(groups, key=sorted)]
    for group in ordered:
        group.started = [_start(scrape, group, vocabulary) for scrape in scrapes]
        _describe(group, scrapes, vocabulary)
    return ordered


def _matching(metric: Metric, key: SeriesKey) -> bool:
    """Tell whether a series carries the labels that the metric asks for."""
    return all(pair in key.labels for pair in metric.where)


def _group(groups: dict[GroupKey, Group], key: GroupKey, n: int) -> Group:
    """Return the group of a key, new or known."""
    if key not in groups:
        groups[key] = Group(key, [False] * n)
    return groups[key]


def _place_counter(
    i: int,
    n: int,
    logical: str,
    metric: Metric,
    by_name: Mapping[str, list[tuple[SeriesKey, float]]],
    scrape: Scrape,
    groups: dict[GroupKey, Group],
) -> None:
    """Append the series of one logical counter, by the first alias that each group has."""
    claimed: dict[GroupKey, str] = {}
    for name in metric.names:
        for key, value in by_name.get(name, ()):
            if not _matching(metric, key):
                continue
            owner = group_key(key.labels, metric)
            if claimed.setdefault(owner, name) != name:
                continue
            group = _group(groups, owner, n)
            group.present[i] = True
            group.used.setdefault(logical, [""] * n)[i] = name
            if key not in group.tracks:
                group.series.setdefault(logical, []).append(key)
                group.tracks[key] = Track([None] * n, [None] * n, [""] * n)
            track = group.tracks[key]
            track.values[i] = value
            track.kinds[i] = scrape.kinds.get(name, "")
            track.created[i] = scrape.samples.get(key._replace(name=created_name(name)))


def _place_gauge(
    i: int,
    n: int,
    logical: str,
    metric: Metric,
    by_name: Mapping[str, list[tuple[SeriesKey, float]]],
    groups: dict[GroupKey, Group],
) -> None:
    """Note one logical gauge, by the first alias that each group has."""
    claimed: dict[GroupKey, str] = {}
    for name in metric.names:
        for key, value in by_name.get(name, ()):
            owner = group_key(key.labels, metric)
            if not _matching(metric, key) or claimed.setdefault(owner, name) != name:
                continue
            group = _group(groups, owner, n)
            group.present[i] = True
            values = group.gauges.setdefault(logical, [None] * n)
            if not math.isfinite(value) or value < 0:
                group.bad_gauges[logical] = group.bad_gauges.get(logical, 0) + 1
                continue
            values[i] = (values[i] or 0.0) + value


def _start(scrape: Scrape, group: Group, vocabulary: Vocabulary) -> float | None:
    """Return the start time of the process that this group belongs to."""
    for name in vocabulary.process_start.names:
        for key, value in scrape.samples.items():
            if key.name == name and key.labels <= group.key:
                return value
    return None


def _describe(group: Group, scrapes: Sequence[Scrape], vocabulary: Vocabulary) -> None:
    """Read the KV capacity and type from the last info series of this rank."""
    rank = group.label(vocabulary.rank_label)
    for scrape in reversed(scrapes):
        for key in scrape.samples:
            if key.name not in vocabulary.info.names or key.label(vocabulary.rank_label) not in ("", rank):
                continue
            group.kv_dtype = key.label(vocabulary.kv_dtype_label)
            for names in vocabulary.kv_capacity_labels:
                values = [_number(key.label(name)) for name in names]
                if all(value is not None for value in values):
                    group.kv_capacity = math.prod(value for value in values if value is not None)
                    return
            return


def _number(text: str) -> float | None:
    """Read a positive number from a label, ``None`` where it holds no such thing."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None
