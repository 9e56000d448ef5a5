"""Scrapes -> windows with state and reason, and what was noticed on the way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from tuner._exceptions import InputError
from tuner.fleet import SHORT_DRAFT_TOKENS, Fingerprint, Window, WindowState
from tuner.observe.draft_notices import drafts_are_cut, of_drafts
from tuner.observe.engine_notices import OPTIONAL_PROPOSALS, EngineView, of_engine
from tuner.observe.evidence import raw_windows
from tuner.observe.layouts import label_of
from tuner.observe.notices import of_scrapes, of_strangers
from tuner.observe.snapshots import build_groups
from tuner.observe.states import MIX, Judged, judge
from tuner.observe.tables import hold_against, visited_draft_lens
from tuner.observe.units import apply_units, detect_units

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tuner.fleet import Finding, Schedule
    from tuner.observe.exposition import Scrape, TimedScrape
    from tuner.observe.layouts import GroupKey
    from tuner.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class WindowSet:
    """The windows of all engines that one source told about, by engine and time."""

    windows: tuple[Window, ...]
    findings: tuple[Finding, ...]

    @property
    def good(self) -> tuple[Window, ...]:
        """Return the windows that may be fitted."""
        return tuple(window for window in self.windows if window.state is WindowState.GOOD)


def build_windows(
    scrapes: Iterable[TimedScrape],
    vocabulary: Vocabulary,
    *,
    pool: str | None = None,
    engine: str = "",
    fingerprint: Fingerprint | None = None,
    schedule: Schedule | None = None,
) -> WindowSet:
    """Turn the scrapes of one address into windows.

    Args:
        scrapes: outcomes of scrapes in any order of time; failed ones widen the window around them.
        vocabulary: the engine's names.
        pool: pool of every window; the model's name where not given.
        engine: name of the address, put before the rank in the windows' engine.
        fingerprint: what is known about the engine beyond its metrics.
        schedule: the table said to have run throughout, if any; used only where what was drafted agrees.

    Returns:
        Windows of every rank and model at this address. Never raises for what a scrape holds.
    """
    outcomes = sorted(scrapes, key=lambda scrape: scrape.time)
    findings: list[Finding] = list(of_scrapes(outcomes))
    timeline: list[tuple[float, Scrape]] = []
    for time, result in outcomes:
        if not isinstance(result, InputError) and (not timeline or time > timeline[-1][0]):
            timeline.append((time, result))
    times = [time for time, _ in timeline]
    known = fingerprint or Fingerprint(engine=vocabulary.engine)
    windows: list[Window] = []
    groups = build_groups([scrape for _, scrape in timeline], vocabulary)
    if timeline and not groups:
        findings.append(of_strangers([scrape for _, scrape in timeline], vocabulary))
    for group in groups:
        raw = raw_windows(times, group, vocabulary)
        units = detect_units(raw, single_process=group.single_process)
        for window in raw:
            apply_units(window, units)
        optional = known.method in OPTIONAL_PROPOSALS
        judged = judge(raw, schedule, optional=optional)
        held = hold_against(judged, schedule, optional=optional) if schedule is not None else None
        trusted = None if held is not None and held.refuted else schedule
        if trusted is not schedule:
            judged = judge(raw, optional=optional)
        cut = trusted is not None and drafts_are_cut(judged, trusted)
        subject = subject_of(group.key, vocabulary, pool, engine)
        restarts = accumulate(one.raw.interval.event == "restart" for one in judged)
        tables = [None if held is not None and i in held.windows else trusted for i in range(len(judged))]
        ours = complete(known, subject["model"], group.kv_dtype)
        windows.extend(
            freeze_window(one, subject, ours, draft_lens_of(one, table, cut=cut), restarts=seen)
            for one, seen, table in zip(judged, restarts, tables, strict=True)
        )
        view = EngineView(group, judged, units, subject, vocabulary, known, schedule, held)
        findings.extend((*of_engine(view), *of_drafts(view, trusted)))
    return WindowSet(tuple(windows), tuple(findings))


def subject_of(key: GroupKey, vocabulary: Vocabulary, pool: str | None, engine: str) -> dict[str, str]:
    """Name pool, engine and model of a group."""
    model = label_of(key, vocabulary.model_label)
    rank = label_of(key, vocabulary.rank_label)
    name = "/".join(part for part in (engine, rank) if part)
    return {"pool": pool or model or vocabulary.engine, "engine": name, "model": model}


def complete(known: Fingerprint, model: str, kv_dtype: str) -> Fingerprint:
    """Return a fingerprint with what the engine's own labels tell, where nobody said otherwise."""
    return replace(known, model=known.model or model, kv_cache_dtype=known.kv_cache_dtype or kv_dtype)


def freeze_window(
    one: Judged,
    subject: Mapping[str, str],
    fingerprint: Fingerprint,
    draft_lens: frozenset[int] | None,
    *,
    restarts: int,
) -> Window:
    """Freeze one judged window."""
    raw = one.raw
    gauges = raw.gauges
    if raw.flat and one.state is WindowState.SUSPECT:
        gauges = replace(gauges, running=None)
    return Window(
        pool=subject["pool"],
        engine=subject["engine"],
        start=raw.start,
        end=raw.end,
        state=one.state,
        reason=one.reason,
        counts=raw.counts,
        gauges=gauges,
        fingerprint=fingerprint,
        draft_lens=draft_lens,
        restarts=restarts,
    )


def draft_lens_of(one: Judged, schedule: Schedule | None, *, cut: bool) -> frozenset[int] | None:
    """Return the draft lengths above 0 that ran in a window, ``None`` where they are not known.

    It is what was asked for: drafts may have been shorter where a grammar cut them or nothing more was
    found. The counts say by how much; with several rows of the table, though, not which, so that nothing
    is said where drafts are ``cut``, or shorter on average than every row.
    """
    if one.draft_len == MIX and schedule is not None:
        rows = frozenset(k for k in visited_draft_lens(one.raw, schedule) if k > 0)
        shares = len(rows) > 1 and not cut and _mean_of(one) >= min(rows) - SHORT_DRAFT_TOKENS
        return rows if len(rows) == 1 or shares else None
    if one.draft_len is None or one.draft_len == MIX:
        return None
    return frozenset({one.draft_len}) if one.draft_len else frozenset()


def _mean_of(one: Judged) -> float:
    """Return the draft tokens per draft."""
    counts = one.raw.counts
    return (counts.draft_tokens or 0.0) / counts.drafts if counts.drafts else 0.0
