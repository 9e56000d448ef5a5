"""Increments -> raw windows: what one group did between two scrapes, before it is judged."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from tuner.fleet import Counts, Gauges
from tuner.observe.deltas import Interval, follow
from tuner.observe.layouts import holes, is_position, not_a_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tuner.observe.exposition import SeriesKey
    from tuner.observe.snapshots import Group
    from tuner.vocabulary import Vocabulary

GAUGES = ("running", "waiting", "kv_usage")
LONGEST_GAP = 4.0
"""Usual scrape intervals that one window may span: three scrapes in a row may fail. Beyond, what
happened in between (a night, a pause of the tuner) is not one regime of batch and draft length."""


@dataclass(slots=True)
class RawWindow:
    """One interval of one group, with everything that speaks against it."""

    start: float
    end: float
    counts: Counts
    gauges: Gauges
    running: tuple[float | None, float | None]
    """Running requests reported at the start and at the end."""
    interval: Interval
    missing: tuple[str, ...] = ()
    """Required counters without an increment."""
    unreadable: tuple[str, ...] = ()
    gap: bool = False
    older_start: bool = False
    """The scrape at the start is an older reading than the one before it."""
    steps_estimated: bool = False
    flat: bool = field(default=False)
    """Neither tokens nor steps moved."""

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return self.end - self.start

    @property
    def occupancy(self) -> float | None:
        """Mean requests per engine step, those in prefill included, each by one step.

        It is steadier than the decode batch: a wave of new requests takes decode steps away, but
        adds first tokens. Two windows at 64 clients of a real engine: batch 56 and 63, this 60 and 63.
        """
        counts = self.counts
        if counts.request_steps is None or not counts.steps:
            return None
        return (counts.request_steps + (counts.first_tokens or 0.0)) / counts.steps


@dataclass(slots=True)
class Followed:
    """The raw windows of one group, and where its counters stand after them."""

    windows: list[RawWindow]
    intervals: list[Interval]
    held: dict[SeriesKey, float]


def raw_windows(times: Sequence[float], group: Group, vocabulary: Vocabulary) -> list[RawWindow]:
    """Return one raw window for every pair of neighbouring scrapes that this group answered."""
    return follow_group(times, group, vocabulary).windows


def follow_group(
    times: Sequence[float], group: Group, vocabulary: Vocabulary, *, since: float = -math.inf
) -> Followed:
    """Return the raw windows of a group that start no earlier than ``since``."""
    usual = usual_interval(times)
    windows = []
    intervals, held = follow(times, group.tracks, group.started)
    for i, interval in enumerate(intervals, start=1):
        known_before = group.present[i - 1]
        if not group.present[i] or not (known_before or (interval.increments and not interval.born)):
            continue
        if times[i - 1] < since:
            continue
        window = _window(i, times, group, interval, vocabulary)
        window.older_start = i > 1 and intervals[i - 2].event == "interleave"
        window.gap = window.seconds > LONGEST_GAP * usual
        windows.append(window)
    return Followed(windows, intervals, held)


def usual_interval(times: Sequence[float]) -> float:
    """Return the median seconds between scrapes, 0 where there are not two."""
    return median(b - a for a, b in pairwise(times)) if len(times) > 1 else 0.0


def _window(
    i: int, times: Sequence[float], group: Group, interval: Interval, vocabulary: Vocabulary
) -> RawWindow:
    """Add the series of one interval up to counts."""
    totals = {logical: _total(i, group, interval, logical) for logical in vocabulary.counters}
    positions, odd = _positions(i, group, interval, vocabulary)
    ends = [{name: _at(group, name, at) for name in GAUGES} for at in (i - 1, i)]
    return freeze(
        (times[i - 1], times[i]),
        totals,
        (positions, odd),
        (ends[0], ends[1], group.kv_capacity),
        interval,
        vocabulary.required,
    )


def freeze(
    span: tuple[float, float],
    totals: dict[str, float | None],
    positions: tuple[tuple[float, ...], tuple[str, ...]],
    gauges: tuple[Mapping[str, float | None], Mapping[str, float | None], float | None],
    interval: Interval,
    required: frozenset[str],
) -> RawWindow:
    """Make a raw window of what was added up.

    Args:
        span: start and end.
        totals: increments by logical counter; it is used up.
        positions: accepted by position, and what is odd about the positions.
        gauges: at the start, at the end, and the KV capacity.
        interval: what happened.
        required: the counters that a window needs.
    """
    by_position, odd = positions
    if not by_position:
        totals["accepted_by_position"] = None
    step_tokens = totals.pop("step_tokens", None)
    emitted = totals.get("emitted")
    if step_tokens is not None and emitted is not None and step_tokens >= emitted:
        totals["prompt_tokens"] = step_tokens - emitted
    missing = tuple(sorted(name for name in required if totals.get(name) is None))
    totals.pop("accepted_by_position", None)
    counts = Counts(accepted_by_position=by_position, **totals)  # type: ignore[arg-type]  # names are fields
    return RawWindow(
        *span,
        counts,
        _means(*gauges),
        (gauges[0].get("running"), gauges[1].get("running")),
        interval,
        missing,
        odd,
        flat=counts.emitted == 0 and not counts.steps and not counts.request_steps,
    )


def _total(i: int, group: Group, interval: Interval, logical: str) -> float | None:
    """Add up the increments of one logical counter, ``None`` if any part of it is unknown."""
    parts = [interval.increments.get(key) for key in group.members(logical, i)]
    known = [part for part in parts if part is not None]
    return sum(known) if parts and len(known) == len(parts) else None


def _positions(
    i: int, group: Group, interval: Interval, vocabulary: Vocabulary
) -> tuple[tuple[float, ...], tuple[str, ...]]:
    """Return the increments by draft position, in the order of numbers, and what is odd about them."""
    label = vocabulary.counters["accepted_by_position"].position
    by_position: dict[int, float] = {}
    for key in group.members("accepted_by_position", i):
        text, part = key.label(label), interval.increments.get(key)
        if not is_position(text):
            return (), (not_a_number(text),)
        if part is None:
            return (), ()
        by_position[int(text)] = part
    if sorted(by_position) != list(range(len(by_position))):
        return (), (holes(by_position),)
    return tuple(by_position[n] for n in range(len(by_position))), ()


def _at(group: Group, gauge: str, i: int) -> float | None:
    """Return a gauge at one scrape."""
    values = group.gauges.get(gauge)
    return values[i] if values is not None else None


def _means(
    first: Mapping[str, float | None], last: Mapping[str, float | None], kv_capacity: float | None
) -> Gauges:
    """Return the mean of the two ends, for the gauges told at both."""
    means: dict[str, float] = {}
    for name in GAUGES:
        before, after = first.get(name), last.get(name)
        if before is not None and after is not None:
            means[name] = (before + after) / 2
    usage = means.get("kv_usage")
    if usage is not None and usage > 1:
        del means["kv_usage"]
    elif usage is not None and kv_capacity is not None:
        means["kv_tokens"] = usage * kv_capacity
    return Gauges(**means)
