"""The counters of the tuner's own plugin: exact joint counts, and acceptance by route.

Stock counters tell how many drafts got past a position, not how long these were. The plugin counts
every verify step by draft length and accepted tokens, and by route where requests carry a label. Its
numbers are used only where they add up to the engine's own: a plugin that was loaded late, or that
missed a code path, would otherwise bend acceptance unseen.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from tuner.fleet import POOLED_ROUTE, Counts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tuner.fleet import Window
    from tuner.observe.exposition import SeriesKey
    from tuner.vocabulary import Vocabulary

MAX_ROUTES = 50
"""Routes of a pool that are told apart; each costs a window per scrape and engine."""
OTHER_ROUTES = "other"
"""Where the rest is counted, and routes whose label says nothing or means all of them."""
MAX_ROUTE_LENGTH = 64
MAX_DRAFT_LEN = 64
"""Longest published draft is 16; a label beyond this is no draft length."""
SLACK_STEPS = 2.0
"""Engine steps by which two counters of one body may be apart: one at either end of the window."""
SLACK_SHARE = 0.01
"""Share of the drafts by which they may differ besides: drafts of requests that were aborted."""

Labels = frozenset[tuple[str, str]]
Joint = dict[tuple[int, int], float]
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")


class Cell(NamedTuple):
    """One series of a metric that is told by two numbers, and its place in the scrape."""

    route: str
    draft_len: int
    number: int
    """Position, or accepted tokens."""
    place: int


@dataclass(slots=True)
class PluginLayout:
    """Where the plugin's series stand in a scrape, by the labels that say whose they are."""

    exposed: dict[Labels, list[Cell]] = field(default_factory=dict)
    accepted: dict[Labels, list[Cell]] = field(default_factory=dict)
    routes: dict[Labels, list[Cell]] = field(default_factory=dict)
    running: tuple[str, str] | None = None
    """Version and source of the schedule that runs."""
    odd: str = ""
    """What no counter of the plugin would be labelled."""

    def owner(self, group: Labels, *, alone: bool) -> Labels | None:
        """Return the labels under which a group's counters stand, ``None`` if that is not known.

        Args:
            group: labels of the group.
            alone: it is the only one at its address, so that a missing label leaves no doubt.
        """
        owners = {*self.exposed, *self.routes}
        fitting = [labels for labels in owners if labels <= group and (alone or labels)]
        return fitting[0] if len(fitting) == 1 else None


def plugin_layout(keys: Sequence[SeriesKey], vocabulary: Vocabulary) -> PluginLayout | None:
    """Find the plugin's series in a scrape, ``None`` where there are none."""
    if not vocabulary.plugin:
        return None
    wanted = {
        name: logical
        for logical in ("exposed", "accepted", "route_accepted", "schedule_info")
        if logical in vocabulary.plugin
        for name in vocabulary.plugin[logical].names
    }
    layout = PluginLayout()
    found = False
    for place, key in enumerate(keys):
        logical = wanted.get(key.name)
        if logical is None:
            continue
        found = True
        labels = dict(key.labels)
        if logical == "schedule_info":
            layout.running = (labels.get("version", ""), labels.get("source", ""))
        else:
            _place(layout, logical, labels, place)
    return layout if found else None


def _place(layout: PluginLayout, logical: str, labels: dict[str, str], place: int) -> None:
    """Note one counter of the plugin."""
    number = "accepted" if logical == "route_accepted" else "position"
    told = labels.pop("draft_len", ""), labels.pop(number, "")
    if not all(text.isascii() and text.isdigit() and int(text) <= MAX_DRAFT_LEN for text in told):
        layout.odd = layout.odd or f"draft_len {told[0]!r}, {number} {told[1]!r}"
        return
    draft_len, counted = int(told[0]), int(told[1])
    if counted > draft_len or (number == "position" and counted == draft_len):
        layout.odd = layout.odd or f"{number} {counted} of draft_len {draft_len}"
        return
    route = labels.pop("route", "") if logical == "route_accepted" else ""
    by_owner = {"exposed": layout.exposed, "accepted": layout.accepted, "route_accepted": layout.routes}
    owner = by_owner[logical].setdefault(frozenset(labels.items()), [])
    owner.append(Cell(route, draft_len, counted, place))


@dataclass(frozen=True, slots=True)
class PluginCounts:
    """What the plugin counted in one window, or why it is not used."""

    joint: Mapping[tuple[int, int], float] = field(default_factory=dict)
    routes: Mapping[str, Joint] = field(default_factory=dict)
    """Route label, as it was told -> joint counts."""
    fault: str = ""


Told = tuple[PluginLayout, "Sequence[float]"]


def counts_between(before: Told, now: Told, owner: Labels) -> PluginCounts:
    """Return what the plugin counted between two scrapes of one process.

    A series that is new counts from zero: children of a counter appear with their first event. That
    holds only where the plugin had told others before, since all of them are new when it is loaded.
    """
    if now[0].odd:
        return PluginCounts(fault=f"a series with {now[0].odd}")
    try:
        exposed = _increments(before, now, "exposed", owner)
        accepted = _increments(before, now, "accepted", owner)
        by_route = _increments(before, now, "routes", owner)
    except ValueError as error:
        return PluginCounts(fault=str(error))
    routes: dict[str, Joint] = {}
    for (route, draft_len, number), count in by_route.items():
        if count and draft_len:
            routes.setdefault(route, {})[draft_len, number] = count
    if exposed:
        joint = _from_survivors(exposed, accepted)
        if joint is None:
            return PluginCounts(fault="more drafts accepted a position than reached it")
        return PluginCounts(joint, routes)
    total: Joint = defaultdict(float)
    for cells in routes.values():
        for cell, count in cells.items():
            total[cell] += count
    return PluginCounts(dict(total), routes)


def _increments(before: Told, now: Told, metric: str, owner: Labels) -> dict[tuple[str, int, int], float]:
    """Return the increments of one metric by its labels.

    Raises:
        ValueError: a counter fell, or is no finite number.
    """
    cells: list[Cell] = getattr(now[0], metric).get(owner, [])
    if now[0] is before[0]:
        old = {cell[:3]: before[1][cell.place] for cell in cells}
    else:
        old = {cell[:3]: before[1][cell.place] for cell in getattr(before[0], metric).get(owner, [])}
    found: dict[tuple[str, int, int], float] = {}
    for cell in cells:
        count = now[1][cell.place] - old.get(cell[:3], 0.0)
        if not 0 <= count < float("inf"):
            raise ValueError(f"a counter that moved by {count:g}")
        found[cell[:3]] = count
    return found


def _from_survivors(
    exposed: Mapping[tuple[str, int, int], float], accepted: Mapping[tuple[str, int, int], float]
) -> Joint | None:
    """Return joint counts from exposures and acceptances by draft length and position.

    Of the drafts of length d, those that accepted more than i tokens are those that accepted position i,
    so the ones that accepted exactly a are a difference of two neighbours.
    """
    joint: Joint = {}
    for draft_len in sorted({d for _, d, _ in exposed}):
        survivors = [exposed.get(("", draft_len, 0), 0.0)]
        survivors += [accepted.get(("", draft_len, i), 0.0) for i in range(draft_len)]
        survivors.append(0.0)
        for taken in range(draft_len + 1):
            count = survivors[taken] - survivors[taken + 1]
            if count < 0:
                return None
            if count:
                joint[draft_len, taken] = count
    return joint


def differs(joint: Mapping[tuple[int, int], float], counts: Counts) -> str:
    """Say how joint counts contradict the engine's own, empty where they agree."""
    drafts, draft_tokens, accepted = _totals(joint)
    batch = (counts.request_steps or 0.0) / counts.steps if counts.steps else 0.0
    slack = SLACK_STEPS * max(1.0, batch) + SLACK_SHARE * (counts.drafts or 0.0)
    longest = max((d for d, _ in joint), default=1)
    for name, told, own, room in (
        ("drafts", drafts, counts.drafts, slack),
        ("draft tokens", draft_tokens, counts.draft_tokens, slack * longest),
        ("accepted tokens", accepted, counts.accepted, slack * longest),
    ):
        if own is not None and abs(told - own) > room:
            return f"{told:g} {name}, the engine {own:g}"
    return ""


def _totals(joint: Mapping[tuple[int, int], float]) -> tuple[float, float, float]:
    """Return drafts, draft tokens and accepted tokens."""
    return (
        sum(joint.values()),
        sum(d * count for (d, _), count in joint.items()),
        sum(a * count for (_, a), count in joint.items()),
    )


def exposures(joint: Mapping[tuple[int, int], float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return drafts that reached and proposed each position, and those that accepted it."""
    longest = max((d for d, _ in joint), default=0)
    exposed, accepted = [0.0] * longest, [0.0] * longest
    for (draft_len, taken), count in joint.items():
        for i in range(min(taken + 1, draft_len)):
            exposed[i] += count
        for i in range(taken):
            accepted[i] += count
    return tuple(exposed), tuple(accepted)


def lens_told(asked: frozenset[int] | None, joint: Mapping[tuple[int, int], float]) -> frozenset[int] | None:
    """Return the draft lengths of a window whose joint counts are known.

    What was drafted, which is exact, unless one length was asked for and nothing longer was drafted: then
    shorter drafts were cut, and steps cost what the one length costs.

    Args:
        asked: what totals and table tell, ``None`` where they do not.
        joint: of the whole engine or of one route, drafts of length 0 included or not.
    """
    drafted = frozenset(draft_len for draft_len, _ in joint if draft_len)
    if asked is not None and len(asked) <= 1 and (not asked or max(drafted, default=0) <= max(asked)):
        return asked
    return drafted


def route_counts(joint: Mapping[tuple[int, int], float]) -> Counts:
    """Return the counts of one route: what follows from its joint counts, the rest untold."""
    drafts, draft_tokens, accepted = _totals(joint)
    exposed, by_position = exposures(joint)
    return Counts(
        drafts=drafts,
        draft_tokens=draft_tokens,
        accepted=accepted,
        accepted_by_position=by_position,
        exposed_by_position=exposed,
        joint=dict(joint),
    )


def route_window(
    window: Window, route: str, joint: Mapping[tuple[int, int], float], asked: frozenset[int] | None
) -> Window:
    """Return one route's part of a window; ``asked`` as in :func:`lens_told`."""
    return replace(window, route=route, counts=route_counts(joint), draft_lens=lens_told(asked, joint))


@dataclass(slots=True)
class Routes:
    """The routes of a pool, no more than ``most``: first come, first served."""

    most: int = MAX_ROUTES
    seen: dict[str, float] = field(default_factory=dict)
    """Route -> unix seconds at which it was last counted."""
    turned_away: float = 0.0
    """Unix seconds at which a route was last counted under "other", 0 if none was."""

    def name(self, label: str, at: float) -> str:
        """Return the name under which a route is counted: without control characters, bounded."""
        name = _UNPRINTABLE.sub(" ", label).strip()[:MAX_ROUTE_LENGTH].rstrip()
        if not name or name in (POOLED_ROUTE, OTHER_ROUTES):
            return OTHER_ROUTES
        if name not in self.seen and len(self.seen) >= self.most:
            self.turned_away = at
            return OTHER_ROUTES
        self.seen[name] = at
        return name

    def merge(self, routes: Mapping[str, Joint], at: float) -> dict[str, Joint]:
        """Return joint counts under the names of the routes, the rest added up."""
        merged: dict[str, Joint] = {}
        for label in sorted(routes):
            into = merged.setdefault(self.name(label, at), {})
            for cell, count in routes[label].items():
                into[cell] = into.get(cell, 0.0) + count
        return merged

    def forget(self, before: float) -> None:
        """Free the places of routes that were not counted since."""
        self.seen = {name: at for name, at in self.seen.items() if at >= before}
