"""What a scrape of the tuner shows, and what it never shows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.serve.samples import named, scrape, value
from tests.serve.worlds import CROSSOVER, HAZARDS, NOW, decision, finding, snapshot, target
from tuner.fleet import Estimate, NotEnoughData, Schedule
from tuner.serve.catalogue import CANNOT_SAY, METRICS
from tuner.serve.labels import LABELS, MAX_ENGINES, MAX_FINDINGS, MAX_ROUTES, MAX_SOURCES
from tuner.serve.metrics import TunerCollector, families_of
from tuner.serve.snapshot import PoolStatus, ScheduleStatus, Snapshot

if TYPE_CHECKING:
    from tuner.cycle import Decision

OF_THE_DESIGN = {
    "tuner_acceptance_ratio": {"pool", "route", "position"},
    "tuner_acceptance_alpha_ratio": {"pool", "route"},
    "tuner_accepted_tokens_per_step": {"pool", "route", "draft_len"},
    "tuner_crossover_tokens": {"pool"},
    "tuner_step_time_seconds": {"pool", "batch", "draft_len"},
    "tuner_goodput_tokens_per_second": {"pool", "engine"},
    "tuner_goodput_efficiency_ratio": {"pool"},
    "tuner_predicted_speedup_ratio": {"pool", "route"},
    "tuner_schedule_info": {"pool", "version", "state"},
    "tuner_schedule_draft_len": {"pool", "batch"},
    "tuner_schedule_drift": {"pool", "engine"},
    "tuner_push_total": {"pool", "result"},
    "tuner_finding_active": {"code", "severity", "pool", "route"},
    "tuner_source_up": {"source"},
    "tuner_windows_total": {"pool", "state"},
    "tuner_cycle_duration_seconds": {"stage"},
    "tuner_config_last_reload_successful": set(),
    "tuner_leader": set(),
}
"""The public contract: name and labels."""


def _changed(pool: str, **changes: object) -> Decision:
    """Return the decision with one pool changed."""
    whole = decision()
    return replace(
        whole,
        pools=tuple(replace(one, **changes) if one.pool == pool else one for one in whole.pools),  # type: ignore[arg-type]  # any field
    )


def test_every_name_of_the_contract_is_there_with_its_labels() -> None:
    """Names and labels are those that dashboards and rules are written against."""
    found = {metric.name: set(metric.labels) for metric in METRICS}
    assert {name: found.get(name) for name in OF_THE_DESIGN} == OF_THE_DESIGN


def test_the_full_fleet_has_a_sample_of_every_metric() -> None:
    """Nothing in the catalogue is a name without a source."""
    series = scrape(snapshot())
    shown = {name.removesuffix("_count") for name, _ in series} | {name for name, _ in series}
    missing = {name for metric in METRICS for name in metric.names} - shown
    assert missing == {"tuner_label_values_left_out"}


def test_estimates_carry_their_interval() -> None:
    """Beside every estimate stand its ends, around it and around the truth."""
    series = scrape(snapshot())
    for position, truth in enumerate(HAZARDS):
        where = {"pool": "chat", "route": "*", "position": str(position)}
        low, middle, high = (
            value(series, f"tuner_acceptance_ratio{end}", **where) for end in ("_low", "", "_high")
        )
        assert low is not None
        assert middle is not None
        assert high is not None
        assert low <= middle <= high
        assert middle == pytest.approx(truth, abs=0.02)
    found = value(series, "tuner_crossover_tokens", pool="chat")
    assert found == pytest.approx(CROSSOVER, rel=0.1)
    for metric in METRICS:
        if metric.interval:
            lows, highs = named(series, f"{metric.name}_low"), named(series, f"{metric.name}_high")
            values = named(series, metric.name)
            assert values
            assert values.keys() == lows.keys() == highs.keys()
            assert all(lows[at] <= values[at] <= highs[at] for at in values)


def test_what_cannot_be_said_is_absent_and_says_so() -> None:
    """One draft length at one batch size: no crossover series, no schedule, and a flag for each."""
    series = scrape(snapshot())
    for what in ("crossover", "schedule", "speedup"):
        assert value(series, "tuner_cannot_say", pool="thin", what=what) == 1
        assert value(series, "tuner_cannot_say", pool="chat", what=what) == 0
    assert value(series, "tuner_cannot_say", pool="thin", what="acceptance") == 0
    for name in ("tuner_crossover_tokens", "tuner_predicted_speedup_ratio", "tuner_schedule_draft_len"):
        assert not any(("pool", "thin") in labels for labels in named(series, name))


def test_a_pool_without_a_cycle_cannot_say_anything() -> None:
    """A pool that was just added is there at once, with every flag up."""
    series = scrape(snapshot())
    flags = {what: value(series, "tuner_cannot_say", pool="new", what=what) for what in CANNOT_SAY}
    assert flags == dict.fromkeys(CANNOT_SAY, 1.0)


def test_the_first_snapshot_of_all_can_be_scraped() -> None:
    """Before anything is known a scrape answers, without one estimate."""
    series = scrape(Snapshot(at=NOW, started_at=NOW, version="1"))
    assert value(series, "tuner_ready") == 0
    assert not any(named(series, metric.name) for metric in METRICS if metric.interval)


def test_no_sample_is_nan_or_infinite() -> None:
    """A number that is none never reaches a scrape, wherever it comes from (case B42)."""
    bad = _changed("chat", speedup=Estimate(math.nan, 0.0, math.inf), route_speedups={})
    series = scrape(snapshot(decision=bad, windows_total={("chat", "good"): math.nan}))
    assert all(math.isfinite(number) for number in series.values())
    assert not named(series, "tuner_predicted_speedup_ratio")


def test_ratios_lie_between_0_and_1() -> None:
    """Ratios are ratios, not per cent; a speed-up alone may lie above 1."""
    series = scrape(snapshot())
    for (name, _), number in series.items():
        if "_ratio" in name and "speedup" not in name:
            assert 0.0 <= number <= 1.0, name


def test_label_names_are_on_the_list_and_values_hold_nothing_measured() -> None:
    """A measured value in a label would begin a series with each cycle (case B52)."""
    first = scrape(snapshot())
    used = {name for _, labels in first for name, _ in labels}
    assert used <= LABELS
    assert {"job", "instance"} & LABELS == set()
    moved = scrape(snapshot(decision=_moved(), at=NOW + 60.0, buffered=9))
    ours = {key for key in first if key[0].startswith("tuner_")}
    assert {key for key in moved if key[0].startswith("tuner_")} == ours


def _moved() -> Decision:
    """Return the decision with every estimate of acceptance a little elsewhere."""
    fit = next(one.acceptance for one in decision().pools if one.pool == "chat")
    assert not isinstance(fit, NotEnoughData)
    positions = tuple(
        replace(p, hazard=(p.hazard or 0.0) - 0.001, low=p.low - 0.001, high=p.high) for p in fit.positions
    )
    return _changed("chat", acceptance=replace(fit, positions=positions))


def test_label_values_are_cleaned() -> None:
    """Line breaks, credentials in URLs and endless names do not pass; what becomes equal comes once."""
    sources = {"http://u:p@host/": True, "http://host/": False, "a\nb\x00c": True, "x" * 500: True}
    series = scrape(snapshot(sources_up=sources))
    shown = [dict(labels)["source"] for labels in named(series, "tuner_source_up")]
    assert sorted(shown) == sorted(["http://host/", "a b c", "x" * 127 + "…"])


def test_routes_are_bounded_and_the_busiest_stay() -> None:
    """Of 80 routes the 50 with most drafts are shown, and the rest are counted."""
    chat = next(one for one in decision().pools if one.pool == "chat")
    fit = chat.acceptance
    assert not isinstance(fit, NotEnoughData)
    routes = {f"r{i:03}": replace(fit, route=f"r{i:03}", drafts=float(i)) for i in range(80)}
    series = scrape(snapshot(decision=_changed("chat", routes=routes, route_speedups={})))
    shown = {dict(labels)["route"] for labels in named(series, "tuner_acceptance_alpha_ratio")}
    assert shown == {"*", *(f"r{i:03}" for i in range(30, 80))}
    assert len(shown) == MAX_ROUTES + 1
    assert value(series, "tuner_label_values_left_out", label="route") == 30


def test_engines_and_findings_are_bounded() -> None:
    """More engines and findings than fit are counted, not shown; critical findings stay."""
    engines = tuple(target("chat", f"e{i:05}") for i in range(MAX_ENGINES + 7))
    many = [finding(f"code_{i}") for i in range(MAX_FINDINGS + 5)]
    grave = replace(finding("zz_last"), severity="critical")
    series = scrape(snapshot(targets=engines, findings=(*many, grave)))
    assert len(named(series, "tuner_target_up")) == MAX_ENGINES
    assert value(series, "tuner_targets", pool="chat", state="up") == MAX_ENGINES + 7
    assert value(series, "tuner_label_values_left_out", label="engine") == 7
    assert len(named(series, "tuner_finding_active")) == MAX_FINDINGS
    assert value(series, "tuner_label_values_left_out", label="code") == 6
    assert value(series, "tuner_finding_active", code="zz_last", severity="critical", pool="", route="") == 1


def test_accepted_tokens_are_a_histogram() -> None:
    """Buckets are whole numbers, rise, and end at the count; the sum is that of accepted tokens."""
    shown = snapshot()
    series = scrape(shown)
    steps = shown.observed.accepted_steps["chat", "*", 4]
    where = {"pool": "chat", "route": "*", "draft_len": "4"}
    name = "tuner_accepted_tokens_per_step"
    buckets = [value(series, f"{name}_bucket", le=f"{i}.0", **where) for i in range(5)]
    assert buckets == [sum(steps[: i + 1]) for i in range(5)]
    assert value(series, f"{name}_bucket", le="+Inf", **where) == buckets[-1] == sum(steps)
    assert value(series, f"{name}_count", **where) == sum(steps)
    assert value(series, f"{name}_sum", **where) == sum(i * count for i, count in enumerate(steps))


def test_step_time_is_predicted_on_the_grid_within_what_was_measured() -> None:
    """Batch sizes are those of the grid up to the largest one seen, and predictions are near the truth."""
    series = scrape(snapshot())
    found = named(series, "tuner_step_time_seconds")
    batches = {int(dict(labels)["batch"]) for labels in found if ("pool", "chat") in labels}
    assert batches == {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128}
    at = value(series, "tuner_step_time_seconds", pool="chat", batch="16", draft_len="2")
    assert at == pytest.approx(0.02 + 0.0002 * 48 + 0.002, rel=0.05)


def test_the_schedule_in_force_counts_before_a_proposal() -> None:
    """The active table is shown, else the proposed one, else what the last cycle would choose."""
    active = Schedule.from_ranges([[1, 8, 4], [9, 256, 2]])
    proposed = Schedule.from_ranges([[1, 256, 1]])
    rows = [
        ScheduleStatus("chat", proposed.version, "proposed", proposed, NOW),
        ScheduleStatus("chat", active.version, "active", active, NOW - 60.0),
    ]
    first = scrape(snapshot(schedules=tuple(rows)))
    assert value(first, "tuner_schedule_draft_len", pool="chat", batch="8") == 4
    assert value(first, "tuner_schedule_draft_len", pool="chat", batch="12") == 2
    assert value(first, "tuner_schedule_info", pool="chat", version=active.version, state="active") == 1
    second = scrape(snapshot(schedules=tuple(rows[:1])))
    assert value(second, "tuner_schedule_draft_len", pool="chat", batch="8") == 1
    third = scrape(snapshot(schedules=()))
    chosen = next(one.schedule for one in decision().pools if one.pool == "chat")
    assert isinstance(chosen, Schedule)
    at_8 = value(third, "tuner_schedule_draft_len", pool="chat", batch="8")
    assert at_8 == chosen.draft_len_at(8)


def test_targets_and_jobs_tell_what_operators_ask() -> None:
    """Engines by state, runs of jobs by outcome; a job that never succeeded has no time of success."""
    series = scrape(snapshot())
    assert value(series, "tuner_targets", pool="chat", state="up") == 1
    assert value(series, "tuner_targets", pool="chat", state="down") == 1
    assert value(series, "tuner_target_up", pool="new", engine="n0") is None
    assert value(series, "tuner_job_errors_total", job_name="scrape") == 1
    assert value(series, "tuner_job_missed_total", job_name="scrape") == 2
    assert value(series, "tuner_job_skipped_total", job_name="scrape") == 3
    name = "tuner_job_last_success_timestamp_seconds"
    assert value(series, name, job_name="scrape") == NOW - 9.5
    assert value(series, name, job_name="retention") is None


def test_a_snapshot_is_turned_into_families_once() -> None:
    """Scrapes of one snapshot share the work; a new snapshot is seen at once."""
    shown = [snapshot()]
    collector = TunerCollector(lambda: shown[0])
    first = collector.collect()
    assert collector.collect() is first
    shown[0] = snapshot(buffered=77)
    assert collector.collect() is not first


def test_pools_beyond_the_bound_are_left_out() -> None:
    """A configuration of 150 pools shows 100 of them, and says how many it does not."""
    pools = tuple(PoolStatus(f"p{i:03}", "observe", "vllm", 1, 0) for i in range(150))
    left = [f for f in families_of(snapshot(pools=pools, decision=None)) if "left_out" in f.name]
    assert [(s.labels["label"], s.value) for f in left for s in f.samples] == [("pool", 50.0)]


def test_what_all_pools_depend_on_is_shown_first() -> None:
    """However many pools there are, the database and metrics servers are among the sources."""
    pools = {f"{kind}:{n}": True for kind in ("discovery", "scrape") for n in range(MAX_SOURCES)}
    series = scrape(snapshot(sources_up={**pools, "store": False, "zone:main": True}))
    assert value(series, "tuner_source_up", source="store") == 0
    assert value(series, "tuner_source_up", source="zone:main") == 1
    assert len(named(series, "tuner_source_up")) == MAX_SOURCES
    assert value(series, "tuner_label_values_left_out", label="source") == MAX_SOURCES + 2
