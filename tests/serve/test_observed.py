"""Counts that only rise, and goodput of the last minutes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fit.counting import pure, window
from tests.serve.worlds import chat_windows
from tuner.fleet import Counts, Window, WindowState
from tuner.serve.labels import MAX_ROUTES, OTHER
from tuner.serve.observed import GOODPUT_SECONDS, Totals, accepted_steps


def _busy(index: int, emitted: float, **changed: object) -> Window:
    """Return a window of 15 s that emitted so many tokens of 100 request steps with two drafts each."""
    counts = Counts(emitted=emitted, request_steps=100.0, draft_tokens=200.0, first_tokens=0.0)
    one = replace(window(0, index=index), counts=counts)
    return replace(one, **changed)  # type: ignore[arg-type]  # any field of a window


def test_steps_by_accepted_count_follow_from_positions() -> None:
    """Of 100 drafts 60 accepted one token or more and 30 two: 40, 30 and 30."""
    assert accepted_steps(window(100, (60, 30), {2})) == {2: [40.0, 30.0, 30.0]}


def test_joint_counts_are_taken_as_they_are() -> None:
    """Exact counts need no single draft length."""
    joint = {(1, 0): 5.0, (1, 1): 6.0, (3, 2): 7.0}
    one = replace(window(18, ()), counts=Counts(joint=joint))
    assert accepted_steps(one) == {1: [5.0, 6.0], 3: [0.0, 0.0, 7.0, 0.0]}


@pytest.mark.parametrize(
    "one",
    [
        window(100, (60, 30), {1, 2}),
        window(100, (60, 30), None),
        window(100, (60,), {2}),
        window(100, (), set()),
        window(100, (60,) * 30, {30}),
        replace(window(0, ()), counts=Counts(joint={(1, 2): 5.0, (40, 1): 5.0})),
    ],
)
def test_what_is_not_known_is_not_counted(one: Window) -> None:
    """Mixed or untold draft lengths, missing positions and absurd lengths add nothing."""
    assert accepted_steps(one) == {}


def test_no_count_falls() -> None:
    """Counters that were read between two updates may contradict each other by a step; totals still rise."""
    assert accepted_steps(window(100, (101, 30), {2})) == {2: [0.0, 71.0, 30.0]}


def test_totals_rise_with_every_good_window_and_no_other() -> None:
    """A histogram is a counter: suspect and transition windows leave it, good ones add to it."""
    totals = Totals()
    totals.add([pure(1000, (0.8, 0.5)), window(50, (9, 9), {2}, state=WindowState.TRANSITION)])
    first = totals.observed(100.0).accepted_steps["p", "*", 2]
    totals.add([pure(1000, (0.8, 0.5), index=1)])
    second = totals.observed(100.0).accepted_steps["p", "*", 2]
    assert first == (200.0, 400.0, 400.0)
    assert second == (400.0, 800.0, 800.0)


def test_routes_beyond_the_bound_are_summed() -> None:
    """A caller that sends a new route with each request costs no more than the bound."""
    totals = Totals()
    totals.add([replace(pure(100, (0.5,)), route=f"r{i}") for i in range(MAX_ROUTES + 30)])
    steps = totals.observed(100.0).accepted_steps
    assert len(steps) == MAX_ROUTES + 1
    assert sum(steps["p", OTHER, 1]) == 100.0 * 30


def test_goodput_is_the_mean_of_the_last_minutes() -> None:
    """Tokens over seconds of the engine's windows, old ones forgotten, idle ones counted."""
    totals = Totals()
    totals.add([_busy(0, 1500.0), _busy(1, 0.0, state=WindowState.IDLE)])
    assert totals.observed(30.0).goodput == {("p", "e0"): 50.0}
    assert totals.observed(15.0 + GOODPUT_SECONDS).goodput == {("p", "e0"): 0.0}
    assert totals.observed(30.0 + GOODPUT_SECONDS).goodput == {}


def test_goodput_takes_no_window_that_is_not_trusted_or_is_part_of_another() -> None:
    """Suspect windows, and those of single routes, do not count."""
    totals = Totals()
    totals.add([_busy(0, 1500.0), _busy(0, 900.0, route="web"), _busy(1, 9e9, state=WindowState.SUSPECT)])
    assert totals.observed(30.0).goodput == {("p", "e0"): 100.0}


def test_efficiency_is_emitted_over_verified() -> None:
    """150 tokens emitted of 300 verified are one half; nothing verified is nothing said."""
    totals = Totals()
    totals.add([_busy(0, 150.0)])
    assert totals.observed(15.0).efficiency == {"p": 0.5}
    silent = Totals()
    silent.add([replace(_busy(0, 150.0), counts=Counts(emitted=150.0))])
    assert silent.observed(15.0).efficiency == {}
    assert silent.observed(15.0).goodput == {("p", "e0"): 10.0}


def test_memory_does_not_grow_with_time() -> None:
    """Only the windows of the last minutes, and counts, are held."""
    totals = Totals()
    for index in range(2000):
        totals.add([_busy(index, 100.0)])
        totals.observed(15.0 * (index + 1))
    assert sum(len(spells) for spells in totals._spells.values()) <= GOODPUT_SECONDS / 15.0


def test_a_whole_pool_agrees_with_its_histogram() -> None:
    """The mean over the histogram is accepted tokens over drafts, as counted."""
    totals = Totals()
    totals.add(chat_windows())
    steps = totals.observed(0.0).accepted_steps["chat", "*", 4]
    ran = [w for w in chat_windows() if w.route == "*" and w.draft_lens == frozenset({4})]
    drafts, accepted = (sum(getattr(w.counts, name) for w in ran) for name in ("drafts", "accepted"))
    assert sum(steps) == drafts
    assert sum(i * count for i, count in enumerate(steps)) == accepted
