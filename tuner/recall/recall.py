"""The bounded memory of a daemon: what is kept of all windows for the next cycle to look at."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from tuner._exceptions import InputError
from tuner.fleet import POOLED_ROUTE, Fingerprint, Window, WindowState
from tuner.recall.sampling import BLOCK_SECONDS, Stream, uniform

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

LIFETIMES = 8.0
"""Half-lives after which a window is forgotten: it would weigh 1/256 of a new one."""

LAST_BAD = 64
"""Windows that cannot be fitted which are held, the newest: enough to say what a pool suffers from now. Of
the others only their number by state is kept."""

MAX_FINGERPRINTS = 3
"""Fingerprints of a route that are held: the one that runs, the one before, and one to roll back to."""

EARLIER_SHARE = 0.125
"""Part of the windows looked at that earlier fingerprints share: they are only counted and compared."""

MAX_ROUTES = 50
"""Routes of a pool that are held besides the pooled one, as many as the settings allow; more go by hash."""

MAX_SLOTS = 4096
"""Stretches of time that states are counted in: 14 days, for a half-life of 42 hours."""

MAX_ENGINES = 5000
"""Engines of a pool whose newest window is held; some 5 MB. More are chosen by hash."""

SLACK = 1.1
"""Windows over budget at which the rest is dropped: sorting 4000 windows once in 400, not at each scrape."""

Key = tuple[str, Fingerprint]
"""Route and fingerprint."""


class Recall:
    """Windows of every pool, bounded in number and age, thinned without regard to what they show.

    Not safe for threads: whoever shares it locks it.
    """

    def __init__(self, max_windows: int = 4000, half_life: float = 21_600.0) -> None:
        """Hold nothing yet.

        Args:
            max_windows: most windows of a pool that :meth:`windows` returns.
            half_life: seconds after which a window counts half in the fits.

        Raises:
            InputError: one of them is not above 0.
        """
        if max_windows < 1 or not 0 < half_life < math.inf:
            raise InputError(
                f"recall of {max_windows} windows with a half-life of {half_life:g} s: both must be above 0"
            )
        self.max_windows = max_windows
        self.half_life = half_life
        self._pools: dict[str, _Pool] = {}

    def add(self, windows: Iterable[Window]) -> None:
        """Hold windows, in any order; one that is held already (engine, route, start) is not held twice."""
        touched = set()
        for window in windows:
            pool = self._pools.get(window.pool)
            if pool is None:
                pool = self._pools[window.pool] = _Pool(window.pool, self.max_windows, self.half_life)
            pool.add(window)
            touched.add(window.pool)
        for name in touched:
            self._pools[name].trim()

    def windows(self, pool: str, now: float) -> tuple[Window, ...]:
        """Return what a cycle at ``now`` looks at, at most as many windows as the recall was made for.

        Good windows of every route, each with the number of windows that it stands for as its ``weight``,
        and the newest of those that are not good. The same whatever order they came in.
        """
        held = self._pools.get(pool)
        return () if held is None else tuple(held.windows(now, now - LIFETIMES * self.half_life))

    def latest(self, pool: str) -> tuple[Window, ...]:
        """Return the newest window of each engine over all routes, in any state, by engine."""
        held = self._pools.get(pool)
        return () if held is None else tuple(held.latest[name] for name in sorted(held.latest))

    def states(self, pool: str) -> Mapping[WindowState, int]:
        """Return how many windows came in by state, within the age that is remembered."""
        held = self._pools.get(pool)
        return Counter() if held is None else sum(held.states.values(), Counter())

    def held(self, pool: str, route: str | None = None) -> int:
        """Return the windows that are held: a tenth over the most of :meth:`windows`, per fingerprint.

        Of one route, or of all.
        """
        held = self._pools.get(pool)
        if held is None:
            return 0
        good = sum(stream.size for (name, _), stream in held.streams.items() if route in (None, name))
        return good + sum(route in (None, name) for _, _, name in held.bad)

    @property
    def pools(self) -> tuple[str, ...]:
        """Names of the pools that anything is held of."""
        return tuple(sorted(self._pools))

    def keep(self, pools: Collection[str]) -> None:
        """Drop all other pools."""
        self._pools = {name: pool for name, pool in self._pools.items() if name in pools}

    def forget(self, now: float) -> None:
        """Drop what is older than 8 half-lives, and what claims to be as far in the future."""
        age = LIFETIMES * self.half_life
        for name, pool in list(self._pools.items()):
            pool.forget(now - age, now + age)
            if not pool.streams and not pool.bad:
                del self._pools[name]


class _Pool:
    """What is held of one pool."""

    def __init__(self, name: str, max_windows: int, half_life: float) -> None:
        self.name = name
        self.half_life = half_life
        self.bad: dict[tuple[float, str, str], Window] = {}
        self.bad_room = min(LAST_BAD, max_windows // 8)
        self.room = max_windows - self.bad_room
        self.streams: dict[Key, Stream] = {}
        self.latest: dict[str, Window] = {}
        self.states: dict[int, Counter[WindowState]] = {}

    def add(self, window: Window) -> None:
        if window.route == POOLED_ROUTE:
            slot = math.floor(window.start / BLOCK_SECONDS)
            self.states.setdefault(slot, Counter())[window.state] += 1
            newest = self.latest.get(window.engine)
            if newest is None or window.end >= newest.end:
                self.latest[window.engine] = window
        if window.state is not WindowState.GOOD:
            self.bad[window.end, window.engine, window.route] = window
            return
        key = window.route, window.fingerprint
        stream = self.streams.get(key)
        if stream is None:
            stream = self.streams[key] = Stream(self.half_life)
        stream.add(window, self.name)

    def trim(self) -> None:
        """Bring everything back within its bounds."""
        for name in sorted(self.bad)[: max(0, len(self.bad) - self.bad_room)]:
            del self.bad[name]
        if len(self.latest) > MAX_ENGINES:
            for engine in sorted(self.latest, key=lambda one: uniform(self.name, one))[MAX_ENGINES:]:
                del self.latest[engine]
        if len(self.states) > MAX_SLOTS:
            self.states = {slot: self.states[slot] for slot in sorted(self.states)[-MAX_SLOTS:]}
        routes = {route for route, _ in self.streams} - {POOLED_ROUTE}
        for route in sorted(routes, key=lambda one: uniform(self.name, one))[MAX_ROUTES:]:
            self.streams = {key: stream for key, stream in self.streams.items() if key[0] != route}
        for route in {route for route, _ in self.streams}:
            for fingerprint in self._fingerprints(route, math.inf)[MAX_FINGERPRINTS:]:
                del self.streams[route, fingerprint]
        for (route, _), stream in self.streams.items():
            budget = self._budget(route)
            if stream.size > SLACK * budget:
                stream.trim(budget)

    def windows(self, now: float, since: float) -> list[Window]:
        out: list[Window] = []
        for route in sorted({route for route, _ in self.streams}):
            first, *earlier = self._fingerprints(route, now)
            budget = self._budget(route)
            rest = int(EARLIER_SHARE * budget) if earlier else 0
            out += self.streams[route, first].windows(now, budget - rest)
            for fingerprint in earlier:
                out += self.streams[route, fingerprint].windows(now, rest // len(earlier))
        out += (self.bad[name] for name in sorted(self.bad) if name[0] <= now)
        return [window for window in out if window.end > since]

    def forget(self, first: float, last: float) -> None:
        for key, stream in list(self.streams.items()):
            stream.forget(first, last)
            if not stream.size:
                del self.streams[key]
        for name in [name for name in self.bad if not first <= name[0] <= last]:
            del self.bad[name]
        self.latest = {name: one for name, one in self.latest.items() if first <= one.end <= last}
        slots = math.floor(first / BLOCK_SECONDS), math.floor(last / BLOCK_SECONDS)
        self.states = {slot: count for slot, count in self.states.items() if slots[0] <= slot <= slots[1]}

    def _fingerprints(self, route: str, now: float) -> list[Fingerprint]:
        """Return the fingerprints of a route, the one that ran last by ``now`` first."""
        own = [fingerprint for name, fingerprint in self.streams if name == route]
        if len(own) == 1:
            return own
        newest = {one: (self.streams[route, one].newest(now), uniform(repr(one))) for one in own}
        return sorted(own, key=lambda one: newest[one], reverse=True)

    def _budget(self, route: str) -> int:
        """Return the most windows of a route.

        All of the room for pooled windows; where routes are told, half of it, and the routes share the
        other half alike, so that a busy one starves none.
        """
        routes = len({name for name, _ in self.streams} - {POOLED_ROUTE})
        if not routes:
            return self.room
        return self.room // 2 if route == POOLED_ROUTE else max(1, self.room // 2 // routes)
