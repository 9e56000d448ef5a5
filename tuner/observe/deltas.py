"""Raw counter series -> increments between scrapes, per series, before anything is added up.

An aggregate hides a restart (one engine falls, another grows, the sum still rises), so every series
is followed alone and events are decided per *group*: the series of one engine, which restart
together. A fall is a restart only with evidence: a later start or creation time or, where neither is
told, counters as low as a new process can have counted since the scrape before. Any other fall is an
older reading: the running maximum holds where the counter comes back, else it counts on from there.
After a restart the increment is what was counted since zero. A series first seen is a baseline unless
it was created inside the interval: "born at 0 just now" and "old, first seen" look alike without its
creation time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tuner.observe.exposition import SeriesKey

Event = Literal["none", "restart", "interleave", "backwards", "mixed"]

EXACT = 2.0**53
"""From here on a float cannot count by ones: an increment of 1 would be lost."""
MAX_PER_SECOND = 1e9
"""A thousand times the fastest published engine (10^6 tokens/s); a counter that grows faster is broken."""
SMALL_FALL = 0.01
"""A fall under 1 % of the value is no restart by itself: a restarted counter starts from zero."""
ROUNDING = 1e-9
"""A sum of floats over processes or threads may come out this share lower when added in another order."""
REGROWTH = 3.0
"""A restarted counter climbs at its usual pace. Past three times that it did not climb: coming back from
a low value, the low one was foreign; fallen to a value, that was counted since long before."""
SURE_FALL = 0.5
"""Share of a counter that must be lost in a restart where no pace is known to hold the fall against."""
CLOCK_SLACK = 1.0
"""Seconds by which a start time may wander: it is computed from a boot time of whole seconds."""


@dataclass(slots=True)
class Track:
    """One series over all scrapes of its group; ``None`` where it was absent."""

    values: list[float | None]
    created: list[float | None]
    kinds: list[str]
    """Declared type at each scrape, empty where none was declared."""


@dataclass(slots=True)
class Interval:
    """What happened to one group between two scrapes."""

    increments: dict[SeriesKey, float] = field(default_factory=dict)
    event: Event = "none"
    born: list[SeriesKey] = field(default_factory=list)
    """Series without an increment because this is their first value."""
    retyped: list[SeriesKey] = field(default_factory=list)
    bad: dict[SeriesKey, str] = field(default_factory=dict)
    """Series with an impossible value at either end, and what is impossible about it."""


def increments(
    times: Sequence[float], tracks: Mapping[SeriesKey, Track], started: Sequence[float | None]
) -> list[Interval]:
    """Follow the series of one group through its scrapes.

    Args:
        times: unix seconds of the scrapes, increasing, ``(n,)``.
        tracks: every counter series of the group, ``n`` values each.
        started: start time of the process at each scrape, ``None`` where it was not told.

    Returns:
        ``n - 1`` intervals.
    """
    return follow(times, tracks, started)[0]


def follow(
    times: Sequence[float], tracks: Mapping[SeriesKey, Track], started: Sequence[float | None]
) -> tuple[list[Interval], dict[SeriesKey, float]]:
    """Return the intervals of :func:`increments`, and the value that each series counts on from."""
    follower = _Follower(times, tracks, started)
    return follower.intervals, follower.held


class _Follower:
    """Walks through the scrapes of one group, holding the base of each series."""

    def __init__(
        self, times: Sequence[float], tracks: Mapping[SeriesKey, Track], started: Sequence[float | None]
    ) -> None:
        self.times = times
        self.tracks = tracks
        self.started = [s if s is not None and math.isfinite(s) else None for s in started]
        self.intervals = [Interval() for _ in times[1:]]
        self.clean = {key: self._quarantine(key, track) for key, track in tracks.items()}
        self.usual = {key: _usual_increment(values) for key, values in self.clean.items()}
        self.fastest = {key: _fastest_pace(times, values) for key, values in self.clean.items()}
        self.held = {key: v[0] for key, v in self.clean.items() if v[0] is not None}
        for i, interval in enumerate(self.intervals, start=1):
            interval.event = self._event(i)
            for key in tracks:
                self._step(i, key, interval)

    def _quarantine(self, key: SeriesKey, track: Track) -> list[float | None]:
        """Blank the values that no counter can have, and mark the intervals that touch them."""
        clean = list(track.values)
        last: tuple[float, float] | None = None
        for i, value in enumerate(track.values):
            if value is None:
                continue
            why = _impossible(value)
            if why:
                self._mark(key, why, i - 1, i)
                clean[i] = None
                continue
            if last is not None and value - last[1] > self._most(last[0], self.times[i]):
                why = f"grew by {value - last[1]:.3g} in {self.times[i] - last[0]:.3g} s"
                following = next((v for v in track.values[i + 1 :] if v is not None), None)
                if following is None or not value <= following < EXACT:
                    self._mark(key, why, i - 1, i)
                    clean[i] = None
                    continue
                self._mark(key, why, i - 1)
            last = (self.times[i], value)
        return clean

    @staticmethod
    def _most(start: float, end: float) -> float:
        """Return the largest increment that anything real could make between two times."""
        return MAX_PER_SECOND * max(1.0, end - start)

    def _mark(self, key: SeriesKey, why: str, *indices: int) -> None:
        """Note what is impossible about a series in the intervals of these indices."""
        for i in indices:
            if 0 <= i < len(self.intervals):
                self.intervals[i].bad[key] = why

    def _event(self, i: int) -> Event:
        """Decide what happened to the group between scrapes ``i - 1`` and ``i``."""
        before, now = self.started[i - 1], self.started[i]
        told = before is not None and now is not None
        if before is not None and now is not None and abs(now - before) > CLOCK_SLACK:
            both = self._among(before, self.started[i + 1 :]) or self._among(now, self.started[: i - 1])
            return "mixed" if both or now < before else "restart"
        rises = [_rise(track.created[i - 1], track.created[i]) for track in self.tracks.values()]
        later = [rise > CLOCK_SLACK for rise in rises if rise is not None]
        if later and (all(later) if told else any(later)):
            return "restart"
        return self._fall(i, one_process=told or bool(later))

    def _fall(self, i: int, *, one_process: bool) -> Event:
        """Decide what the series that read lower at scrape ``i`` mean, where no new process was told.

        Args:
            i: number of the scrape.
            one_process: a start or creation time is known to have stood still, so that nothing restarted.
        """
        fallen = [key for key in self.tracks if self._fell(i, key)]
        if not fallen:
            return "none"
        if one_process:
            return "interleave" if all(self._returns(i, key, sure=True) for key in fallen) else "backwards"
        if all(self._returns(i, key, sure=False) for key in fallen):
            return "interleave"
        if all(self._restarted(i, key) for key in fallen):
            return "restart"
        back = all(self._next(i, key) >= self.held[key] for key in fallen)
        return "interleave" if back else "backwards"

    @staticmethod
    def _among(start: float, starts: Sequence[float | None]) -> bool:
        """Tell whether a process was seen at other times too."""
        return any(s is not None and abs(s - start) <= CLOCK_SLACK for s in starts)

    def _fell(self, i: int, key: SeriesKey) -> bool:
        """Tell whether a series reads lower than before, by more than rounding."""
        value, held = self.clean[key][i], self.held.get(key)
        if value is None or held is None or key in self.intervals[i - 1].bad:
            return False
        return held - value > ROUNDING * held

    def _next(self, i: int, key: SeriesKey) -> float:
        """Return what a series reads next after scrape ``i``, NaN if nothing follows."""
        return next((value for value in self.clean[key][i + 1 :] if value is not None), math.nan)

    def _returns(self, i: int, key: SeriesKey, *, sure: bool) -> bool:
        """Tell whether the fall of one series is an older reading in between.

        Args:
            i: number of the scrape.
            key: a series that fell.
            sure: one process is known to have told both values, so that any return is proof.
        """
        value, held, usual = self.clean[key][i] or 0.0, self.held[key], self.usual[key]
        after = self._next(i, key)
        small = held - value <= max(SMALL_FALL * held, usual)
        if math.isnan(after):
            return small
        return after >= held and (sure or small or after - value > REGROWTH * usual)

    def _restarted(self, i: int, key: SeriesKey) -> bool:
        """Tell whether a fallen series is as low as one that began after the scrape before.

        At its fastest pace in this recording, times three, it counted no more than that since then. An
        older body served again, or a clock set back, leaves a counter where it was an interval or hours
        before, far above that unless the engine is younger than a few intervals.
        """
        value, pace = self.clean[key][i] or 0.0, self.fastest[key]
        if pace == 0.0:
            return value <= SURE_FALL * self.held[key]
        return value <= REGROWTH * pace * (self.times[i] - self.times[i - 1])

    def _step(self, i: int, key: SeriesKey, interval: Interval) -> None:
        """Add the increment of one series to the interval and move its base."""
        value, base = self.clean[key][i], self.held.get(key)
        if value is None:
            self.held.pop(key, None)
            return
        self.held[key] = value
        if interval.event == "mixed":
            interval.bad[key] = "comes from two processes in turn"
        elif interval.event == "backwards" or key in interval.bad:
            return
        elif interval.event == "restart":
            interval.increments[key] = value
        elif _retyped(self.tracks[key], i):
            interval.retyped.append(key)
        elif base is None:
            if self._created_inside(i, key):
                interval.increments[key] = value
            else:
                interval.born.append(key)
        else:
            interval.increments[key] = max(0.0, value - base)
            self.held[key] = max(base, value)

    def _created_inside(self, i: int, key: SeriesKey) -> bool:
        """Tell whether a series, or its process, began after the scrape before this one."""
        known = [t for t in (self.tracks[key].created[i], self.started[i]) if t is not None]
        return bool(known) and self.times[i - 1] < max(known) <= self.times[i] + CLOCK_SLACK


def _impossible(value: float) -> str:
    """Say what is wrong with a counter's value, empty if nothing."""
    if not math.isfinite(value):
        return f"is {value}"
    if value < 0:
        return f"is negative: {value:g}"
    return f"is beyond 2^53: {value:.3g}" if value >= EXACT else ""


def _usual_increment(values: Sequence[float | None]) -> float:
    """Return the median of the positive increments, 0 if there was none."""
    known = [value for value in values if value is not None]
    rises = [b - a for a, b in pairwise(known) if b > a]
    return median(rises) if rises else 0.0


def _fastest_pace(times: Sequence[float], values: Sequence[float | None]) -> float:
    """Return the largest rise per second between neighbours no closer than half the usual interval.

    Rises over less, as after an older body was served a moment late, would be read as a pace of their own.
    """
    if len(times) < 2:  # noqa: PLR2004 - one scrape has no interval
        return 0.0
    least = median(b - a for a, b in pairwise(times)) / 2
    paces = [
        (after - before) / (end - start)
        for (start, end), (before, after) in zip(pairwise(times), pairwise(values), strict=True)
        if before is not None and after is not None and after > before and end - start >= least
    ]
    return max(paces, default=0.0)


def _rise(before: float | None, now: float | None) -> float | None:
    """Return by how much a creation time moved, ``None`` where it is not known twice."""
    if before is None or now is None or not math.isfinite(now - before):
        return None
    return now - before


def _retyped(track: Track, i: int) -> bool:
    """Tell whether the declared type of a series changed: a new series in all but name."""
    before, now = track.kinds[i - 1], track.kinds[i]
    return bool(before) and bool(now) and before != now and track.values[i - 1] is not None
