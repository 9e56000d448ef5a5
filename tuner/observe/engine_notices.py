"""What the windows of one engine showed: restarts, missing metrics, units, stuck gauges, ignored tables."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.fleet import Finding, WindowState
from tuner.observe.tables import describe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tuner.fleet import Fingerprint, Schedule, Severity
    from tuner.observe.evidence import RawWindow
    from tuner.observe.snapshots import Group
    from tuner.observe.states import Judged
    from tuner.observe.tables import Held
    from tuner.observe.units import StepUnits
    from tuner.vocabulary import Vocabulary

SPECULATION = ("drafts", "draft_tokens", "accepted", "accepted_by_position")
STUCK_WINDOWS = 4
"""Windows without a token at a running gauge above 0 (a minute at 15 s): no prefill takes as long."""
SURE_WINDOWS = 3
"""Windows with traffic after which a missing family is missing, not late: families appear on first use."""
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
    held: Held | None = None
    """What speaks against the schedule, where one was named."""

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


def _events(view: EngineView) -> Iterator[Finding]:
    """Restarts, and counters that two processes tell in turn."""
    texts: tuple[tuple[str, str, Severity, str], ...] = (
        (
            "restart",
            "engine_restart",
            "info",
            "the engine restarted: counted from zero again; a table that was set while it ran is lost",
        ),
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
    told = describe(view.held) if view.held is not None else None
    if told is not None:
        code, message, evidence = told
        yield view.finding(code, "critical", message, **evidence)


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
