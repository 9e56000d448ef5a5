"""Fits with their provenance, findings from open to closed, the audit trail, and jobs that run once."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.store.samples import T0
from tuner._exceptions import StoreError
from tuner.fleet import Finding, Fingerprint
from tuner.store import FindingRecord, FitRecord

if TYPE_CHECKING:
    from tuner.store import Store

FIT = FitRecord(
    pool="chat",
    kind="acceptance",
    source="prometheus:main",
    span_start=T0,
    span_end=T0 + 600,
    windows=40,
    parameters={"alpha": 0.8123456789012345, "hazards": [0.81, 0.8, None]},
    counts={"exposed": [1000, 800], "accepted": [810, 640]},
    residuals={"median": 0.01},
    fingerprint=Fingerprint(engine="vllm", model="llama-70b", tensor_parallel=4),
    code_version="1.2.3",
)
HOUR = 3600.0


def test_a_fit_comes_back_with_its_provenance(store: Store) -> None:
    """Source, span, counts, residuals, set-up, code version and parameters are what was saved."""
    [number] = store.save_decision([FIT], now=T0 + 600, fence=0)
    assert store.latest_fits("chat") == [replace(FIT, id=number, created_at=T0 + 600)]
    assert store.latest_fits("code") == []


def test_the_newest_of_each_kind_and_route_is_given(store: Store) -> None:
    """Routes and kinds have fits of their own; a later one takes the place of the earlier."""
    tools = replace(FIT, route="tools")
    step_time = replace(FIT, kind="step_time", parameters={"not_enough_data": "one K only"})
    store.save_decision([FIT, tools, step_time], now=T0, fence=0)
    later = replace(FIT, parameters={"alpha": 0.7})
    store.save_decision([later], now=T0 + 60, fence=0)
    found = store.latest_fits("chat")
    assert [(each.kind, each.route, each.created_at) for each in found] == [
        ("acceptance", "*", T0 + 60),
        ("acceptance", "tools", T0),
        ("step_time", "*", T0),
    ]
    assert [each.parameters for each in found] == [
        later.parameters,
        tools.parameters,
        step_time.parameters,
    ]


def test_one_cycle_is_saved_once(store: Store) -> None:
    """Saving the fits of a moment again gives the numbers of before, in the order asked."""
    fits = [FIT, replace(FIT, route="tools")]
    numbers = store.save_decision(fits, now=T0, fence=0)
    assert store.save_decision(fits[::-1], now=T0, fence=0) == numbers[::-1]
    assert store.save_decision([], now=T0, fence=0) == ()


@pytest.mark.parametrize("broken", [math.nan, math.inf, object()])
def test_what_json_cannot_hold_is_refused(store: Store, broken: object) -> None:
    """NaN is no estimate: a fit that cannot be given says so in words."""
    with pytest.raises(StoreError, match=r"acceptance fit of chat/\*: parameters"):
        store.save_decision([replace(FIT, parameters={"alpha": broken})], now=T0, fence=0)
    with pytest.raises(StoreError):
        store.record_findings([Finding("x", "info", "", {}, {"n": broken})], now=T0, fence=0)
    with pytest.raises(StoreError):
        store.add_event("me", "do", {}, "", {"n": broken}, now=T0, fence=0)


def test_fits_are_thinned_with_age(store: Store) -> None:
    """All for 6 h, the first of an hour for 48 h, the first of a day for thirteen months."""
    for minute in range(0, 3 * 24 * 60, 20):
        store.save_decision([FIT], now=T0 + 60 * minute, fence=0)
    assert store.retain(T0 + 72 * HOUR, 6 * HOUR, 48 * HOUR, 400 * 24 * HOUR, fence=0).fits == 216 - (
        18 + 42 + 1 + 1
    )


def test_a_finding_lives_from_first_to_last(store: Store) -> None:
    """New is opened, known is touched and its numbers renewed, gone is closed; again is another life."""
    first = Finding("k_confounded", "warning", "K moved with traffic", {"pool": "chat"}, {"n": 3})
    worse = replace(first, severity="critical", evidence={"n": 5})
    store.record_findings([first], now=T0, fence=0)
    store.record_findings([worse], now=T0 + 60, fence=0)
    assert store.findings() == [FindingRecord(worse, T0, T0 + 60, None)]
    store.record_findings([], now=T0 + 120, fence=0)
    assert store.findings() == []
    assert store.findings(active_only=False) == [FindingRecord(worse, T0, T0 + 60, T0 + 120)]
    store.record_findings([first], now=T0 + 180, fence=0)
    assert [each.first_seen for each in store.findings(active_only=False)] == [T0 + 180, T0]


def test_code_and_subject_tell_findings_apart(store: Store) -> None:
    """The order of a subject's labels does not matter; a double keeps its worst."""
    one = Finding("a", "info", "", {"pool": "chat", "engine": "e0"})
    same = Finding("a", "warning", "worse", {"engine": "e0", "pool": "chat"})
    store.record_findings(
        [one, same, replace(one, subject={"pool": "chat"}), replace(one, code="b")], now=T0, fence=0
    )
    found = store.findings()
    assert len(found) == 3
    assert same in [each.finding for each in found]


def test_closed_findings_are_forgotten_after_thirteen_months(store: Store) -> None:
    """Open ones stay however old they are."""
    store.record_findings([Finding("a", "info", ""), Finding("b", "info", "")], now=T0, fence=0)
    store.record_findings([Finding("b", "info", "")], now=T0 + 60, fence=0)
    assert store.retain(T0 + 401 * 24 * HOUR, 1.0, 2.0, 400 * 24 * HOUR, fence=0).findings == 1
    assert [each.finding.code for each in store.findings(active_only=False)] == ["b"]


def test_the_audit_trail_is_read_newest_first(store: Store) -> None:
    """Actor, action, subject, why and detail, each as given."""
    store.add_event("tuner", "propose", {"pool": "chat"}, "goodput +12 %", {"version": "ab"}, now=T0, fence=0)
    store.add_event("alice", "pause", {}, now=T0 + 1, fence=0)
    first, second = store.events()
    assert (first.actor, first.subject, first.why, first.detail) == ("alice", {}, "", {})
    assert (second.at, second.actor, second.action, second.subject, second.why, second.detail) == (
        T0, "tuner", "propose", {"pool": "chat"}, "goodput +12 %", {"version": "ab"},
    )  # fmt: skip
    assert store.events(limit=1) == [first]


def test_a_job_runs_once_per_period(store: Store) -> None:
    """The second call for a period, from whichever process, is told that it is not the first."""
    assert store.once("report", T0, fence=0)
    assert not store.once("report", T0, fence=0)
    assert store.once("report", T0 + 7 * 24 * HOUR, fence=0)
    assert store.once("retention", T0, fence=0)


def test_size_grows_with_what_is_stored(store: Store) -> None:
    """The size counts tables and their indices, on either database."""
    before = store.size_bytes()
    assert before > 10_000
    for minute in range(300):
        store.save_decision([replace(FIT, parameters={"text": "x" * 2000})], now=T0 + minute, fence=0)
    # PostgreSQL compresses long values, so the bound is far below what was written.
    assert store.size_bytes() > before + 20_000
