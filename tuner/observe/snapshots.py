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
from tuner.observe.layouts import GroupKey, Layouts, label_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.observe.exposition import Scrape, SeriesKey
    from tuner.observe.layouts import GroupLayout, Layout
    from tuner.vocabulary import Vocabulary


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
        return label_of(self.key, name)

    def members(self, logical: str, i: int) -> list[SeriesKey]:
        """Return the series of a logical counter under the alias in use at scrape ``i``."""
        used = self.used.get(logical)
        if used is None or not used[i]:
            return []
        return [key for key in self.series[logical] if key.name == used[i]]


def build_groups(scrapes: Sequence[Scrape], vocabulary: Vocabulary) -> list[Group]:
    """Sort the samples of all scrapes into groups and tracks, aliases resolved."""
    layouts = Layouts(vocabulary)
    layout: Layout | None = None
    entries: list[tuple[Layout, Sequence[float]]] = []
    for scrape in scrapes:
        layout = layouts.of(scrape, layout)
        entries.append((layout, list(scrape.samples.values())))
    return assemble(entries, vocabulary)


def assemble(entries: Sequence[tuple[Layout, Sequence[float]]], vocabulary: Vocabulary) -> list[Group]:
    """Join scrapes of known layout into the groups that any of them tells about.

    Args:
        entries: layout and values of every scrape in the order of time.
        vocabulary: the engine's names.
    """
    groups: dict[GroupKey, Group] = {}
    n = len(entries)
    for i, (layout, values) in enumerate(entries):
        for key, placed in layout.groups.items():
            group = groups.get(key)
            if group is None:
                group = groups[key] = Group(key, [False] * n)
            group.present[i] = True
            _place_counters(i, n, group, placed, values)
            for logical, places in placed.gauges.items():
                at = group.gauges.setdefault(logical, [None] * n)
                at[i], bad = gauge_value(places, values)
                if bad:
                    group.bad_gauges[logical] = group.bad_gauges.get(logical, 0) + bad
    ordered = [groups[key] for key in sorted(groups, key=sorted)]
    for group in ordered:
        group.started = [_start(layout, values, group.key) for layout, values in entries]
        _describe(group, entries, vocabulary)
    return ordered


def gauge_value(places: Sequence[int], values: Sequence[float]) -> tuple[float | None, int]:
    """Return a gauge at one scrape, its parts added up, and how many parts cannot be."""
    total, bad = None, 0
    for place in places:
        value = values[place]
        if math.isfinite(value) and value >= 0:
            total = (total or 0.0) + value
        else:
            bad += 1
    return total, bad


def _place_counters(i: int, n: int, group: Group, placed: GroupLayout, values: Sequence[float]) -> None:
    """Append the counters of one scrape to the tracks of a group."""
    for logical, name in placed.used.items():
        group.used.setdefault(logical, [""] * n)[i] = name
    for logical, key, place, created, kind in placed.counters:
        track = group.tracks.get(key)
        if track is None:
            group.series.setdefault(logical, []).append(key)
            track = group.tracks[key] = Track([None] * n, [None] * n, [""] * n)
        track.values[i] = values[place]
        track.kinds[i] = kind
        track.created[i] = values[created] if created >= 0 else None


def _start(layout: Layout, values: Sequence[float], key: GroupKey) -> float | None:
    """Return the start time of the process that a group belongs to."""
    place = layout.start_place(key)
    return values[place] if place >= 0 else None


def _describe(
    group: Group, entries: Sequence[tuple[Layout, Sequence[float]]], vocabulary: Vocabulary
) -> None:
    """Read the KV capacity and type from the last info series of this rank."""
    rank = group.label(vocabulary.rank_label)
    for layout, _ in reversed(entries):
        cache = layout.cache_of(rank)
        if cache is not None:
            group.kv_dtype, group.kv_capacity = cache.dtype, cache.capacity
            return
