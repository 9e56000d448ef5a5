"""A table that is said to have run, held against what was drafted.

Where the table came from is not known here: from an operator who misremembers, from a push, or read
back from the engine. So a contradiction has two explanations, and the table is used in neither.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.fleet import SHORT_DRAFT_TOKENS, WindowState
from tuner.observe.wording import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.fleet import Schedule, ScheduleRange
    from tuner.observe.evidence import RawWindow
    from tuner.observe.states import Judged

CONFIRMING_WINDOWS = 2
"""Windows that must contradict the schedule: one may hold the change to it."""
SPREAD_SIGMAS = 3.0
"""Requests that come and go at random spread the batch by its square root; a window of a hundred steps
sees three of those."""
FEW_STEPS = 0.5
"""Draft tokens per draft by which a few steps in a row beyond those may move the mean."""
OTHERWISE = "either another table ran than the one that was named, or the engine ignores it"
OFF = "either another table ran than the one that was named, or speculation is off"
NOT_USED = "the table is not used to read any window"


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A window that did not draft what the table asks for."""

    index: int
    drafted: float
    expected: tuple[int, ...]
    """Draft lengths of the rows that the batch can have visited, rising."""


@dataclass(frozen=True, slots=True)
class Held:
    """What speaks against a table."""

    other: tuple[Contradiction, ...] = ()
    """Windows that drafted something else."""
    nothing: tuple[Contradiction, ...] = ()
    """Windows that drafted nothing."""

    def with_one(self, against: Contradiction) -> Held:
        """Return this with one more window."""
        if against.drafted:
            return Held((*self.other, against), self.nothing)
        return Held(self.other, (*self.nothing, against))

    @property
    def refuted(self) -> bool:
        """Tell whether enough windows of one kind contradict the table to trust it nowhere."""
        return max(len(self.other), len(self.nothing)) >= CONFIRMING_WINDOWS

    @property
    def windows(self) -> frozenset[int]:
        """Return the places of the windows that contradict the table."""
        return frozenset(one.index for one in (*self.other, *self.nothing))


def visited_draft_lens(window: RawWindow, schedule: Schedule) -> frozenset[int]:
    """Return the draft lengths of the rows that a window visited, as far as its batch and its drafts tell.

    They are the rows around its batch, and those up to the nearest that drafts as much as was drafted: the
    batch may peak within a window further than at its ends, and is looked up with requests in prefill. On a
    simulated day 1 window in 100 does, with up to 15 % of its drafts there. A row too many only costs
    information, one too few would be a bias.
    """
    return frozenset(row.draft_len for row in _explained(window, schedule))


def _around(window: RawWindow, schedule: Schedule) -> tuple[int, int]:
    """Return the smallest and the largest batch that a window may have visited by its mean and its gauges.

    Bounded by three times the square root of the batch around it and by what the gauges say.
    """
    centre = window.occupancy or 1.0
    spread = SPREAD_SIGMAS * math.sqrt(centre)
    ends = [gauge for gauge in window.running if gauge]
    low = max(1, math.floor(min([centre - spread, *ends])))
    high = min(schedule.max_batch, math.ceil(max([centre + spread, *ends])))
    return min(low, schedule.max_batch), high


def _rows(schedule: Schedule, low: int, high: int) -> tuple[ScheduleRange, ...]:
    """Return the rows that hold a batch from ``low`` to ``high``."""
    return tuple(row for row in schedule.ranges if row.first <= high and row.last >= low)


def _explained(window: RawWindow, schedule: Schedule) -> tuple[ScheduleRange, ...]:
    """Return the rows around the batch, and up to the nearest one that the drafts cannot do without."""
    low, high = _around(window, schedule)
    rows = _rows(schedule, low, high)
    counts = window.counts
    if not counts.drafts or counts.draft_tokens is None:
        return rows
    mean = counts.draft_tokens / counts.drafts
    lens = [row.draft_len for row in rows if row.draft_len] or [0]
    reached = max((i + 1 for i, count in enumerate(counts.accepted_by_position) if count), default=1)
    needed = max(reached, math.ceil(mean))
    wanted: list[ScheduleRange] = []
    if needed > max(lens):
        wanted = [row for row in schedule.ranges if row.draft_len >= needed]
    elif len(set(lens)) > 1 and min(lens) - mean > SHORT_DRAFT_TOKENS:
        wanted = [row for row in schedule.ranges if 0 < row.draft_len <= mean]
    if not wanted:
        return rows
    nearest = min(wanted, key=lambda row: max(low - row.last, row.first - high))
    return _rows(schedule, min(low, nearest.last), max(high, nearest.first))


def hold_against(judged: Sequence[Judged], schedule: Schedule, *, optional: bool = False) -> Held:
    """Compare what good windows drafted with what the rows they can have visited ask for.

    Fewer tokens than the shortest row asks for contradict it only if no draft got as far as its end: a
    grammar cuts drafts short, and an ``optional`` drafter proposes what it finds, nothing included.
    """
    held = Held()
    for index, one in enumerate(judged):
        against = contradiction(index, one, schedule, optional=optional)
        if against is not None:
            held = held.with_one(against)
    return held


def contradiction(
    index: int, one: Judged, schedule: Schedule, *, optional: bool = False
) -> Contradiction | None:
    """Return how one window contradicts a table, ``None`` if it does not or is not good."""
    counts = one.raw.counts
    if one.state is not WindowState.GOOD or counts.drafts is None or counts.draft_tokens is None:
        return None
    rows = _rows(schedule, *_around(one.raw, schedule))
    expected = tuple(sorted({row.draft_len for row in rows}))
    if not counts.drafts:
        return Contradiction(index, 0.0, expected) if expected[0] > 0 and not optional else None
    drafted = counts.draft_tokens / counts.drafts
    shortest = max(1, expected[0])
    enough = drafted >= shortest - FEW_STEPS or optional or any(counts.accepted_by_position[shortest - 1 :])
    # Where no row drafts, steps without a draft are as asked for, and count beside the few that did.
    steps = counts.drafts if expected[-1] else max(counts.drafts, counts.request_steps or 0.0)
    within = enough and counts.draft_tokens / steps <= expected[-1] + FEW_STEPS
    return None if within and _possible(one, schedule) else Contradiction(index, drafted, expected)


def describe(held: Held) -> tuple[str, str, dict[str, object]] | None:
    """Return code, message and evidence of a refuted table, ``None`` where it stands.

    One finding, whatever the kinds of windows: "drafts too many" beside "drafts nothing" would be two
    diagnoses of one mistake.
    """
    if not held.refuted:
        return None
    evidence: dict[str, object] = {
        "windows": len(held.other) or len(held.nothing),
        "windows_without_drafts": len(held.nothing),
    }
    if len(held.other) >= CONFIRMING_WINDOWS:
        last = held.other[-1]
        beside = f", and {counted(len(held.nothing), 'window')} drafted nothing" if held.nothing else ""
        message = (
            f"{counted(len(held.other), 'window')} drafted otherwise than the table asks, the last "
            f"{last.drafted:.2f} tokens in place of {_listed(last.expected)}{beside}: {OTHERWISE}; {NOT_USED}"
        )
        return "ignored", message, {**evidence, "drafted": last.drafted, "expected": list(last.expected)}
    last = held.nothing[-1]
    message = (
        f"the table asks for {_listed(last.expected)} draft tokens, none are drafted in "
        f"{counted(len(held.nothing), 'window')}: {OFF}; {NOT_USED}"
    )
    return "speculation_inactive", message, {**evidence, "expected": list(last.expected)}


def _listed(expected: Sequence[int]) -> str:
    return " or ".join(map(str, expected))


def _possible(one: Judged, schedule: Schedule) -> bool:
    """Tell whether one draft length throughout agrees with the mean batch.

    If every step drafted K, every step's batch lay in a row with that K, and so did, between the
    smallest and the largest of them, the mean. One request of slack: the table counts requests in
    chunked prefill, which the mean does not.
    """
    draft_len, batch = one.draft_len, one.raw.occupancy
    if draft_len is None or draft_len < 0 or batch is None:
        return True
    rows = [row for row in schedule.ranges if row.draft_len == draft_len]
    if not rows:
        return False
    last = math.inf if rows[-1].last == schedule.max_batch else rows[-1].last
    highest = max(batch, *(gauge or 0.0 for gauge in one.raw.running))
    return rows[0].first - 1 <= highest and batch - 1 <= last
