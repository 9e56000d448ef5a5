"""Raw windows -> states: which windows are evidence about one batch size and one draft length.

The first rule that speaks decides, worst first: impossible numbers (``suspect``), evidence that is
not whole (``partial``), nothing done (``idle``), batch or draft length in motion (``transition``).
Rules that compare neighbours look only at windows that touch and were busy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from tuner.fleet import SHORT_DRAFT_TOKENS, WindowState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.fleet import Schedule
    from tuner.observe.evidence import RawWindow

Verdict = tuple[WindowState, str]
MIX = -1
"""Draft length of a window in which not all request steps drafted the same."""

PACE = 0.12
"""How far the mean inter-token time (weighted by batch) may be from wall time per step. Equal while
the batch stands still; a batch that varies by its own third within the window moves it by 0.1."""
JUMP_FLOOR = 0.12
"""Log-change of the batch below which two windows count as one load: it moves a step time by less
than that, which is the noise between measurements of one cell on a shared machine."""
JUMP_CEILING = math.log(2.0)
"""A doubled batch is another row of any schedule in use, however restless the traffic."""
JUMP_SIGMAS = 4.0
"""A jump stands out of the usual change between windows: 1 in 16 000 by chance."""
QUARTILE_OF_NORMAL = 0.3186
"""Lower quartile of |x| for a standard normal: the spread is read there, since in a recording with
few windows per load level most changes *are* jumps, and a median would call them usual."""
ENOUGH_CHANGES = 8
"""Changes from which the usual one is known; before that the floor is used."""
IDENTITY = 0.1
"""Share by which tokens may miss steps plus accepted: stops cut 1-7 % off, aborted outputs are empty."""
OFTEN_EMPTY = 3.0
"""Requests per step below which arrivals at random leave the engine empty now and then: e^-3 = 5 %."""
LOW_SIDE, HIGH_SIDE = 1 / 3, 2 / 3
"""A boundary gauge in the outer thirds of a jump says on which side it happened; between, both."""


@dataclass(slots=True)
class Judged:
    """A raw window with what was concluded about it."""

    raw: RawWindow
    state: WindowState = WindowState.GOOD
    reason: str = ""
    draft_len: int | None = None
    """The one K of all drafts, 0 without drafts, ``MIX``, or ``None`` where unknown."""
    before: Judged | None = field(default=None, repr=False)
    """Busy neighbour that ends where this one starts."""
    after: Judged | None = field(default=None, repr=False)
    usable: bool = field(init=False, default=False)
    """Whether it may serve as a neighbour, whatever its neighbours say of it."""


def judge(
    windows: Sequence[RawWindow], schedule: Schedule | None = None, *, optional: bool = False
) -> list[Judged]:
    """Give every window of one engine a state and, unless good, a reason.

    Args:
        windows: raw windows of one engine in the order of time.
        schedule: the table known to have run, if any: then a mix of draft lengths is its doing.
        optional: the drafter may propose nothing, so that steps without a draft are no other length.
    """
    judged = [look_at(window, optional=optional) for window in windows]
    changes = [change for pair in pairwise(judged) if (change := link(*pair)) is not None]
    limit = jump_limit(changes)
    for one in judged:
        one.state, one.reason = conclude(one, limit, schedule)
    return judged


def look_at(window: RawWindow, *, optional: bool = False) -> Judged:
    """Judge a window by itself."""
    one = Judged(window, draft_len=pure_draft_len(window, optional=optional))
    verdict = _alone(window)
    if verdict is not None:
        one.state, one.reason = verdict
    one.usable = one.state is WindowState.GOOD and bool(window.occupancy)
    return one


def link(first: Judged, second: Judged) -> float | None:
    """Make neighbours of two windows that touch and were busy; return how far the batch moved, as |log|."""
    if first.raw.end != second.raw.start or not first.usable or not second.usable:
        return None
    first.after, second.before = second, first
    return abs(_change(first, second))


def conclude(one: Judged, limit: float, schedule: Schedule | None = None) -> Verdict:
    """Return the state of a window and its reason, its neighbours being known.

    Args:
        one: a window that was looked at and linked to the one before and the one after.
        limit: log-change of the batch that is not usual any more, by :func:`jump_limit`.
        schedule: as in :func:`judge`.
    """
    if one.state is not WindowState.GOOD:
        return one.state, one.reason
    reason = _moved(one, limit) or _edge_of_load(one) or _draft_len_changed(one, schedule)
    verdict = (WindowState.TRANSITION, reason) if reason else _out_of_pace(one.raw)
    return verdict or (WindowState.GOOD, "")


def pure_draft_len(window: RawWindow, *, optional: bool = False) -> int | None:
    """Return the one draft length of all drafts of a window.

    K is pure when the draft tokens are K per draft, or fewer by no more than ``SHORT_DRAFT_TOKENS``,
    nothing was accepted at K or later, and every request step drafted, but for the one engine step that
    may be counted and not delivered. The last is not asked of an ``optional`` drafter.
    """
    counts = window.counts
    drafts, tokens, steps = counts.drafts, counts.draft_tokens, counts.request_steps
    if drafts is None or tokens is None or steps is None:
        return None
    if drafts == 0:
        return 0
    draft_len = math.ceil(tokens / drafts)
    late = counts.accepted_by_position[draft_len:]
    one_step = math.ceil(steps / counts.steps) if counts.steps else 0
    silent = abs(steps - drafts) > one_step and not optional
    if draft_len - tokens / drafts > SHORT_DRAFT_TOKENS or draft_len < 1 or any(late) or silent:
        return MIX
    return draft_len


def _alone(window: RawWindow) -> Verdict | None:
    """Judge a window by itself."""
    for rule in (_impossible, _flat, _incomplete, _inconsistent):
        verdict = rule(window)
        if verdict is not None:
            return verdict
    return None


def _impossible(window: RawWindow) -> Verdict | None:
    """Values that no counter can have."""
    for key, why in window.interval.bad.items():
        return WindowState.SUSPECT, f"{key.name} {why}"
    for why in window.unreadable:
        return WindowState.SUSPECT, why
    return None


def _flat(window: RawWindow) -> Verdict | None:
    """Nothing was done, whatever a gauge that nobody updates may say."""
    counts, (first, last) = window.counts, window.running
    if window.flat and window.interval.event == "none":
        if first and last:
            return WindowState.SUSPECT, f"no token while {last:g} requests are reported as running"
        return WindowState.IDLE, "no tokens"
    if counts.request_steps == 0 and counts.steps and window.interval.event == "none":
        return WindowState.IDLE, "nothing was decoded"
    if counts.emitted is None and counts.steps is None and last == 0:
        return WindowState.IDLE, "no requests and no counters yet"
    return None


def _incomplete(window: RawWindow) -> Verdict | None:
    """Evidence that is not whole."""
    interval = window.interval
    reason = ""
    if interval.event == "restart":
        reason = "engine restarted"
    elif interval.event == "backwards":
        reason = "counters went back without a restart"
    elif interval.event == "interleave" or window.older_start:
        reason = "an older reading lies between two newer ones"
    elif interval.retyped:
        reason = f"{interval.retyped[0].name} changed its type"
    elif interval.born:
        reason = f"{interval.born[0].name} appeared"
    elif {"drafts", "draft_tokens", "accepted"} <= set(window.missing):
        reason = "not observed: nothing is told about speculation"
    elif window.missing:
        reason = f"not told: {', '.join(window.missing)}"
    elif window.gap:
        reason = f"scrape gap: {window.seconds:.0f} s between scrapes"
    elif window.counts.preemptions:
        reason = f"{window.counts.preemptions:g} preemptions"
    return (WindowState.PARTIAL, reason) if reason else None


def _inconsistent(window: RawWindow) -> Verdict | None:
    """Counters that contradict each other."""
    counts = window.counts
    drafts, tokens, accepted = counts.drafts or 0.0, counts.draft_tokens or 0.0, counts.accepted or 0.0
    positions = counts.accepted_by_position
    one_step = math.ceil((counts.request_steps or 0.0) / counts.steps) if counts.steps else 0
    reason = ""
    if accepted > tokens or drafts > tokens:
        reason = f"{accepted:g} accepted and {drafts:g} drafts of {tokens:g} draft tokens"
    elif sum(positions) != accepted:
        reason = f"inconsistent: {sum(positions):g} accepted by position, {accepted:g} in all"
    elif positions[0] > drafts or any(b > a for a, b in pairwise(positions)):
        reason = "more drafts accepted a later position than an earlier one"
    elif drafts > (counts.request_steps or 0.0) + one_step:
        reason = f"{drafts:g} drafts in {counts.request_steps:g} request steps"
    else:
        reason = _unlikely_tokens(window)
    return (WindowState.SUSPECT, reason) if reason else None


def _unlikely_tokens(window: RawWindow) -> str:
    """Hold the tokens against the steps: each request step emits one and its accepted drafts."""
    counts = window.counts
    steps = counts.request_steps or 0.0
    later = (counts.emitted or 0.0) - (counts.first_tokens or 0.0)
    if not counts.steps:
        return f"{counts.emitted:g} tokens without an engine step"
    slack = IDENTITY * (steps + (counts.accepted or 0.0)) + steps / counts.steps
    if not steps - slack <= later <= steps + (counts.accepted or 0.0) + slack:
        return f"{later:g} tokens after the first ones in {steps:g} request steps"
    return ""


def _change(first: Judged, second: Judged) -> float:
    """Return the log-change of the batch from one neighbour to the next."""
    return math.log((second.raw.occupancy or 1.0) / (first.raw.occupancy or 1.0))


def _moved(one: Judged, limit: float) -> str:
    """Say that the batch moved inside a window, by comparing it with its neighbours."""
    if one.after is not None and (reason := _jump(one, one.after, limit, -1)):
        return reason
    return _jump(one.before, one, limit, 0) if one.before is not None else ""


def _jump(first: Judged, second: Judged, limit: float, side: int) -> str:
    """Say that the batch jumped from one neighbour to the next on this side of the scrape between them."""
    change = _change(first, second)
    low, high = first.raw.occupancy or 1.0, second.raw.occupancy or 1.0
    if abs(change) <= limit or side not in _sides(second.raw.running[0], low, change):
        return ""
    return f"load changed: {low:.1f} to {high:.1f} requests per step"


def jump_limit(changes: Sequence[float]) -> float:
    """Return the log-change of the batch that is no longer usual for this engine.

    Args:
        changes: |log-change| from neighbour to neighbour.
    """
    if len(changes) < ENOUGH_CHANGES:
        return JUMP_FLOOR
    quartile = sorted(changes)[len(changes) // 4]
    return min(JUMP_CEILING, max(JUMP_FLOOR, JUMP_SIGMAS * quartile / QUARTILE_OF_NORMAL))


def _sides(gauge: float | None, occupancy: float, change: float) -> tuple[int, ...]:
    """Say in which window of a pair the jump happened: 0 the later, -1 the earlier one."""
    if gauge is None:
        return (-1, 0)
    done = math.log(max(gauge, 0.5) / occupancy) / change
    return (0,) if done < LOW_SIDE else (-1,) if done > HIGH_SIDE else (-1, 0)


def _edge_of_load(one: Judged) -> str:
    """Find windows in which the load began or ended."""
    first, last = one.raw.running
    if one.before is None and first == 0:
        return "load began inside the window"
    if one.after is None and last == 0:
        return "load ended inside the window"
    return ""


def _draft_len_changed(one: Judged, schedule: Schedule | None) -> str:
    """Find windows at or around a change of the draft length."""
    if schedule is not None or one.draft_len is None:
        return ""
    before = one.before.draft_len if one.before is not None else None
    after = one.after.draft_len if one.after is not None else None
    if one.draft_len != MIX:
        held_it = one.before is not None and _is_short(one.before) and not _is_short(one)
        if before not in (None, MIX, one.draft_len) and not held_it:
            return f"draft length changed from {before} to {one.draft_len}"
        if after not in (None, MIX, one.draft_len) and _is_short(one):
            return f"draft length changed inside, or at the end, to {after}"
        return ""
    pure = [k for k in (before, after) if k not in (None, MIX)]
    if pure and before != after:
        return f"draft length changed inside: {_named(before)} before, {_named(after)} after"
    return ""


def _is_short(one: Judged) -> bool:
    """Tell whether some drafts of a window were shorter than its one draft length."""
    counts = one.raw.counts
    return (counts.draft_tokens or 0.0) < (one.draft_len or 0) * (counts.drafts or 0.0)


def _named(draft_len: int | None) -> str:
    """Return a draft length for people."""
    return "unknown" if draft_len is None else "a mix" if draft_len == MIX else str(draft_len)


def _out_of_pace(window: RawWindow) -> Verdict | None:
    """Compare the mean inter-token time, weighted by batch, with wall time per step.

    The ends of a window cut a step each, so its count of n steps is sure to 1 in n only.
    """
    counts = window.counts
    if window.steps_estimated or not counts.steps or not counts.request_steps:
        return None
    pace = (counts.request_step_seconds or 0.0) / counts.request_steps * counts.steps / window.seconds
    slack = max(PACE, 1.0 / counts.steps)
    if abs(pace - 1.0) <= slack:
        return None
    reason = f"inter-token time is {pace:.2f} of wall time per step"
    if pace < 1.0 and (0 in window.running or (window.occupancy or 0.0) < OFTEN_EMPTY):
        return WindowState.IDLE, f"{reason}: the engine was idle in between"
    return WindowState.TRANSITION, f"{reason}: the batch was in motion"
