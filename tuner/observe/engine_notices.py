"""What the windows of one engine showed: restarts, missing metrics, units, stuck gauges, ignored tables."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.fleet import Finding, WindowState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tuner.fleet import Fingerprint, Schedule, Severity, Vocabulary
    from tuner.observe.evidence import RawWindow
    from tuner.observe.snapshots import Group
    from tuner.observe.states import Judged
    from tuner.observe.units import StepUnits

SPECULATION = ("drafts", "draft_tokens", "accepted", "accepted_by_position")
STUCK_WINDOWS = 4
"""Windows without a token at a running gauge above 0 (a minute at 15 s): no prefill takes as long."""
SURE_WINDOWS = 3
"""Windows with traffic after which a missing family is missing, not late: families appear on first use."""
CONFIRMING_WINDOWS = 2
"""Windows that must contradict the schedule: one may hold the change to it."""
SPREAD_SIGMAS = 3.0
"""Requests that come and go at random spread the batch by its square root; a window of a hundred steps
sees three of those."""
FEW_STEPS = 0.5
"""Draft tokens per draft by which a few steps in a row beyond those may move the mean."""
SHOWN = 5

OPTIONAL_PROPOSALS = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Methods that may propose less than they were asked for. Some builds fill the rest with placeholders
that count as drafted, so their draft lengths are never taken from totals."""


@dataclass(frozen=True, slots=True)
class EngineView:
    """One engine as it was observed, and what was known about it beforehand."""

    group: Group
    judged: Sequence[Judged]
    units: StepUnits
    subject: Mapping[str, str]
    vocabulary: Vocabulary
    fingerprint: Fingerprint
    schedule: Schedule | None

    @property
    def working(self) -> list[RawWindow]:
        """Return the windows in which tokens were emitted."""
        return [one.raw for one in self.judged if one.raw.counts.emitted]

    def finding(self, code: str, severity: Severity, message: str, **evidence: object) -> Finding:
        """Return a finding about this engine."""
        return Finding(code, severity, message, self.subject, evidence)


def of_engine(view: EngineView) -> list[Finding]:
    """Report what was noticed about one engine."""
    rules = (_events, _values, _series, _missing, _speculation, _schedule, _gauges, _units, _proposals)
    return [finding for rule in rules for finding in rule(view)]


def visited_draft_lens(window: RawWindow, schedule: Schedule) -> frozenset[int]:
    """Return the draft lengths of the rows whose batch sizes a window may have visited.

    Bounded by three times the square root of the batch around it and by what the gauges say. A row too
    many only costs information, one too few would be a bias.
    """
    centre = window.occupancy or 1.0
    spread = SPREAD_SIGMAS * math.sqrt(centre)
    ends = [gauge for gauge in window.running if gauge]
    low = max(1, math.floor(min([centre - spread, *ends])))
    high = min(schedule.max_batch, math.ceil(max([centre + spread, *ends])))
    low = min(low, schedule.max_batch)
    return frozenset(row.draft_len for row in schedule.ranges if row.first <= high and row.last >= low)


def _events(view: EngineView) -> Iterator[Finding]:
    """Restarts, and counters that two processes tell in turn."""
    texts: tuple[tuple[str, str, Severity, str], ...] = (
        ("restart", "engine_restart", "info", "the engine restarted: counted from zero again, push again"),
        (
            "interleave",
            "counter_interleaved",
            "warning",
            "a counter fell and recovered: two readings of it are mixed, the larger one holds",
        ),
        (
            "backwards",
            "counters_went_back",
            "warning",
            "counters fell without a restart: an old body or a clock set back; these windows are left out",
        ),
        (
            "mixed",
            "sources_mixed",
            "warning",
            "two processes answer at this address in turn: give each its own address",
        ),
    )
    for event, code, severity, text in texts:
        ends = [one.raw.end for one in view.judged if one.raw.interval.event == event]
        if ends:
            yield view.finding(code, severity, text, count=len(ends), first_at=ends[0])


def _values(view: EngineView) -> Iterator[Finding]:
    """Numbers that cannot be, in counters and between them."""
    bad: Counter[str] = Counter()
    why: dict[str, str] = {}
    for one in view.judged:
        for key, text in one.raw.interval.bad.items():
            bad[key.name] += 1
            why.setdefault(key.name, text)
    if bad:
        name = bad.most_common(1)[0][0]
        yield view.finding(
            "impossible_value",
            "warning",
            f"{name} {why[name]}: these windows are left out",
            windows=sum(bad.values()),
            series=dict(bad.most_common(SHOWN)),
        )
    odd = [
        one.reason
        for one in view.judged
        if one.state is WindowState.SUSPECT and not one.raw.flat and not one.raw.interval.bad
    ]
    if odd:
        yield view.finding(
            "counters_inconsistent", "warning", f"counters contradict each other: {odd[0]}", windows=len(odd)
        )
    if view.group.bad_gauges:
        name = min(view.group.bad_gauges)
        yield view.finding(
            "impossible_gauge",
            "warning",
            f"gauge {name} was negative, infinite or NaN: read as unknown",
            gauges=dict(view.group.bad_gauges),
        )


def _series(view: EngineView) -> Iterator[Finding]:
    """Series that changed their type or their name."""
    retyped = sorted({key.name for one in view.judged for key in one.raw.interval.retyped})
    if retyped:
        yield view.finding(
            "type_changed",
            "warning",
            f"{retyped[0]} changed its type: counted anew from there",
            series=retyped[:SHOWN],
        )
    for logical, used in view.group.used.items():
        names = list(dict.fromkeys(name for name in used if name))
        if len(names) > 1:
            yield view.finding(
                "alias_changed",
                "info",
                f"{logical} moved from {names[0]} to {names[1]}: counted anew",
                metric=logical,
                names=names,
            )


def _missing(view: EngineView) -> Iterator[Finding]:
    """Metrics that a live engine does not have under any name."""
    if len(view.working) < SURE_WINDOWS:
        return
    absent = sorted(name for name in view.vocabulary.required if name not in view.group.used)
    if set(SPECULATION) <= set(absent):
        yield view.finding(
            "speculation_not_observed",
            "warning",
            "requests are served but nothing is told about speculation: it is not enabled, or this build "
            "has no such metrics",
            windows=len(view.working),
        )
        absent = [name for name in absent if name not in SPECULATION]
    for name in absent:
        tried = view.vocabulary.counters[name].names
        yield view.finding(
            "metric_missing",
            "warning",
            f"{name} is not told; tried {', '.join(tried)}",
            metric=name,
            tried=list(tried),
        )


def _speculation(view: EngineView) -> Iterator[Finding]:
    """Engines that could draft and never do."""
    told = [window for window in view.working if window.counts.drafts is not None]
    if len(told) < SURE_WINDOWS or any(window.counts.drafts for window in told) or view.schedule is not None:
        return
    yield view.finding(
        "speculation_inactive",
        "info",
        "speculation is there but drafted nothing throughout: fine if the table says 0",
        windows=len(told),
        emitted=sum(window.counts.emitted or 0.0 for window in told),
    )


def _schedule(view: EngineView) -> Iterator[Finding]:
    """Engines that do not draft what their table says."""
    if view.schedule is None:
        return
    ignored: list[tuple[float, list[int]]] = []
    inactive: list[list[int]] = []
    for one in view.judged:
        window, counts = one.raw, one.raw.counts
        if one.state is not WindowState.GOOD or counts.drafts is None or counts.draft_tokens is None:
            continue
        expected = sorted(visited_draft_lens(window, view.schedule))
        if not counts.drafts:
            if expected[0] > 0:
                inactive.append(expected)
            continue
        drafted = counts.draft_tokens / counts.drafts
        within = max(1, expected[0]) - FEW_STEPS <= drafted <= expected[-1] + FEW_STEPS
        if not within or not _possible(one, view.schedule):
            ignored.append((drafted, expected))
    if len(ignored) >= CONFIRMING_WINDOWS:
        drafted, expected = ignored[-1]
        yield view.finding(
            "ignored",
            "critical",
            f"the table asks for {' or '.join(map(str, expected))} draft tokens, {drafted:.2f} are drafted: "
            "the engine ignores it",
            drafted=drafted,
            expected=expected,
            windows=len(ignored),
        )
    if len(inactive) >= CONFIRMING_WINDOWS:
        yield view.finding(
            "speculation_inactive",
            "critical",
            f"the table asks for {' or '.join(map(str, inactive[-1]))} draft tokens, none are drafted",
            expected=inactive[-1],
            windows=len(inactive),
        )


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


def _gauges(view: EngineView) -> Iterator[Finding]:
    """Gauges that nobody updates."""
    longest = run = 0
    value: float | None = None
    for one in view.judged:
        stuck = one.raw.flat and one.state is WindowState.SUSPECT
        run = run + 1 if stuck else 0
        if run > longest:
            longest, value = run, one.raw.running[1]
    if longest >= STUCK_WINDOWS:
        yield view.finding(
            "stuck_or_stale_gauge",
            "warning",
            f"{value:g} requests are reported as running, but no token came in {longest} windows: "
            "the batch is unknown",
            running=value,
            windows=longest,
        )


def _units(view: EngineView) -> Iterator[Finding]:
    """Builds whose step counters mean something else."""
    if view.units.latency == "token":
        yield view.finding(
            "latency_per_token",
            "info",
            "this build counts inter-token latency per token, not per output: request steps are taken from "
            "drafts and tokens",
        )
    if view.units.latency == "unknown":
        yield view.finding(
            "latency_unit_unknown",
            "warning",
            "inter-token latency is counted neither per output nor per token: no step can be timed",
        )
    if view.units.steps_inflated_by > 1:
        yield view.finding(
            "steps_inflated",
            "warning",
            "steps are counted more than once (several API servers share the engine): batch and steps are "
            "taken from inter-token seconds per wall second",
            factor=view.units.steps_inflated_by,
        )
    if view.units.steps_look_inflated_by > 1:
        yield view.finding(
            "steps_maybe_inflated",
            "warning",
            f"requests wait {view.units.steps_look_inflated_by:.2f} of the wall time per step: several API "
            "servers count steps twice, or the batch swings within windows; num_requests_running at every "
            "scrape under steady load would tell",
            factor=view.units.steps_look_inflated_by,
        )


def _proposals(view: EngineView) -> Iterator[Finding]:
    """Drafters that propose less than they are asked for."""
    if view.fingerprint.method in OPTIONAL_PROPOSALS:
        yield view.finding(
            "optional_proposals",
            "info",
            f"{view.fingerprint.method} proposes only what it finds, and placeholders may count as drafted: "
            "tokens per step hold, acceptance by position does not",
        )
