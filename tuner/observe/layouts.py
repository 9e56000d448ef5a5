"""Where in a scrape each series stands: which engine it belongs to, which metric it is a part of.

Body after body of one engine holds the same series in the same order. So whose they are, and under
which alias a metric goes, is worked out once per list of series (a *layout*) and looked up by it from
then on: that is three quarters of the time of making a window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from tuner.observe.plugin import PluginLayout, plugin_layout
from tuner.vocabulary import created_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from tuner.observe.exposition import Scrape, SeriesKey
    from tuner.vocabulary import Metric, Vocabulary

GroupKey = frozenset[tuple[str, str]]

MOST_RANKS = 64
"""Ranks of one address that are followed. One server of vLLM rarely has more than 16 data-parallel ranks; a
label that differs from request to request makes thousands, each with windows of its own that crowd those
of other engines out of the pool's memory."""


class Placed(NamedTuple):
    """One counter series of a group and where its numbers stand in the scrape."""

    logical: str
    key: SeriesKey
    place: int
    created: int
    """Place of its creation time, -1 where none is told."""
    kind: str


class KvCache(NamedTuple):
    """What an info series says about the KV cache of one rank; an empty rank speaks for all."""

    rank: str
    dtype: str
    capacity: float | None


@dataclass(slots=True)
class GroupLayout:
    """Where the numbers of one group stand."""

    key: GroupKey
    counters: list[Placed] = field(default_factory=list)
    used: dict[str, str] = field(default_factory=dict)
    """Logical counter -> the alias in use."""
    gauges: dict[str, list[int]] = field(default_factory=dict)
    members: dict[str, list[int]] = field(default_factory=dict)
    """Logical counter -> indices into ``counters``."""
    positions: list[int] = field(default_factory=list)
    """Indices into ``counters`` by draft position; empty where positions are odd or untold."""
    odd: tuple[str, ...] = ()
    places: NDArray[np.intp] = field(default_factory=lambda: np.empty(0, dtype=np.intp))
    created: NDArray[np.intp] = field(default_factory=lambda: np.empty(0, dtype=np.intp))
    """Places of the counters and of their creation times, in the order of ``counters``."""
    identity: tuple[tuple[SeriesKey, str, bool], ...] = ()
    """The counters: each with its type, and whether its creation time is told."""
    start: int = -1
    """Place of the start time of the group's process, -1 where none is told."""
    cache: KvCache | None = None


@dataclass(slots=True, weakref_slot=True, eq=False)
class Layout:
    """The series of a scrape, in its order, and whose they are."""

    keys: list[SeriesKey]
    kinds: Mapping[str, str]
    groups: dict[GroupKey, GroupLayout]
    starts: list[tuple[GroupKey, int]]
    """Labels and place of every start time of a process, best name first."""
    caches: list[KvCache]
    plugin: PluginLayout | None
    left_out: int = 0
    """Ranks beyond :data:`MOST_RANKS`, which are not followed."""

    def start_place(self, key: GroupKey) -> int:
        """Return the place of the start time of a group's process, -1 where none is told."""
        return next((place for labels, place in self.starts if labels <= key), -1)

    def cache_of(self, rank: str) -> KvCache | None:
        """Return what is told about the KV cache of a rank."""
        return next((cache for cache in self.caches if cache.rank in ("", rank)), None)


class Layouts:
    """The layouts in use; one that no scrape has any more is let go."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._known: WeakValueDictionary[tuple[object, ...], Layout] = WeakValueDictionary()

    def of(self, scrape: Scrape, hint: Layout | None = None) -> Layout:
        """Return the layout of a scrape; ``hint`` is the one of the scrape before, most often the same."""
        keys = list(scrape.samples)
        if hint is not None and hint.keys == keys and hint.kinds == scrape.kinds:
            return hint
        identity = (tuple(keys), frozenset(scrape.kinds.items()))
        layout = self._known.get(identity)
        if layout is None:
            layout = _layout(keys, scrape.kinds, self._vocabulary)
            self._known[identity] = layout
        return layout


def label_of(key: GroupKey, name: str) -> str:
    """Return one label of a group, empty where it has none."""
    return next((value for label, value in key if label == name), "")


def group_key(labels: GroupKey, metric: Metric) -> GroupKey:
    """Return the labels that say whose series this is."""
    details = metric.detail_labels
    return frozenset(pair for pair in labels if pair[0] not in details) if details else labels


def _layout(keys: list[SeriesKey], kinds: Mapping[str, str], vocabulary: Vocabulary) -> Layout:
    """Sort the series of a scrape into groups, aliases resolved."""
    by_name: dict[str, list[tuple[int, SeriesKey]]] = {}
    for place, key in enumerate(keys):
        by_name.setdefault(key.name, []).append((place, key))
    places = {key: place for place, key in enumerate(keys)}
    groups: dict[GroupKey, GroupLayout] = {}
    for logical, metric in vocabulary.counters.items():
        for owner, place, key in _chosen(metric, by_name):
            group = groups.setdefault(owner, GroupLayout(owner))
            group.used[logical] = key.name
            created = places.get(key._replace(name=created_name(key.name)), -1)
            group.members.setdefault(logical, []).append(len(group.counters))
            group.counters.append(Placed(logical, key, place, created, kinds.get(key.name, "")))
    for logical, metric in vocabulary.gauges.items():
        for owner, place, _ in _chosen(metric, by_name):
            groups.setdefault(owner, GroupLayout(owner)).gauges.setdefault(logical, []).append(place)
    left_out = max(0, len(groups) - MOST_RANKS)
    if left_out:
        kept = sorted(groups, key=lambda key: _rank_order(key, vocabulary.rank_label))[:MOST_RANKS]
        groups = {key: groups[key] for key in kept}
    label = vocabulary.counters["accepted_by_position"].position
    for group in groups.values():
        group.positions, group.odd = _positions(group, label)
        group.identity = tuple((one.key, one.kind, one.created >= 0) for one in group.counters)
        group.places = np.array([one.place for one in group.counters], dtype=np.intp)
        group.created = np.array([one.created for one in group.counters if one.created >= 0], dtype=np.intp)
    starts = [(k.labels, i) for name in vocabulary.process_start.names for i, k in by_name.get(name, ())]
    caches = _caches(keys, vocabulary)
    layout = Layout(keys, dict(kinds), groups, starts, caches, plugin_layout(keys, vocabulary), left_out)
    for group in groups.values():
        group.start = layout.start_place(group.key)
        group.cache = layout.cache_of(label_of(group.key, vocabulary.rank_label))
    return layout


def _rank_order(key: GroupKey, label: str) -> tuple[int, str, list[tuple[str, str]]]:
    """Order ranks as their numbers are, so that the same ones are followed from scrape to scrape."""
    rank = label_of(key, label)
    return len(rank), rank, sorted(key)


def _chosen(
    metric: Metric, by_name: Mapping[str, list[tuple[int, SeriesKey]]]
) -> list[tuple[GroupKey, int, SeriesKey]]:
    """Return group, place and identity of a metric's series, by the first alias that each group has."""
    claimed: dict[GroupKey, str] = {}
    chosen = []
    for name in metric.names:
        for place, key in by_name.get(name, ()):
            if all(pair in key.labels for pair in metric.where):
                owner = group_key(key.labels, metric)
                if claimed.setdefault(owner, name) == name:
                    chosen.append((owner, place, key))
    return chosen


def _positions(group: GroupLayout, label: str) -> tuple[list[int], tuple[str, ...]]:
    """Return the places of the draft positions in the order of numbers, and what is odd about them."""
    by_position: dict[int, int] = {}
    for index in group.members.get("accepted_by_position", ()):
        text = group.counters[index].key.label(label)
        if not is_position(text):
            return [], (not_a_number(text),)
        by_position[int(text)] = index
    if sorted(by_position) != list(range(len(by_position))):
        return [], (holes(by_position),)
    return [by_position[n] for n in range(len(by_position))], ()


def is_position(text: str) -> bool:
    """Tell whether a label numbers a draft position."""
    return text.isascii() and text.isdigit()


def not_a_number(text: str) -> str:
    """Say that a position is none."""
    return f"position {text!r} is not a number"


def holes(positions: Mapping[int, object]) -> str:
    """Say that positions do not follow each other."""
    return f"positions {sorted(positions)[:8]} have a hole"


def _caches(keys: list[SeriesKey], vocabulary: Vocabulary) -> list[KvCache]:
    """Read KV capacity and type from the labels of the info series."""
    caches = []
    for key in keys:
        if key.name not in vocabulary.info.names:
            continue
        capacity = None
        for names in vocabulary.kv_capacity_labels:
            values = [_number(key.label(name)) for name in names]
            if all(value is not None for value in values):
                capacity = math.prod(value for value in values if value is not None)
                break
        dtype = key.label(vocabulary.kv_dtype_label)
        caches.append(KvCache(key.label(vocabulary.rank_label), dtype, capacity))
    return caches


def _number(text: str) -> float | None:
    """Read a positive number from a label, ``None`` where it holds no such thing."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None
