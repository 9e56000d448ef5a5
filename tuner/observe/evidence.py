"""Increments -> raw windows: what one group did between two scrapes, before it is judged."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from tuner.fleet import Counts, Gauges
from tuner.observe.deltas import Interval, increments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.observe.snapshots import Group
    from tuner.vocabulary import Vocabulary

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


def raw_windows(times: Sequence[float], group: Group, vocabulary: Vocabulary) -> list[RawWindow]:
    """Return one raw window for every pair of neighbouring scrapes that this group answered."""
    usual = median(b - a for a, b in pairwise(times)) if len(times) > 1 else 0.0
    windows = []
    intervals = increments(times, group.tracks, group.started)
    for i, interval in enumerate(intervals, start=1):
        known_before = group.present[i - 1]
        if not group.present[i] or not (known_before or (interval.increments and not interval.born)):
            continue
        window = _window(i, times, group, interval, vocabulary)
        window.older_start = i > 1 and intervals[i - 2].event == "interleave"
        window.gap = window.seconds > LONGEST_GAP * usual
        windows.append(window)
    return windows


def _window(
    i: int, times: Sequence[float], group: Group, interval: Interval, vocabulary: Vocabulary
) -> RawWindow:
    """Add the series of one interval up to counts."""
    totals: dict[str, float | None] = {
        logical: _total(i, group, interval, logical) for logical in vocabulary.counters
    }
    positions, odd = _positions(i, group, interval, vocabulary)
    if not positions:
        totals["accepted_by_position"] = None
    step_tokens = totals.pop("step_tokens", None)
    emitted = totals.get("emitted")
    if step_tokens is not None and emitted is not None and step_tokens >= emitted:
        totals["prompt_tokens"] = step_tokens - emitted
    missing = tuple(sorted(name for name in vocabulary.required if totals.get(name) is None))
    totals.pop("accepted_by_position", None)
    counts = Counts(accepted_by_position=positions, **totals)  # type: ignore[arg-type]  # names are fields
    return RawWindow(
        times[i - 1],
        times[i],
        counts,
        _gauges(i, group),
        (_at(group, "running", i - 1), _at(group, "running", i)),
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
        if not (text.isascii() and text.isdigit()):
            return (), (f"position {text!r} is not a number",)
        if part is None:
            return (), ()
        by_position[int(text)] = part
    if sorted(by_position) != list(range(len(by_position))):
        return (), (f"positions {sorted(by_position)[:8]} have a hole",)
    return tuple(by_position[n] for n in range(len(by_position))), ()


def _at(group: Group, gauge: str, i: int) -> float | None:
    """Return a gauge at one scrape."""
    values = group.gauges.get(gauge)
    return values[i] if values is not None else None


def _gauges(i: int, group: Group) -> Gauges:
    """Return the mean of the two ends, for the gauges told at both."""
    means: dict[str, float] = {}
    for name in ("running", "waiting", "kv_usage"):
        first, last = _at(group, name, i - 1), _at(group, name, i)
        if first is not None and last is not None:
            means[name] = (first + last) / 2
    usage = means.get("kv_usage")
    if usage is not None and usage > 1:
        del means["kv_usage"]
    elif usage is not None and group.kv_capacity is not None:
        means["kv_tokens"] = usage * group.kv_capacity
    return Gauges(**means)
