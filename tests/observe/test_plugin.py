"""The plugin's counters: exact joint counts where they agree with the engine's own, routes within bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.observe.bodies import VOCABULARY, Server, scrape
from tests.observe.live_server import INTERVAL, KNOWN, TARGET, live, watch
from tuner.fit.acceptance import AcceptanceFit, fit_acceptance
from tuner.fleet import POOLED_ROUTE, Counts, Window, WindowState
from tuner.observe.live import LiveWindows
from tuner.observe.plugin import OTHER_ROUTES, Routes, differs, route_counts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tuner.observe.exposition import TimedScrape

JOINT = {(4, 0): 20.0, (4, 1): 16.0, (4, 2): 12.0, (4, 3): 8.0, (4, 4): 24.0, (2, 0): 10.0, (2, 2): 30.0}


class Plugged(Server):
    """A server whose plugin counts what it drafts, split between routes."""

    def __init__(self, *, rank: str = "0") -> None:
        super().__init__(rank=rank)
        self.joint: dict[tuple[str, int, int], float] = {}
        self.spec = True
        self.version = "v1"

    def count(self, routes: Mapping[str, float], draft_len: int, *, lost: float = 0.0) -> None:
        """Add an interval of 300 steps of 8 requests to the plugin's counters, by share of routes."""
        before = list(self.positions)
        self.run(INTERVAL, 8, draft_len)
        drafts = 2400.0
        reached = [drafts, *(a - b for a, b in zip(self.positions, before, strict=True))][: draft_len + 1]
        exactly = [a - b for a, b in zip(reached, [*reached[1:], 0.0], strict=True)]
        for route, share in routes.items():
            for taken, count in enumerate(exactly):
                cell = (route, draft_len, taken)
                self.joint[cell] = self.joint.get(cell, 0.0) + share * count * (1.0 - lost)

    def lines(self, **kwargs: Sequence[str]) -> list[str]:  # type: ignore[override] # the same one argument
        """Return the samples, the plugin's included."""
        lines = super().lines(**kwargs)
        total: dict[tuple[int, int], float] = {}
        for (route, d, a), count in self.joint.items():
            lines.append(
                f'tuner:route_accepted_total{{accepted="{a}",draft_len="{d}",route="{route}"}} {count}'
            )
            total[d, a] = total.get((d, a), 0.0) + count
        if self.spec:
            for d in sorted({d for d, _ in total}):
                for i in range(d):
                    exposed = sum(n for (k, a), n in total.items() if k == d and a >= i)
                    accepted = sum(n for (k, a), n in total.items() if k == d and a > i)
                    labels = f'{{draft_len="{d}",position="{i}"}}'
                    lines.append(f"tuner:spec_exposed_total{labels} {exposed}")
                    lines.append(f"tuner:spec_accepted_total{labels} {accepted}")
        return [*lines, f'tuner:schedule_info{{version="{self.version}",source="startup"}} 1']


ROUTES = {"chat": 0.75, "tools": 0.25}


def served(
    *draft_lens: int, routes: Mapping[str, float] = ROUTES, server: Plugged | None = None
) -> list[TimedScrape]:
    """Scrape a server through intervals of one draft length each; the first ones warm the counters up."""
    server = server or Plugged()
    server.running = 8
    for draft_len in sorted(set(draft_lens) - {0}):
        server.count(routes, draft_len)
    scrapes = [server.scrape()]
    for draft_len in draft_lens:
        if draft_len:
            server.count(routes, draft_len)
        else:
            server.run(INTERVAL, 8, 0)
        scrapes.append(server.scrape())
    return scrapes


def by_route(windows: Sequence[Window]) -> dict[str, list[Window]]:
    out: dict[str, list[Window]] = {}
    for window in windows:
        out.setdefault(window.route, []).append(window)
    return out


def test_the_vocabulary_asks_for_the_plugin() -> None:
    """What is read has to be wanted of a scrape."""
    assert {name for name in VOCABULARY.sample_names if name.startswith("tuner:")} == {
        "tuner:spec_exposed_total",
        "tuner:spec_accepted_total",
        "tuner:route_accepted_total",
        "tuner:schedule_info",
    }


def test_each_route_has_a_window_beside_the_pooled_one() -> None:
    """Same engine, time, state and fingerprint; joint counts that add up to the engine's own."""
    routes = by_route(watch(live(), served(4, 4, 4, 4), flush=True))
    assert sorted(routes) == [POOLED_ROUTE, "chat", "tools"]
    for pooled, chat, tools in zip(*(routes[name] for name in (POOLED_ROUTE, "chat", "tools")), strict=True):
        for one in (chat, tools):
            assert (one.engine, one.start, one.end, one.state) == (
                pooled.engine,
                pooled.start,
                pooled.end,
                pooled.state,
            )
            assert one.fingerprint == pooled.fingerprint
            assert one.counts.steps is None
        assert sum(pooled.counts.joint.values()) == pooled.counts.drafts == 2400
        assert chat.counts.drafts == 1800
        assert (tools.counts.drafts, tools.counts.draft_tokens) == (600, 2400)
        assert (chat.counts.accepted or 0) + (tools.counts.accepted or 0) == pooled.counts.accepted


def test_a_mix_is_told_exactly() -> None:
    """A window that holds two draft lengths has both by name, and exposure at every position."""
    server = Plugged()
    server.running = 8
    for k in (2, 4):
        server.count(ROUTES, k)
    scrapes = [server.scrape()]
    for _ in range(4):
        server.count(ROUTES, 2)
        server.count(ROUTES, 4)
        scrapes.append(server.scrape())
    watched = live()
    windows = by_route(watch(watched, scrapes, flush=True))[POOLED_ROUTE]
    assert {window.draft_lens for window in windows} == {frozenset({2, 4})}
    counts = windows[0].counts
    assert counts.exposed_by_position[:3] == (
        4800,
        counts.accepted_by_position[0],
        counts.exposed_by_position[2],
    )
    assert counts.exposed_by_position[2] < counts.accepted_by_position[1]
    assert watched.findings == ()


def test_acceptance_is_fitted_from_joint_counts() -> None:
    """Late positions of a mix, which stock counters leave open, come out as they were served."""
    server = Plugged()
    server.running = 8
    for k in (1, 2, 3, 4):
        server.count(ROUTES, k)
    scrapes = [server.scrape()]
    for _ in range(12):
        for k in (1, 2, 3, 4):
            server.count(ROUTES, k)
        scrapes.append(server.scrape())
    routes = by_route(watch(live(4 * INTERVAL), scrapes, flush=True))
    for name in (POOLED_ROUTE, "chat"):
        fit = fit_acceptance(routes[name], pool="p")
        assert isinstance(fit, AcceptanceFit), fit
        hazards = [position.hazard for position in fit.positions]
        assert hazards == pytest.approx([0.80, 0.72, 0.66, 0.60], abs=0.01)


def test_windows_without_drafts_have_no_routes() -> None:
    """At draft length 0 nothing is drafted by any route."""
    assert set(by_route(watch(live(), served(0, 0, 0), flush=True))) == {POOLED_ROUTE}


@pytest.mark.parametrize("lost", [0.5, -0.5])
def test_counters_that_contradict_the_engine_are_not_used(lost: float) -> None:
    """A plugin that misses half the steps, or counts them twice: no joint counts, no routes, a finding."""
    server = Plugged()
    server.running = 8
    scrapes = [server.scrape()]
    for _ in range(6):
        server.count(ROUTES, 4, lost=lost)
        scrapes.append(server.scrape())
    watched = live()
    seen = watch(watched, scrapes, flush=True)
    assert set(by_route(seen)) == {POOLED_ROUTE}
    assert not any(window.counts.joint for window in seen)
    assert [finding.code for finding in watched.findings] == ["plugin_counts_unused"]


def test_a_plugin_without_position_counters_is_enough() -> None:
    """Joint counts of all routes add up to the pooled ones."""
    server = Plugged()
    server.spec = False
    windows = by_route(watch(live(), served(4, 4, 4, server=server), flush=True))
    assert all(sum(window.counts.joint.values()) == 2400 for window in windows[POOLED_ROUTE])


def test_new_routes_and_lengths_count_from_zero() -> None:
    """A child of a counter appears with its first event: the window in which it does is whole."""
    server = Plugged()
    server.running = 8
    server.count({"chat": 1.0}, 4)
    scrapes = [server.scrape()]
    for routes in ({"chat": 1.0}, {"chat": 0.5, "batch": 0.5}, {"chat": 0.5, "batch": 0.5}):
        server.count(routes, 4)
        scrapes.append(server.scrape())
    seen = by_route(watch(live(), scrapes, flush=True))
    assert [window.counts.drafts for window in seen["batch"]] == [1200, 1200]
    assert {window.state for window in seen[POOLED_ROUTE]} == {WindowState.GOOD}


def test_a_restart_has_no_joint_counts() -> None:
    """What was counted before and after zero is not told apart: the window is partial anyway."""
    server = Plugged()
    scrapes = served(4, 4, server=server)
    server.restart()
    server.joint = {}
    server.count(ROUTES, 4)
    scrapes.append(server.scrape())
    server.count(ROUTES, 4)
    scrapes.append(server.scrape())
    seen = by_route(watch(live(), scrapes, flush=True))
    assert [bool(window.counts.joint) for window in seen[POOLED_ROUTE]] == [True, True, False, True]
    assert len(seen["chat"]) == 3


@pytest.mark.parametrize(
    "labels",
    [
        'draft_len="x",position="0"',
        'draft_len="-1",position="0"',
        'draft_len="4",position="4"',
        'draft_len="4"',
        'draft_len="99999999999999999999",position="0"',
    ],
)
def test_labels_that_cannot_be_spoil_the_plugins_counters(labels: str) -> None:
    """Another plugin, or another version of it: its numbers are not understood, so not used."""
    server = Plugged()
    scrapes = []
    server.running = 8
    for _ in range(6):
        scrapes.append(scrape(server.time, [*server.lines(), f"tuner:spec_exposed_total{{{labels}}} 5"]))
        server.count(ROUTES, 4)
    watched = live()
    assert set(by_route(watch(watched, scrapes, flush=True))) == {POOLED_ROUTE}
    assert [finding.code for finding in watched.findings] == ["plugin_counts_unused"]


def test_ranks_that_share_counters_have_none_of_their_own() -> None:
    """Two ranks behind one page, and counters that name no rank: whose drafts these are is not known."""
    ranks = [Plugged(rank="0"), Plugged(rank="1")]
    scrapes = []
    for _ in range(6):
        lines = [
            line for rank in ranks for line in rank.lines() if not line.startswith(("process", "tuner:"))
        ]
        lines += ["process_start_time_seconds 1000", *(x for x in ranks[0].lines() if x.startswith("tuner:"))]
        scrapes.append(scrape(ranks[0].time, lines))
        for rank in ranks:
            rank.running = 8
            rank.count(ROUTES, 4)
    watched = live()
    seen = watch(watched, scrapes, flush=True)
    assert {(w.engine, w.route) for w in seen} == {("e/0", POOLED_ROUTE), ("e/1", POOLED_ROUTE)}
    assert {finding.code for finding in watched.findings} == {"plugin_counts_unused"}


def test_the_running_schedule_is_told() -> None:
    """Version and source of the plugin's info series, by engine."""
    watched = live()
    watch(watched, served(4, 4))
    assert watched.running == {"e": ("v1", "startup")}


def test_routes_are_bounded_and_printable() -> None:
    """Beyond the bound, and without a name of its own, a route is counted under "other"."""
    routes = Routes(2)
    assert [
        routes.name(label, 1.0) for label in ("chat", "to\nols\x00", "third", "chat", "", "*", "other")
    ] == [
        "chat",
        "to ols",
        OTHER_ROUTES,
        "chat",
        OTHER_ROUTES,
        OTHER_ROUTES,
        OTHER_ROUTES,
    ]
    assert len(Routes().name("x" * 1000, 1.0)) == 64
    routes.forget(2.0)
    assert routes.name("third", 3.0) == "third"


def test_routes_beyond_the_bound_are_added_up_and_told() -> None:
    """Sixty labels where three are told apart: four windows a scrape, and a finding."""
    shares = {f"tenant-{i:02d}": 1 / 64 for i in range(64)}
    watched = LiveWindows(
        VOCABULARY,
        pool="p",
        fingerprint=KNOWN,
        interval=INTERVAL,
        max_routes=3,
    )
    seen = by_route(watch(watched, served(4, 4, routes=shares), flush=True))
    assert sorted(seen) == [POOLED_ROUTE, "other", "tenant-00", "tenant-01", "tenant-02"]
    assert seen["other"][0].counts.drafts == pytest.approx(2400 * 61 / 64)
    assert "routes_capped" in {finding.code for finding in watched.findings}
    assert watched.add(TARGET, []).windows == ()


def test_counts_of_a_route_follow_from_its_joint_counts() -> None:
    """Exposure, acceptance and totals of a worked example."""
    counts = route_counts(JOINT)
    assert (counts.drafts, counts.draft_tokens, counts.accepted) == (120, 400, 16 + 24 + 24 + 96 + 60)
    assert list(counts.exposed_by_position) == [120, 90, 44, 32]
    assert list(counts.accepted_by_position) == [90, 74, 32, 24]


def test_a_step_at_either_end_is_no_contradiction() -> None:
    """Two counters of one body are read a moment apart: a step of the batch may be in one of them."""
    own = Counts(steps=10, request_steps=80, drafts=80, draft_tokens=160, accepted=100)
    near = {(2, 0): 20.0, (2, 1): 18.0, (2, 2): 40.0}
    assert differs(near, own) == ""
    assert differs({(2, 0): 20.0, (2, 2): 20.0}, own).startswith("40 drafts")
