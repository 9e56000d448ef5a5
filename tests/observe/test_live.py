"""Live observation: recordings told as they grow, gaps, clocks, addresses, memory."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from tests.observe.bodies import VOCABULARY, Server, scrape
from tests.observe.live_server import INTERVAL, TARGET, Event, failed, live, sane, series, watch, whole
from tuner.fleet import Fingerprint, Target, Window, WindowState
from tuner.observe.exposition import Scrape, SeriesKey, TimedScrape
from tuner.observe.live import LiveWindows
from tuner.observe.recording import read_recording

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"
DAY = 86_400.0
MOST_BYTES = 60_000
"""Per engine, bodies and shared layouts excluded."""


def steady(n: int, server: Server | None = None) -> list[TimedScrape]:
    """Scrape a steady load of 8 requests n times."""
    server = server or Server()
    server.running = 8
    out = []
    for _ in range(n):
        out.append(server.scrape())
        server.run(INTERVAL, 8, 2)
    return out


@pytest.mark.parametrize(("name", "differ"), [("vllm-0.32-cpu", 0), ("vllm-0.32-cpu-short", 1)])
def test_a_recording_told_live_gives_its_windows(name: str, differ: int) -> None:
    """Scrape by scrape, a real engine's windows are those of the whole recording, in state and numbers.

    One of 116 differs in the short one: only the rest of the recording says that a change of load that it
    holds is no usual one, and it is a transition by the next change anyway.
    """
    scrapes = list(read_recording(RECORDINGS / name).scrapes(VOCABULARY.sample_names))
    seen = watch(live(None), scrapes, flush=True)
    expected = whole(scrapes)
    assert [window.state for window in seen] == [window.state for window in expected]
    assert [replace(w, reason="") for w in seen] == [replace(w, reason="") for w in expected]
    assert sum(a.reason != b.reason for a, b in zip(seen, expected, strict=True)) == differ


def test_a_window_goes_out_one_scrape_after_it_ended() -> None:
    """The state of a window takes the one after it into account, and waits for nothing else."""
    watched = live()
    ended = [[w.end for w in watched.add(TARGET, [one]).windows] for one in steady(5)]
    first = 2_000_000_000.0
    assert ended == [[], [], [first + 15], [first + 30], [first + 45]]
    assert [window.end for window in watched.flush(TARGET).windows] == [first + 60]
    assert watched.flush(TARGET).windows == ()


def test_a_stop_of_45_seconds_is_one_window_of_60() -> None:
    """Three scrapes that did not happen make one longer window with its true length and rate."""
    scrapes = steady(12)
    seen = watch(live(), scrapes[:5] + scrapes[8:], flush=True)
    assert sorted({window.seconds for window in seen}) == [15, 60]
    assert len({window.tokens_per_second for window in seen}) == 1
    assert {window.state for window in seen} == {WindowState.GOOD}


def test_failed_scrapes_widen_a_window_up_to_the_limit() -> None:
    """Up to three failures in a row are spanned; four are a gap, over which nothing is counted."""
    scrapes = steady(20)
    three = [failed(one.time) if 4 < i < 8 else one for i, one in enumerate(scrapes)]
    four = [failed(one.time) if 4 < i < 9 else one for i, one in enumerate(scrapes)]
    assert [w.seconds for w in watch(live(), three, flush=True)] == [15] * 4 + [60] + [15] * 11
    assert [w.seconds for w in watch(live(), four, flush=True)] == [15] * 4 + [15] * 10


def test_windows_of_an_engine_that_fails_for_long_go_out() -> None:
    """The last window before an outage does not wait for the end of it."""
    watched = live()
    scrapes = steady(3)
    watch(watched, scrapes)
    ends = [
        [window.end for window in watched.add(TARGET, [failed(scrapes[-1].time + k * INTERVAL)]).windows]
        for k in range(1, 7)
    ]
    assert ends == [[], [], [], [], [scrapes[-1].time], []]


@pytest.mark.parametrize("step", [3600.0, 30 * DAY, -3600.0, -7.5 * DAY])
def test_a_step_of_the_clock_is_a_new_baseline(step: float) -> None:
    """No window spans a step; observation goes on at the second scrape after it, nothing twice."""
    scrapes = steady(20)
    stepped = [one if i < 10 else TimedScrape(one.time + step, one.result) for i, one in enumerate(scrapes)]
    watched = live()
    seen = watch(watched, stepped, flush=True)
    sane(seen)
    assert len(seen) == 18
    assert {window.state for window in seen} == {WindowState.GOOD}
    assert sum(w.counts.emitted or 0 for w in seen) == 18 * (whole(scrapes)[0].counts.emitted or 0)


def test_a_clock_set_back_and_forth_makes_no_window_twice() -> None:
    """An interval that divides the step brings the same times again: their windows differ in start."""
    scrapes = series([Event("good")] * 5 + [Event("back")] + [Event("good")] * 250, told=True)
    seen = watch(live(), scrapes, flush=True)
    sane(seen)
    assert len(seen) == 255


def test_an_interval_need_not_be_known() -> None:
    """Without one it is read off the scrapes, and no window is longer than ten minutes."""
    server = Server()
    scrapes = [server.scrape()]
    server.time += 30 * DAY
    scrapes += steady(6, server)
    seen = watch(live(None), scrapes, flush=True)
    assert [window.seconds for window in seen] == [15] * 5


def test_a_restart_counts_from_zero() -> None:
    """The window of a restart is partial, of ordinary size, and counts the restart."""
    scrapes = series([*[Event("good")] * 4, Event("restart"), *[Event("good")] * 4], told=True)
    seen = watch(live(), scrapes, flush=True)
    sane(seen)
    assert [w.restarts for w in seen] == [0] * 4 + [1] * 5
    assert seen[4].state is WindowState.PARTIAL


def test_another_address_under_the_same_name_is_a_restart() -> None:
    """A pod that was moved counts anew: nothing is taken from one process to the other."""
    old, new = steady(5), steady(10)
    watched = live()
    seen = watch(watched, old)
    moved = replace(TARGET, url="http://10.0.0.2:8000/metrics")
    seen += watch(watched, [TimedScrape(one.time + 75, one.result) for one in new], target=moved, flush=True)
    sane(seen)
    assert [w.restarts for w in seen] == [0] * 4 + [1] * 9
    assert seen[4].start == new[0].time + 75
    assert {w.state for w in seen} == {WindowState.GOOD}
    assert "engine_moved" in {finding.code for finding in watched.findings}


def test_scrapes_told_again_are_known() -> None:
    """A server that is asked for the last minute tells samples twice; they count once, without a finding."""
    scrapes = steady(12)
    watched = live()
    seen: list[Window] = []
    for i in range(1, 13):
        seen += watched.add(TARGET, scrapes[max(0, i - 4) : i]).windows
    assert [w.start for w in seen] == [one.time for one in scrapes[:10]]
    assert watched.findings == ()


def test_engines_are_told_apart() -> None:
    """Two engines with equal series do not mix, and one that restarts leaves the other alone."""
    watched = live()
    other = Target("p", "f", "http://10.0.0.9:8000/metrics")
    ours = series([Event("good")] * 3 + [Event("restart")] + [Event("good")] * 3, told=True)
    for mine, its in zip(ours, steady(8), strict=True):
        watched.add(TARGET, [mine])
        watched.add(other, [its])
    states = {w.engine: w.state for t in (TARGET, other) for w in watched.flush(t).windows}
    assert states == {"e/0": WindowState.GOOD, "f/0": WindowState.GOOD}
    assert {f.subject["engine"] for f in watched.findings} == {"e/0"}


def test_a_finding_is_told_once_while_it_lasts() -> None:
    """A restart is reported when it is seen, is active while it is recent, and then goes."""
    watched = live()
    scrapes = series([*[Event("good")] * 4, Event("restart"), *[Event("good")] * 30], told=True)
    told = [f.code for one in scrapes for f in watched.add(TARGET, [one]).findings]
    assert told == ["engine_restart"]
    assert watched.findings == ()


def test_failed_scrapes_are_a_finding_while_they_are_recent() -> None:
    """One HTML answer among good ones is told, with the engine that gave it."""
    watched = live()
    scrapes = steady(30)
    scrapes[3] = failed(scrapes[3].time)
    told = [f for one in scrapes for f in watched.add(TARGET, [one]).findings]
    assert [(f.code, f.subject["engine"]) for f in told] == [("scrape_invalid", "e")]
    assert watched.findings == ()


def test_a_page_of_something_else_is_a_finding() -> None:
    """Metrics without any of the engine's: not at the first scrape, which may come while it starts."""
    watched = live()
    lines = ["process_start_time_seconds 1000", "node_load1 0.5"]
    found = [watched.add(TARGET, [scrape(2e9 + 15 * i, lines)]).findings for i in range(4)]
    assert [[f.code for f in some] for some in found] == [[], [], ["engine_metrics_absent"], []]


def test_what_is_absent_for_an_hour_is_forgotten() -> None:
    """State goes with the engine, and its findings and tables too."""
    watched = live()
    scrapes = steady(5)
    watch(watched, scrapes)
    held = watched.series_state
    assert held == len(scrapes[0].result.samples)  # type: ignore[union-attr] # good scrapes
    assert watched.forget(scrapes[-1].time - 3600) == 0
    assert watched.forget(scrapes[-1].time + 1) == 1
    assert (watched.series_state, watched.findings) == (0, ())


def renamed(scrapes: list[TimedScrape], pod: str) -> list[TimedScrape]:
    """Give every series a label that names a pod."""
    out = []
    for time, result in scrapes:
        assert isinstance(result, Scrape)
        samples = {
            SeriesKey(key.name, key.labels | {("pod", pod)}): value for key, value in result.samples.items()
        }
        out.append(TimedScrape(time, replace(result, samples=samples)))
    return out


@pytest.mark.parametrize("generations", [40, pytest.param(200, marks=pytest.mark.long)])
def test_memory_is_flat_over_churn(generations: int) -> None:
    """2 000 or 10 000 scrapes of pods that come and go: what is held is what the living ones need."""
    base = steady(50)
    watched = LiveWindows(VOCABULARY, pool="p", fingerprint=Fingerprint(engine="vllm"), interval=INTERVAL)
    sizes = []
    tracemalloc.start()
    try:
        for generation in range(generations):
            target = replace(TARGET, engine=f"pod-{generation}", url=f"http://10.0.0.{generation}/metrics")
            shift = generation * 50 * INTERVAL
            scrapes = renamed([TimedScrape(t + shift, r) for t, r in base], f"pod-{generation}")
            for one in scrapes:
                watched.add(target, [one])
            watched.forget(scrapes[-1].time - 3600)
            del scrapes, one
            if generation % 8 == 7:
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert watched.series_state <= 6 * len(base[0].result.samples)  # type: ignore[union-attr] # good scrapes
    assert sizes[-1] - sizes[0] < 0.05 * sizes[0]


def test_an_engine_costs_little_memory() -> None:
    """State of 20 engines after an hour of scrapes, with restarts and failures, stays within the bound."""
    kinds = ["good"] * 10 + ["restart"] + ["good"] * 10 + ["failed"] + ["good"] * 20
    scrapes = series([Event(kind) for kind in kinds], told=True)  # type: ignore[arg-type] # literals
    watched = live()
    watch(watched, scrapes[:2], target=replace(TARGET, engine="first"))
    tracemalloc.start()
    try:
        for i in range(20):
            watch(watched, scrapes, target=replace(TARGET, engine=f"e{i}"))
        gc.collect()
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used / 20 < MOST_BYTES
