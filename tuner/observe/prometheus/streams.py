"""Series of a metrics server -> the scrapes that it made, target by target.

The samples of one scrape share its time, and ``up`` has a sample for every scrape, good or bad: its times
are the timeline, its labels say which series come from the same target. One target may be told several
times, by two servers that scrape it (a replica label) or by two jobs; these are *streams*, and one is used,
since a batch that is added up over streams reads twice what it is.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tuner._exceptions import InputError
from tuner.observe.exposition import Scrape, SeriesKey, TimedScrape

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from tuner.fleet import Target

UP = "up"
EXPORTED = "exported_"
"""Put by Prometheus before a label of the target's own that the scrape configuration sets too."""
_JOB = ("job", "instance")
Samples = list[tuple[float, float]]
Labels = dict[str, str]
Series = tuple[str, Labels, Samples]
"""Name, all labels but the name and those of replicas, and samples by time."""


@dataclass(slots=True)
class Stream:
    """What one server tells about one target."""

    labels: Labels
    """Labels of ``up``, replica labels included; every series of the stream carries them."""
    up: Samples = field(default_factory=list)
    series: list[tuple[SeriesKey, Samples]] = field(default_factory=list)

    @property
    def instance(self) -> str:
        """The label ``instance``."""
        return self.labels.get("instance", "")

    @property
    def answered(self) -> int:
        """Scrapes that succeeded, as far as ``up`` tells."""
        return sum(1 for _, value in self.up if value == 1.0)

    def identity(self) -> frozenset[tuple[str, str]]:
        """The labels as a value."""
        return frozenset(self.labels.items())


def read_streams(series: Iterable[Mapping[str, Any]], replica_labels: Collection[str]) -> list[Stream]:
    """Sort series into streams.

    Args:
        series: ``{"metric": {...}, "values": [[time, "value"], ...]}`` of ``up`` and of others.
        replica_labels: labels that tell the servers of a pair apart.

    Raises:
        ValueError, TypeError, KeyError: a series or a sample of another shape.
    """
    streams: dict[frozenset[tuple[str, str]], Stream] = {}
    by_job: dict[tuple[str, ...], list[Stream]] = {}
    others: list[tuple[Labels, Samples]] = []
    for one in series:
        labels: Labels = dict(one["metric"])
        name, samples = labels.pop("__name__", ""), _samples(one["values"])
        if name != UP:
            labels["__name__"] = name
            others.append((labels, samples))
            continue
        key = frozenset(labels.items())
        if key in streams:
            streams[key].up = sorted({*streams[key].up, *samples})
            continue
        streams[key] = Stream(labels, samples)
        by_job.setdefault(_place(labels), []).append(streams[key])
    fallback = (*_JOB, *replica_labels)
    for labels, samples in others:
        place = _place(labels)
        stream = _owner(by_job.get(place, ()), labels)
        if stream is None:
            stream = Stream({key: labels[key] for key in fallback if key in labels})
            by_job.setdefault(place, []).append(stream)
            streams[stream.identity()] = stream
        name = labels.pop("__name__")
        stream.series.append((SeriesKey(name, frozenset(_own(labels, stream.labels))), samples))
    return [stream for place in by_job.values() for stream in place]


def read_series(
    series: Iterable[Mapping[str, Any]], replica_labels: Collection[str], after: float
) -> Iterator[Series]:
    """Yield series as they are, with the samples later than ``after``; raises as :func:`read_streams`."""
    for one in series:
        labels: Labels = {
            key: str(value) for key, value in one["metric"].items() if key not in replica_labels
        }
        samples = [sample for sample in _samples(one["values"]) if sample[0] > after]
        if samples:
            yield labels.pop("__name__", ""), labels, samples


def _place(labels: Labels) -> tuple[str, ...]:
    return tuple(labels.get(key, "") for key in _JOB)


def _owner(streams: Sequence[Stream], labels: Labels) -> Stream | None:
    """Return the stream whose labels a series carries, the one with the most where there are several.

    Alone at its job and instance it is the one, even where ``honor_labels`` let the engine set another label.
    """
    if len(streams) == 1:
        return streams[0]
    fits = [s for s in streams if all(labels.get(key) == value for key, value in s.labels.items())]
    return max(fits, key=lambda stream: len(stream.labels), default=None)


def _own(labels: Labels, target: Labels) -> Iterator[tuple[str, str]]:
    """Yield the labels that the engine itself gave, under its names."""
    for key, value in labels.items():
        if key not in target and value:
            plain = key.removeprefix(EXPORTED)
            yield (plain if plain in target else key), value


def _samples(values: Iterable[Sequence[Any]]) -> Samples:
    """Read ``[time, "value"]`` pairs; NaN is left out.

    VictoriaMetrics sends the mark that ends a series as NaN. A NaN that the engine itself wrote cannot be
    told from it and is no count either.
    """
    pairs = ((float(time), float(value)) for time, value in values)
    return [(time, value) for time, value in pairs if not math.isnan(value)]


def match(streams: Iterable[Stream], targets: Sequence[Target]) -> dict[Target, list[Stream]]:
    """Say which streams tell about which target.

    A stream fits a target at its ``instance`` if no label of the two differs; of several targets, it is
    that of the one with the most labels in common.
    """
    by_instance: dict[str, list[tuple[Target, Labels]]] = {}
    for target in targets:
        labels = dict(target.labels)
        by_instance.setdefault(instance_of(target), []).append((target, labels))
    found: dict[Target, list[Stream]] = {}
    for stream in streams:
        best: tuple[int, Target] | None = None
        for target, labels in by_instance.get(stream.instance, ()):
            shared = [key for key in labels if key in stream.labels]
            if all(labels[key] == stream.labels[key] for key in shared) and (
                best is None or len(shared) > best[0]
            ):
                best = len(shared), target
        if best is not None:
            found.setdefault(best[1], []).append(stream)
    return found


def instance_of(target: Target) -> str:
    """Return the label ``instance`` that a metrics server gives a target: its own, or its address."""
    return dict(target.labels).get("instance") or urlsplit(target.url).netloc


def choose(streams: Sequence[Stream], kept: frozenset[tuple[str, str]] | None) -> Stream:
    """Return the stream to use: the one used before while it tells anything good, else the best one."""
    for stream in streams:
        if stream.identity() == kept and (stream.answered or stream.series):
            return stream
    return max(
        streams, key=lambda stream: (stream.answered, len(stream.series), sorted(stream.labels.items()))
    )


def ambiguous(streams: Sequence[Stream], replica_labels: Collection[str]) -> tuple[str, ...]:
    """Return the labels, none of them configured as replica labels, by which streams of a target differ."""
    differing: set[str] = set()
    for stream in streams[1:]:
        first, other = streams[0].labels, stream.labels
        differing |= {key for key in {*first, *other} if first.get(key) != other.get(key)}
    return tuple(sorted(differing - set(replica_labels)))


def timed_scrapes(stream: Stream, server: str) -> tuple[list[TimedScrape], bool]:
    """Return the scrapes of one stream, by time, and whether samples carry times of their own.

    Samples whose times are not those of ``up`` were given their times by the exporter
    (``honor_timestamps``). If all are, their own times are the timeline; if only some, each counts for the
    next scrape, which saw it last.
    """
    timeline = [time for time, _ in stream.up]
    known = set(timeline)
    off = any(time not in known for _, samples in stream.series for time, _ in samples)
    on = any(time in known for _, samples in stream.series for time, _ in samples)
    failed = {time for time, value in stream.up if value != 1.0}
    if off and not on:
        timeline = sorted({time for _, samples in stream.series for time, _ in samples} | failed)
    held: dict[float, dict[SeriesKey, float]] = {time: {} for time in timeline if time not in failed}
    contradicted: dict[float, set[SeriesKey]] = {}
    for key, samples in stream.series:
        last: dict[float, float] = {}
        for time, value in samples:
            at = _scrape_time(time, timeline) if off and on else time
            if at is not None and at in held and last.get(at, -math.inf) <= time:
                if key in held[at] and held[at][key] != value and at not in last:
                    contradicted.setdefault(at, set()).add(key)
                held[at][key], last[at] = value, time
    scrapes = []
    for time in timeline:
        if time in failed:
            scrapes.append(TimedScrape(time, InputError(f"{server} could not scrape {stream.instance}")))
            continue
        bad = contradicted.get(time, set())
        samples_at = {key: value for key, value in held[time].items() if key not in bad}
        scrapes.append(TimedScrape(time, Scrape(samples_at, contradicted=tuple(bad))))
    return scrapes, off and bool(stream.up)


def _scrape_time(time: float, timeline: Sequence[float]) -> float | None:
    """Return the time of the first scrape at or after a sample."""
    place = bisect_left(timeline, time)
    return timeline[place] if place < len(timeline) else None
