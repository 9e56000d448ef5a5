"""What merging may and may not do to windows."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store.samples import SECONDS, T0, counts, series, steps_of, window
from tuner.fleet import Counts, Fingerprint, Gauges, Window, WindowState
from tuner.store.merging import Part, merge_kinds


def merged(*windows: Window) -> list[Window]:
    """Merge windows as a roll-up does."""
    return [part.window for part in merge_kinds(Part(each, 1, each.end) for each in windows)]


def test_counts_are_added() -> None:
    """Every count, position and cell of the joint table is the sum."""
    joint = Counts(
        joint={(4, 0): 1.0, (4, 2): 5.0},
        exposed_by_position=(6.0,),
        accepted_by_position=(5.0, 5.0),
        steps=2.0,
    )
    more = Counts(joint={(4, 2): 3.0}, exposed_by_position=(3.0, 1.0), accepted_by_position=(3.0,), steps=1.0)
    [both] = merged(window(counts=joint), window(T0 + 15, counts=more))
    assert both.counts == Counts(
        joint={(4, 0): 1.0, (4, 2): 8.0},
        exposed_by_position=(9.0, 1.0),
        accepted_by_position=(8.0, 5.0),
        steps=3.0,
    )


def test_what_one_window_does_not_tell_is_not_taken_for_zero() -> None:
    """A count that is told by some windows only is never added to silence: they stay apart."""
    told, silent = window(), window(T0 + 15, counts=replace(counts(), preemptions=2.0))
    again = window(T0 + 30, counts=replace(counts(), preemptions=3.0))
    first, second = merged(told, silent, again)
    assert first.counts.preemptions is None
    assert second.counts.preemptions == 5.0


def test_gauges_are_weighted_by_time() -> None:
    """A gauge is the mean over the seconds for which it is known."""
    long = window(seconds=45.0, gauges=Gauges(running=4.0, kv_usage=0.1))
    short = window(T0 + 45, seconds=15.0, gauges=Gauges(running=8.0))
    [both] = merged(long, short)
    assert both.gauges == Gauges(running=5.0, kv_usage=0.1)


def test_rates_stay_true_around_a_hole() -> None:
    """A merged window is as long as its parts: tokens per second do not fall where another lies between."""
    parts = [window(T0), window(T0 + 45)]
    idle = window(T0 + 15, seconds=30.0, state=WindowState.IDLE, reason="no requests")
    good, between = merged(parts[0], idle, parts[1])
    assert good.seconds == 2 * SECONDS
    assert good.tokens_per_second == parts[0].tokens_per_second
    assert between == idle


@pytest.mark.parametrize(
    "other",
    [
        window(T0 + 15, state=WindowState.SUSPECT, reason="accepted more than drafted"),
        window(T0 + 15, fingerprint=Fingerprint(engine="vllm", engine_version="0.33.0")),
        window(T0 + 15, draft_lens=frozenset({2, 4})),
        window(T0 + 15, draft_lens=None),
        window(T0 + 15, counts=counts(draft_len=2)),
        window(T0 + 15, restarts=1),
    ],
    ids=["state", "fingerprint", "draft lengths", "unknown draft lengths", "mean draft length", "restart"],
)
def test_what_differs_stays_apart(other: Window) -> None:
    """Windows of another state, set-up, draft length or life of the engine are not mixed."""
    assert merged(window(), other) == [window(), other]


def test_a_draft_cut_short_is_still_of_its_length() -> None:
    """Tokens that a grammar took out of a few drafts do not make a draft length of its own."""
    cut = window(T0 + 15, counts=replace(counts(), draft_tokens=3190.0))
    assert len(merged(window(), cut)) == 1


def test_windows_that_are_not_fitted_are_told_apart_by_state_alone() -> None:
    """What is not good is kept for its sums: one row per state, with every draft length that ran in it."""
    idle = [
        window(
            T0 + 15 * index,
            state=WindowState.IDLE,
            draft_lens=frozenset({index}),
            counts=counts(draft_len=index),
        )
        for index in (1, 2)
    ]
    [one] = merged(*idle)
    assert one.draft_lens == frozenset({1, 2})
    assert one.counts.draft_tokens == 2400.0
    [vague] = merged(*idle, window(T0 + 45, state=WindowState.IDLE, draft_lens=None))
    assert vague.draft_lens is None


def test_a_mix_is_a_mix_wherever_its_mean_lies() -> None:
    """Draft lengths of 2 and 4 that come to 3 on average do not make a draft length of 3."""
    both = frozenset({2, 4})
    at_three = window(draft_lens=both, counts=counts(draft_len=3))
    elsewhere = window(T0 + 15, draft_lens=both, counts=replace(counts(), draft_tokens=2800.0))
    assert len(merged(at_three, elsewhere)) == 1


@given(st.permutations(range(8)), st.sets(st.integers(1, 7)))
def test_order_and_steps_on_the_way_do_not_matter(order: list[int], cuts: set[int]) -> None:
    """Merging in any order, at once or in pieces, gives the same: what makes a roll-up repeatable."""
    windows = [
        replace(each, counts=replace(each.counts, request_step_seconds=0.1 * index))
        for index, each in enumerate(series(8))
    ]
    at_once = merge_kinds(Part(each, 1, each.end) for each in windows)
    assert at_once == merge_kinds(Part(windows[index], 1, windows[index].end) for index in order)
    bounds = [0, *sorted(cuts), 8]
    pieces = [
        part
        for begin, end in pairwise(bounds)
        for part in merge_kinds(Part(each, 1, each.end) for each in windows[begin:end])
    ]
    [whole] = merge_kinds(pieces)
    assert whole.windows == 8
    assert whole.until == windows[-1].end
    assert steps_of([whole.window]) == steps_of(windows)
    assert whole.window.counts.request_step_seconds is not None
    assert math.isclose(whole.window.counts.request_step_seconds, 2.8)


def test_one_window_is_left_as_it_is() -> None:
    """Merging one window gives that window, to the last bit."""
    odd = window(T0 + 0.1, seconds=0.3)
    assert merged(odd) == [odd]
