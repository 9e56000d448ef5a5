"""Increments: per raw series first, restarts by evidence, births by creation time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.observe.deltas import Interval, Track, increments
from tuner.observe.exposition import SeriesKey

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def key(name: str) -> SeriesKey:
    return SeriesKey(name, frozenset())


def follow(
    times: Sequence[float],
    started: Sequence[float | None] | None = None,
    created: Mapping[str, Sequence[float | None]] | None = None,
    kinds: dict[str, list[str]] | None = None,
    **series: Sequence[float | None],
) -> list[Interval]:
    n = len(times)
    tracks = {
        key(name): Track(
            list(values),
            list((created or {}).get(name, [None] * n)),
            (kinds or {}).get(name, [""] * n),
        )
        for name, values in series.items()
    }
    return increments(times, tracks, started or [None] * n)


def sums(intervals: list[Interval], name: str) -> float:
    return sum(interval.increments.get(key(name), 0.0) for interval in intervals)


def test_a_restart_counts_what_came_since_zero() -> None:
    """An engine that fell from 1000 to 50 drafts did 50, and its accepted tokens 110."""
    (interval,) = follow([0, 15], drafts=[1000, 50], accepted=[2500, 110])
    assert interval.event == "restart"
    assert interval.increments == {key("drafts"): 50, key("accepted"): 110}


def test_a_restart_counts_for_series_that_did_not_fall() -> None:
    """A counter that overtook its old value is no smaller restart: all series begin at zero together."""
    (interval,) = follow([0, 15], drafts=[1000, 50], preemptions=[1, 3])
    assert interval.increments[key("preemptions")] == 3


def test_a_later_start_time_is_a_restart_even_without_a_fall() -> None:
    """A short-lived process is overtaken by its successor: only the start time tells."""
    (interval,) = follow([0, 15], started=[-100.0, 5.0], drafts=[10, 60])
    assert (interval.event, interval.increments[key("drafts")]) == ("restart", 60)


def test_a_later_creation_time_is_a_restart() -> None:
    """Without a process start time the creation time of the series stands in for it."""
    (interval,) = follow([0, 15], created={"drafts": [-100.0, 5.0]}, drafts=[10, 60])
    assert (interval.event, interval.increments[key("drafts")]) == ("restart", 60)


def test_interleaved_readings_are_no_restart() -> None:
    """5000 5001 5000 5160 5320 is 320: the small fall recovers, so the running maximum holds."""
    intervals = follow([0.0, 0.8, 0.9, 15, 30], drafts=[5000, 5001, 5000, 5160, 5320])
    assert sums(intervals, "drafts") == 320
    assert [interval.event for interval in intervals] == ["none", "interleave", "none", "none"]


def test_a_small_fall_that_stays_low_is_no_restart() -> None:
    """No new process counts to 99.5 at once: nothing is counted for that interval, and on from there."""
    intervals = follow([0, 15, 30, 45], drafts=[100, 99.5, 99.6, 99.7])
    assert [interval.event for interval in intervals] == ["backwards", "none", "none"]
    assert sums(intervals, "drafts") == pytest.approx(0.2)


@pytest.mark.parametrize("evidence", ["process", "created", "none"])
def test_a_clock_set_back_is_no_restart(evidence: str) -> None:
    """Times of scrapes stepped back, so that an hour of counters stands before the one that led to it."""
    values = [*range(40_000, 41_000, 160), *range(38_000, 40_000, 160)]
    times = [15.0 * i for i in range(len(values))]
    told = [1.0] * len(values)
    intervals = follow(
        times,
        started=told if evidence == "process" else None,
        created={"drafts": told} if evidence == "created" else None,
        drafts=values,
    )
    assert [interval.event for interval in intervals].count("backwards") == 1
    assert not any(interval.event == "restart" for interval in intervals)
    assert sums(intervals, "drafts") == 160 * (len(values) - 2)


@pytest.mark.parametrize("started", [[1.0] * 5, None])
def test_an_interval_old_body_served_again_is_no_restart(started: list[float] | None) -> None:
    """5000 5160 5320, the one before once more, 5640: nothing is lost and nothing counted twice."""
    intervals = follow([0, 2, 4, 4.8, 8], started=started, drafts=[5000, 5160, 5320, 5160, 5640])
    assert [interval.event for interval in intervals] == ["none", "none", "interleave", "none"]
    assert sums(intervals, "drafts") == 640


def test_a_fall_too_deep_for_its_time_is_no_restart() -> None:
    """Without a start time: 160 per 15 s are usual, so 4000 after 15 s is no new process, 300 is one."""
    for low, event in ((4000, "backwards"), (300, "restart")):
        values = [9680, 9840, 10_000, low, low + 160, low + 320]
        intervals = follow([15.0 * i for i in range(6)], drafts=values)
        assert intervals[2].event == event


def test_a_series_made_anew_in_an_old_process_is_no_restart() -> None:
    """One creation time moved while the process and another series are as old as before."""
    (interval,) = follow(
        [0, 15],
        started=[-100.0, -100.0],
        created={"drafts": [-100.0, -100.0], "accepted": [-100.0, 5.0]},
        drafts=[1000, 1160],
        accepted=[2500, 2800],
    )
    assert interval.event == "none"


def test_a_rank_restarts_inside_a_server_that_does_not() -> None:
    """The server's start time stands, all counters of the rank were made anew: a restart of the rank."""
    (interval,) = follow([0, 15], started=[-100.0] * 2, created={"drafts": [-100.0, 5.0]}, drafts=[10, 60])
    assert (interval.event, interval.increments[key("drafts")]) == ("restart", 60)


def test_rounding_of_a_sum_is_no_fall() -> None:
    """A sum of floats that comes out 1e-12 lower is the same number."""
    (interval,) = follow([0, 15], drafts=[5000.0, 5000.0 - 1e-8])
    assert (interval.event, interval.increments[key("drafts")]) == ("none", 0)


def test_an_unchanged_start_time_forgives_a_small_fall_at_the_end() -> None:
    """The newest scrape of an unbroken process may be an older reading: nothing follows it yet."""
    (first, last) = follow([0, 15, 15.1], started=[1.0] * 3, drafts=[5000, 5100, 5099])
    assert (first.event, last.event) == ("none", "interleave")
    assert last.increments[key("drafts")] == 0


def test_a_foreign_value_in_between_is_not_counted() -> None:
    """5000 110 5160 cannot have regrown: another process answered once, and adds nothing."""
    intervals = follow([0, 15, 30, 45, 60], drafts=[4850, 5000, 110, 5160, 5320])
    assert sums(intervals, "drafts") == 470


def test_two_processes_at_one_address_are_bad_evidence() -> None:
    """Start times that go back and forth prove two processes; nothing of it is used."""
    intervals = follow([0, 15, 30, 45], started=[1.0, 500.0, 1.0, 500.0], drafts=[5000, 300, 5100, 400])
    assert all(interval.event == "mixed" for interval in intervals)
    assert all(key("drafts") in interval.bad and not interval.increments for interval in intervals)


BORN = {"drafts": [None, 4.0, 4.0]}


def test_a_series_born_inside_the_interval_counts_from_zero() -> None:
    """Created four seconds in, 400 then 520: all 520 are new."""
    intervals = follow([0, 15, 30], created=BORN, drafts=[None, 400, 520])
    assert sums(intervals, "drafts") == 520


@pytest.mark.parametrize("created", [{"drafts": [None, -10800.0, -10800.0]}, {}])
def test_a_series_first_seen_without_evidence_of_birth_is_a_baseline(
    created: dict[str, Sequence[float | None]],
) -> None:
    """Created hours before, or not known when: the first value is a baseline and 120 are counted."""
    intervals = follow([0, 15, 30], created=created, drafts=[None, 400, 520])
    assert sums(intervals, "drafts") == 120
    assert intervals[0].born == [key("drafts")]


def test_a_process_born_inside_the_interval_counts_from_zero() -> None:
    """A process start time inside the interval is evidence of birth for every series."""
    intervals = follow([0, 15, 30], started=[None, 4.0, 4.0], drafts=[None, 400, 520])
    assert sums(intervals, "drafts") == 520


def test_a_change_of_type_carries_no_increment() -> None:
    """A gauge of yesterday and a counter of today are two series with one name."""
    intervals = follow([0, 15, 30], kinds={"x": ["gauge", "counter", "counter"]}, x=[100, 400, 450])
    assert intervals[0].retyped == [key("x")]
    assert sums(intervals, "x") == 50


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -5.0, 2.0**53, 1e300])
def test_impossible_values_are_quarantined_on_both_sides(value: float) -> None:
    """A value that no counter has spoils the two intervals it touches and nothing else."""
    intervals = follow([0, 15, 30, 45], drafts=[100, value, 300, 400])
    assert [key("drafts") in interval.bad for interval in intervals] == [True, True, False]
    assert [interval.increments for interval in intervals] == [{}, {}, {key("drafts"): 100}]


def test_a_passing_spike_adds_nothing() -> None:
    """One reading of 10^15 is dropped, and the counter goes on from where it was."""
    intervals = follow([0, 15, 30, 45], drafts=[100, 1e15, 300, 400])
    assert sums(intervals, "drafts") == 100
    assert all(interval.event == "none" for interval in intervals)


def test_a_jump_that_stays_is_a_new_baseline() -> None:
    """After a jump no engine could make, only the interval that holds it is lost."""
    intervals = follow([0, 15, 30, 45], drafts=[100, 1e15, 1e15 + 200, 1e15 + 300])
    assert [interval.increments.get(key("drafts")) for interval in intervals] == [None, 200, 100]
    assert "grew by" in intervals[0].bad[key("drafts")]


@given(
    st.lists(
        st.one_of(
            st.none(),
            st.floats(allow_nan=True, allow_infinity=True),
            st.floats(min_value=0, max_value=1e6),
        ),
        min_size=2,
        max_size=8,
    ),
    st.booleans(),
)
def test_increments_are_finite_and_never_negative(values: list[float | None], told: bool) -> None:
    """Whatever a counter reads, an increment is a number of at least 0 or is not there."""
    times = [float(15 * i) for i in range(len(values))]
    intervals = follow(times, started=[1.0] * len(times) if told else None, x=values)
    for interval in intervals:
        for increment in interval.increments.values():
            assert math.isfinite(increment)
            assert increment >= 0


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=20))
def test_increments_of_an_unbroken_counter_add_up(steps: list[int]) -> None:
    """Without falls the increments add up to last minus first."""
    values = [float(sum(steps[: i + 1])) for i in range(len(steps))]
    intervals = follow([15.0 * i for i in range(len(values))], x=values)
    assert sums(intervals, "x") == values[-1] - values[0]
