"""What a cycle tells beside fits and plan, and what stays from one cycle to the next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.cycle.world import pool_windows, step_seconds
from tuner.cycle import Evidence, PoolDecision, PoolSettings, State, run_once
from tuner.fit.acceptance import AcceptanceFit
from tuner.fit.throughput import run_lengths
from tuner.fleet import Estimate, Gauges, NotEnoughData, Schedule, Window, WindowState
from tuner.plan.options import PlanOptions
from tuner.plan.planner import Plan

WINDOWS = pool_windows()
NOW = max(window.end for window in WINDOWS)


def _decide(
    windows: list[Window], state: State | None = None, now: float = NOW, latest: tuple[Window, ...] = ()
) -> PoolDecision:
    (decided,) = run_once(Evidence(tuple(windows), latest=latest), state or State(), now).pools
    return decided


def _codes(decided: PoolDecision) -> set[str]:
    return {finding.code for finding in decided.findings}


def _cell(batch: int) -> list[Window]:
    """Windows in which the load stays at one batch size, as the last ten minutes."""
    return [w for w in WINDOWS if w.batch == batch]


@pytest.mark.parametrize("batch", [5, 30, 100])
def test_the_speedup_is_that_of_the_load_there_is(batch: int) -> None:
    """Time without drafts over time with them, for the same tokens, at the batch of the last windows."""
    shift = 7200.0
    last = [replace(w, start=w.start + shift, end=w.end + shift) for w in _cell(batch)]
    schedule = Schedule.from_ranges([[1, 200, 2]])
    decided = _decide([*WINDOWS, *last], State(active={"p": schedule}), NOW + shift)
    emitted = 1 + 0.65 + 0.65**2
    truth = emitted * step_seconds(batch, 0) / step_seconds(3 * batch, 2)
    assert isinstance(decided.speedup, Estimate)
    assert decided.speedup.value == pytest.approx(truth, rel=0.02)
    assert 1.002 < decided.speedup.high / decided.speedup.low < 1.1


def test_without_a_measurement_without_speculation_no_gain_is_claimed() -> None:
    """Where K = 0 never ran, the speedup is refused with the reason."""
    decided = _decide([w for w in WINDOWS if w.draft_lens])
    assert isinstance(decided.speedup, NotEnoughData)
    assert "no measurement without speculation" in decided.speedup.reason


def test_the_active_schedule_is_held_within_the_dead_band() -> None:
    """A plan made again over the active one, or over one that is as good, keeps that one."""
    first = _decide(WINDOWS).schedule
    assert isinstance(first, Schedule)
    rows = [list(row) for row in first.ranges]
    nearly = [[rows[0][0], rows[0][1] - 1, rows[0][2]], [rows[0][1], rows[0][1], rows[1][2]], *rows[1:]]
    merged = [nearly[0], [nearly[1][0], rows[1][1], rows[1][2]], *rows[2:]]
    for active in (first, Schedule.from_ranges(merged)):
        decided = _decide(WINDOWS, State(active={"p": active}))
        assert decided.schedule == active
        assert "active_kept" in _codes(decided)


def test_a_much_better_plan_replaces_the_active_schedule() -> None:
    """A table that drafts where it loses is replaced, whatever was proposed before."""
    decided = _decide(WINDOWS, State(active={"p": Schedule.from_ranges([[1, 3, 0], [4, 200, 4]])}))
    assert "active_replaced" in _codes(decided)
    assert decided.schedule == _decide(WINDOWS).schedule


def test_the_state_outvotes_the_settings_on_what_is_active() -> None:
    """The settings of a pool say how to plan; what runs is state."""
    old, new = Schedule.from_ranges([[1, 200, 4]]), Schedule.from_ranges([[1, 200, 2]])
    state = State({"p": PoolSettings(PlanOptions(active=old, min_gain=0.1))}, active={"p": new})
    settings = state.settings_of("p")
    assert settings.options.active == new
    assert settings.options.min_gain == 0.1
    assert state.settings_of("q") == PoolSettings()


def test_evidence_without_a_good_window_is_called_stale_and_kept() -> None:
    """After a quarter of an hour of suspect windows fits and schedule hold, and a finding says why."""
    bad = [
        replace(WINDOWS[-1], start=NOW + 15.0 * i, end=NOW + 15.0 * (i + 1), state=WindowState.SUSPECT,
                reason="counters went back")
        for i in range(70)
    ]  # fmt: skip
    fresh, stale = _decide([*WINDOWS, *bad], now=NOW + 600), _decide([*WINDOWS, *bad], now=NOW + 1000)
    assert "evidence_stale" not in _codes(fresh)
    (finding,) = [one for one in stale.findings if one.code == "evidence_stale"]
    assert finding.subject == {"pool": "p"}
    assert "suspect: counters went back" in finding.message
    assert stale.schedule == fresh.schedule


def test_a_pool_that_was_never_good_is_not_stale() -> None:
    """A pool without any good window says why there is no fit, not that it was better before."""
    bad = [replace(w, state=WindowState.IDLE, reason="no request") for w in WINDOWS]
    decided = _decide(bad, now=NOW + 1e5)
    assert "evidence_stale" not in _codes(decided)
    assert isinstance(decided.acceptance, NotEnoughData)


def test_goodput_is_told_by_engine_from_its_newest_window() -> None:
    """Tokens per second of the newest window of each engine; none where that is old or not judged."""
    idle = replace(WINDOWS[0], engine="idle", start=NOW - 15, end=NOW, state=WindowState.IDLE)
    old = replace(WINDOWS[0], engine="old", start=NOW - 400, end=NOW - 300)
    odd = replace(idle, engine="odd", state=WindowState.SUSPECT)
    decided = _decide(WINDOWS, latest=(idle, old, odd, WINDOWS[-1]))
    assert decided.goodput == {"e": WINDOWS[-1].tokens_per_second, "idle": idle.tokens_per_second}
    assert set(_decide(WINDOWS).goodput) == {"e"}, "taken from the windows where no newest ones are given"


def test_efficiency_is_tokens_emitted_per_token_verified() -> None:
    """K = 2 at an acceptance of 0.65 emits 2.07 of 3 tokens verified."""
    last = [
        replace(w, start=w.start + 7200, end=w.end + 7200)
        for w in _cell(30)
        if w.draft_lens == frozenset({2})
    ]
    decided = _decide([*WINDOWS, *last], now=NOW + 7200)
    assert decided.efficiency == pytest.approx((1 + 0.65 + 0.65**2) / 3, rel=0.01)
    untold = [replace(w, counts=replace(w.counts, emitted=None)) for w in WINDOWS]
    assert isinstance(_decide(untold).efficiency, NotEnoughData)


def test_run_lengths_add_up_as_windows_become_final() -> None:
    """Verify steps by accepted tokens, of windows at one draft length; mixes and bad windows say nothing."""
    pure = _cell(12)
    mixed = replace(pure[-1], draft_lens=frozenset({2, 4}))
    bad = replace(pure[-1], state=WindowState.SUSPECT)
    told = run_lengths([*pure, mixed, bad])
    assert set(told) == {("*", 2), ("*", 4)}
    for (_, length), histogram in told.items():
        drafts = sum(w.counts.drafts or 0.0 for w in pure if w.draft_lens == frozenset({length}))
        assert len(histogram) == length + 1
        assert histogram.sum() == drafts
        assert (histogram >= 0).all()


def test_what_gpus_show_is_held_against_the_crossover() -> None:
    """Tensor pipes that idle far above the crossover are a finding of the cycle."""
    windows = [replace(w, gauges=Gauges(tensor_active=0.05, dram_active=0.9)) for w in WINDOWS]
    assert "gpu_contradicts_fit" in _codes(_decide(windows))
    assert "gpu_contradicts_fit" not in _codes(_decide(WINDOWS))


def test_windows_count_for_what_they_stand_for() -> None:
    """A window of weight 3 moves acceptance as three like it would."""
    low = [replace(w, weight=3.0) for w in WINDOWS[::2]]
    thrice = [replace(w, engine=f"e{i}") for w in WINDOWS[::2] for i in range(3)]
    fits = [_decide([*some, *WINDOWS[1::2]]).acceptance for some in (low, thrice)]
    alphas = [
        fit.alpha.value for fit in fits if isinstance(fit, AcceptanceFit) and isinstance(fit.alpha, Estimate)
    ]
    assert alphas[0] == pytest.approx(alphas[1], abs=1e-3)


def test_every_pool_is_decided_by_itself() -> None:
    """Two pools in one evidence come out as each alone; a finding of a third stays beside them."""
    other = [replace(w, pool="q") for w in pool_windows(3)]
    both = run_once(Evidence((*WINDOWS, *other)), State(), NOW + 1e4)
    assert [one.pool for one in both.pools] == ["p", "q"]
    alone = _decide(WINDOWS, now=NOW + 1e4)
    assert both.pools[0].schedule == alone.schedule
    assert isinstance(both.pools[0].plan, Plan)
