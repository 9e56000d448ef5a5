"""Several windows of one series → few that say as much: what is alike is summed, nothing is guessed. Pure."""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from tuner.fleet import SHORT_DRAFT_TOKENS, Counts, Gauges, Window, WindowState
from tuner.store.tables import COUNT_COLUMNS, GAUGE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

MIXED = -1
"""Stands for the draft length of a window in which several ran."""
UNKNOWN = -2


class Part(NamedTuple):
    """A window and what it was merged from."""

    window: Window
    windows: int
    """How many windows as observed."""
    until: float
    """Unix seconds at which the last of them ended; ``window.end`` where they follow each other."""


def kind_of(window: Window) -> Hashable:
    """Return what two windows must share to be merged.

    Beside set-up, state and restarts it is which counts the engine told: so ``None`` never meets a number,
    and a sum is the sum of all. Good windows share their draft lengths too; the others are never fitted.
    """
    counts = window.counts
    told = tuple(getattr(counts, name) is not None for name in COUNT_COLUMNS)
    lists = bool(counts.accepted_by_position), bool(counts.exposed_by_position), bool(counts.joint)
    common = window.fingerprint, window.state, window.restarts, told, lists
    if window.state is not WindowState.GOOD:
        return common
    return *common, window.draft_lens, _draft_len(window)


def _draft_len(window: Window) -> int:
    """Return the one draft length that ran, ``MIXED`` or ``UNKNOWN``."""
    mean = window.draft_len
    if window.draft_lens is not None and len(window.draft_lens) > 1:
        return MIXED
    if mean is None:
        return UNKNOWN
    nearest = round(mean)
    return nearest if abs(mean - nearest) <= SHORT_DRAFT_TOKENS else MIXED


def merge_kinds(parts: Iterable[Part]) -> list[Part]:
    """Merge windows of one series and one bucket, kind by kind, in the order of their starts."""
    kinds: dict[Hashable, list[Part]] = {}
    for part in parts:
        kinds.setdefault(kind_of(part.window), []).append(part)
    return sorted((_merge(group) for group in kinds.values()), key=lambda part: part.window.start)


def _merge(parts: Sequence[Part]) -> Part:
    """Merge windows of one kind.

    The result begins where the first does and is as long as all of them together, so that rates per second
    stay true where other windows lie between. Sums do not depend on the order of ``parts``.
    """
    if len(parts) == 1:
        return parts[0]
    windows = [part.window for part in parts]
    first = min(windows, key=lambda window: window.start)
    seconds = math.fsum(window.seconds for window in windows)
    longest = max(windows, key=lambda window: (window.seconds, -window.start))
    return Part(
        Window(
            pool=first.pool,
            engine=first.engine,
            start=first.start,
            end=first.start + seconds,
            state=first.state,
            reason=longest.reason,
            counts=_sum([window.counts for window in windows]),
            gauges=_mean(windows),
            fingerprint=first.fingerprint,
            route=first.route,
            draft_lens=_union(windows),
            restarts=first.restarts,
        ),
        sum(part.windows for part in parts),
        max(part.until for part in parts),
    )


def _union(windows: Sequence[Window]) -> frozenset[int] | None:
    """Return every draft length that ran, ``None`` where one window does not know its own."""
    lens: set[int] = set()
    for window in windows:
        if window.draft_lens is None:
            return None
        lens |= window.draft_lens
    return frozenset(lens)


def _sum(counts: Sequence[Counts]) -> Counts:
    """Add counts that tell the same."""
    joint: dict[tuple[int, int], list[float]] = {}
    for each in counts:
        for key, count in each.joint.items():
            joint.setdefault(key, []).append(count)
    scalars = {
        name: None if getattr(counts[0], name) is None else math.fsum(getattr(each, name) for each in counts)
        for name in COUNT_COLUMNS
    }
    return Counts(
        **scalars,
        accepted_by_position=_by_position(counts, lambda each: each.accepted_by_position),
        exposed_by_position=_by_position(counts, lambda each: each.exposed_by_position),
        joint={key: math.fsum(values) for key, values in joint.items()},
    )


def _by_position(counts: Sequence[Counts], told: Callable[[Counts], tuple[float, ...]]) -> tuple[float, ...]:
    """Add position by position; a position that a window does not have was reached by no draft of it."""
    return tuple(math.fsum(column) for column in zip_longest(*map(told, counts), fillvalue=0.0))


def _mean(windows: Sequence[Window]) -> Gauges:
    """Average each gauge over the time for which it is known."""
    means: dict[str, float | None] = {}
    for name in GAUGE_COLUMNS:
        told = [
            (value, window.seconds)
            for window in windows
            if (value := getattr(window.gauges, name)) is not None
        ]
        total = math.fsum(seconds for _, seconds in told)
        if not told:
            means[name] = None
        elif total > 0:
            mean = math.fsum(value * seconds for value, seconds in told) / total
            # Rounding must not carry a mean outside of what was seen, such as a ratio above 1.
            means[name] = min(max(mean, min(told)[0]), max(told)[0])
        else:
            means[name] = told[0][0]
    return Gauges(**means)
