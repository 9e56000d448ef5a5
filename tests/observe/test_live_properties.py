"""Live observation of any series of scrapes says what a recording of them says."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.observe.live_server import INTERVAL, TARGET, Event, live, sane, series, watch, whole
from tuner._exceptions import InputError
from tuner.fleet import Window, WindowState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.observe.exposition import TimedScrape

STEADY = ("good", "good", "good", "idle", "load", "restart", "older", "failed", "nan", "twice")
"""Times only rise, and scrapes are no more than four intervals apart unless four fail in a row."""
SURE = ("good", "good", "idle", "load", "restart", "failed", "twice")
ALL = (*STEADY, "gap", "back", "forward")
RING = 16
"""Scrapes that are held: what is judged by more of them is judged alike only while there are no more."""


def events(kinds: Sequence[str], most: int) -> st.SearchStrategy[list[Event]]:
    one = st.builds(
        Event, st.sampled_from(kinds), st.sampled_from([1, 8, 8, 9, 30]), st.sampled_from([0, 2, 2, 4])
    )
    return st.lists(one, min_size=1, max_size=most)


def short_enough(windows: Sequence[Window]) -> list[Window]:
    """Leave out what live observation takes for a new baseline."""
    return [window for window in windows if window.seconds <= 4.05 * INTERVAL]


def plain(window: Window) -> tuple[object, ...]:
    return (window.start, window.end, window.counts, window.gauges, window.restarts)


@settings(max_examples=150, deadline=None)
@given(events(STEADY, RING - 2))
def test_every_window_is_what_the_recording_so_far_says(happened: list[Event]) -> None:
    """At the moment a window goes out, build_windows says the same of the scrapes so far."""
    agree_all_along(happened, told=True)


@settings(max_examples=100, deadline=None)
@given(events(SURE, RING - 2))
def test_a_server_that_tells_no_start_is_judged_alike(happened: list[Event]) -> None:
    """Without a start time a fall is judged by the pace of counters; what is left open is left out here.

    An older body may then be taken for a restart until more is known of the pace, and what was said of it
    is not taken back.
    """
    agree_all_along(happened, told=False)


def agree_all_along(happened: list[Event], *, told: bool) -> None:
    """Compare each window that goes out with what the recording so far says of it."""
    scrapes = series(happened, told=told)
    watched = live()
    for n, one in enumerate(scrapes, start=1):
        new = watched.add(TARGET, [one]).windows
        if new:
            so_far = {window.start: window for window in whole(scrapes[:n])}
            assert [so_far[window.start] for window in new] == list(new)


@settings(max_examples=100, deadline=None)
@given(events(STEADY, 40), st.booleans())
def test_flushed_windows_are_those_of_the_recording(happened: list[Event], told: bool) -> None:
    """At the end every window of the recording went out once, with the same numbers, in the same order."""
    scrapes = series(happened, told=told)
    seen = watch(live(), scrapes, flush=True)
    sane(seen)
    expected = short_enough(whole(scrapes))
    assert [(w.start, w.end) for w in seen] == [(w.start, w.end) for w in expected]
    if told:  # without a start time an older body may be taken for a restart until more is known
        assert [w.restarts for w in seen] == [w.restarts for w in expected]


@settings(max_examples=150, deadline=None)
@given(events(ALL, 30), st.booleans())
def test_nothing_is_counted_twice_or_over_a_gap(happened: list[Event], told: bool) -> None:
    """Clock steps of an hour, gaps, restarts and failures: windows are unique, short, and of sane rates."""
    seen = watch(live(), series(happened, told=told), flush=True)
    sane(seen)


@settings(max_examples=60, deadline=None)
@given(events(ALL, 20), st.booleans(), st.lists(st.integers(1, 5), min_size=30, max_size=30))
def test_windows_do_not_depend_on_how_scrapes_are_handed_over(
    happened: list[Event], told: bool, sizes: list[int]
) -> None:
    """One by one or several at a time, with the last ones told again: the windows are the same.

    Times within one call are sorted, so that a step of the clock must not lie inside one.
    """
    scrapes = series(happened, told=told)
    if any(event.kind == "back" for event in happened):
        return
    watched = live()
    together: list[Window] = []
    at = 0
    for size in sizes:
        chunk: list[TimedScrape] = scrapes[max(0, at - 2) : at + size]
        together += watched.add(TARGET, chunk).windows
        at += size
    together += watched.flush(TARGET).windows
    alone = watch(live(), scrapes, flush=True)
    assert [plain(window) for window in together] == [plain(window) for window in alone]


@pytest.mark.parametrize("told", [True, False])
def test_tokens_are_conserved(told: bool) -> None:
    """Over restarts, failures and older readings, what good windows count is what the engine emitted."""
    kinds = ["good"] * 3 + ["failed", "good", "twice", "good", "failed", "failed", "good", "good"]
    scrapes = series([Event(kind) for kind in kinds], told=told)  # type: ignore[arg-type] # literals
    seen = watch(live(), scrapes, flush=True)
    good = [one for one in scrapes if not isinstance(one.result, InputError)]
    name = "vllm:generation_tokens_total"
    totals = [v for one in good for key, v in one.result.samples.items() if key.name == name]  # type: ignore[union-attr] # the good ones
    assert {window.state for window in seen} == {WindowState.GOOD}
    assert sum(window.counts.emitted or 0.0 for window in seen) == totals[-1] - totals[0]
    assert list(accumulate(window.seconds for window in seen))[-1] == good[-1].time - good[0].time
