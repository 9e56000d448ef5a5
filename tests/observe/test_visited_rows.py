"""Rows of a table that a window visited: by its batch, and where it drafted what only another row drafts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.observe.bodies import VOCABULARY, Server, codes, windows_of
from tests.observe.live_server import INTERVAL, KNOWN
from tuner.fit.acceptance import AcceptanceFit, fit_acceptance
from tuner.fit.plausibility import impossible
from tuner.fleet import POOLED_ROUTE, Finding, Schedule, Target, Window, WindowState
from tuner.observe.exposition import TimedScrape, parse
from tuner.observe.live import LiveWindows
from tuner.observe.plugin import lens_told
from tuner.simulate.fleet import Fleet
from tuner.simulate.presets import preset
from tuner.simulate.spec import FleetSpec

if TYPE_CHECKING:
    from tuner.observe.windows import WindowSet

TOLERANCE = 0.03
LONG = [pytest.param(0, 60, marks=pytest.mark.long), pytest.param(2, 60, marks=pytest.mark.long)]


def peaking(*rows: list[int], most: tuple[int, int] = (3, 1), peak: tuple[int, int] = (12, 3)) -> WindowSet:
    """Scrape five windows at one batch and draft length, with half a second of others in the third."""
    server = Server()
    server.running = most[0]
    scrapes = [server.scrape()]
    for index in range(5):
        server.run(INTERVAL - 0.5, *most)
        server.run(0.5, *(peak if index == 2 else most))
        server.running = most[0]
        scrapes.append(server.scrape())
    return windows_of(scrapes, schedule=Schedule.from_ranges(rows))


def lens(result: WindowSet) -> list[set[int] | None]:
    return [None if w.draft_lens is None else set(w.draft_lens) for w in result.windows]


def test_a_peak_into_the_next_row_counts_as_visited() -> None:
    """A mean of 1.1 draft tokens cannot come of the row of 1 alone: the next one was visited as well."""
    result = peaking([1, 10, 1], [11, 20, 3], [21, 64, 4])
    assert lens(result) == [{1}, {1}, {1, 3}, {1}, {1}]
    assert not any(impossible(window) for window in result.windows)
    assert not codes(result)


def test_rows_on_the_way_are_visited_too() -> None:
    """Tokens accepted at the fourth position tell of the row of 4, and the batch came by that of 2."""
    result = peaking([1, 10, 1], [11, 20, 2], [21, 64, 4], peak=(24, 4))
    assert lens(result)[2] == {1, 2, 4}
    assert not impossible(result.windows[2])


def test_what_no_row_explains_stays_impossible() -> None:
    """Drafts longer than the whole table asks for are another engine's, and the window is named."""
    (odd,) = [w for w in peaking([1, 10, 1], [11, 64, 1]).windows if impossible(w)]
    assert odd.start == peaking([1, 64, 1]).windows[2].start
    assert "outside the draft lengths in use (1 to 1)" in impossible(odd)


def test_a_mean_below_every_row_tells_no_lengths() -> None:
    """Between rows of 3 and 4, 2.9 tokens a draft are cut drafts: which row they were of is not told."""
    result = peaking([1, 10, 3], [11, 64, 4], most=(8, 3), peak=(8, 1))
    assert lens(result)[2] is None
    assert not impossible(result.windows[2])


def test_a_mean_below_every_row_tells_of_a_shorter_one() -> None:
    """Where the table has a shorter row it was visited."""
    result = peaking([1, 6, 1], [7, 25, 3], [26, 64, 4], most=(24, 3), peak=(20, 1))
    assert lens(result)[2] == {1, 3, 4}
    assert not impossible(result.windows[2])


def test_a_few_drafts_do_not_contradict_a_row_without() -> None:
    """Beside steps that draft nothing, as the row asks, a few of the row below are within reach."""
    server = Server()
    server.running = 60
    scrapes = [server.scrape()]
    for _ in range(5):
        server.run(INTERVAL - 0.5, 60, 0)
        server.run(0.5, 30, 2)
        server.running = 60
        scrapes.append(server.scrape())
    table = Schedule.from_ranges([[1, 35, 2], [36, 96, 0]])
    assert not codes(windows_of(scrapes, schedule=table))


@pytest.mark.parametrize(
    ("asked", "joint", "told"),
    [
        (None, {(1, 0), (4, 2)}, {1, 4}),
        ({1, 2}, {(1, 0), (4, 4)}, {1, 4}),
        ({1, 2, 4}, {(1, 0), (2, 2)}, {1, 2}),
        ({4}, {(4, 1), (3, 3)}, {4}),
        ({1}, {(1, 1), (3, 0)}, {1, 3}),
        (set(), {(0, 0)}, set()),
    ],
)
def test_joint_counts_say_which_lengths_ran(
    asked: set[int] | None, joint: set[tuple[int, int]], told: set[int]
) -> None:
    """Exactly what was drafted, except that drafts below the one length asked for were cut short."""
    found = lens_told(None if asked is None else frozenset(asked), dict.fromkeys(joint, 1.0))
    assert found == frozenset(told)


def watch(fleet: Fleet, minutes: float) -> tuple[list[Window], list[Finding]]:
    """Return the windows and all findings of engines whose tables are told."""
    watched = {n: LiveWindows(VOCABULARY, pool=n, fingerprint=KNOWN, interval=INTERVAL) for n in fleet.pools}
    targets = {
        Target(name, f"{name}-{n}", f"http://sim/{name}/{n}/metrics"): n
        for name, pool in fleet.pools.items()
        for n in range(pool.engines)
    }
    for target in targets:
        rows = [list(row) for row in fleet.pools[target.pool].schedule]
        watched[target.pool].set_schedule(target, Schedule.from_ranges(rows), -math.inf)
    windows: list[Window] = []
    findings: list[Finding] = []
    for _ in range(round(minutes * 60 / INTERVAL)):
        fleet.advance(INTERVAL)
        for target, n in targets.items():
            page = parse(fleet.body(target.pool, n), wanted=VOCABULARY.sample_names)
            windows += watched[target.pool].add(target, [TimedScrape(fleet.now, page)]).windows
        findings += [finding for one in watched.values() for finding in one.findings]
    return windows, findings


@pytest.mark.parametrize("plugin", [True, False])
@pytest.mark.parametrize(("seed", "minutes"), [(1, 6), *LONG])
def test_a_healthy_fleet_is_not_suspected(seed: int, minutes: float, *, plugin: bool) -> None:
    """No finding, no impossible window, and acceptance as it is, with joint counts and without."""
    spec = preset("demo")
    pools = [replace(pool, plugin=plugin) for pool in spec.pools]
    fleet = Fleet(FleetSpec(pools=tuple(pools if minutes > 6 else pools[1:2])), seed=seed)
    windows, findings = watch(fleet, minutes)
    assert not findings
    good = [window for window in windows if window.state is WindowState.GOOD]
    assert not [impossible(window) for window in good if impossible(window)]
    for pool in fleet.pools.values():
        ours = [window for window in windows if window.pool == pool.name]
        names = [route.name for route in pool.routes] if plugin else [POOLED_ROUTE]
        for name in names:
            fit = fit_acceptance([window for window in ours if window.route == name], pool=pool.name)
            assert isinstance(fit, AcceptanceFit)
            assert not fit.findings
            if plugin or len(pool.routes) == 1:
                truth = fleet.truth(pool.name).hazards(pool.routes[0].name if not plugin else name)
                hazards = [position.hazard for position in fit.positions]
                assert hazards == pytest.approx(truth, abs=TOLERANCE), (pool.name, name)
