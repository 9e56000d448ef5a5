"""Known truth from simulated request streams: the simulator itself, and what the fit makes of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.recovery.acceptance_world import STEP_SECONDS, Traffic, World, simulate, truth
from tests.fit.counting import fit

UNEQUAL = Traffic(concentration=12.0)
WORLDS = {
    "constant": World(drafts=20_000, slots=8, window_steps=50),
    "unequal": World(drafts=20_000, slots=8, window_steps=50, traffic=UNEQUAL),
    "phases": World(
        drafts=20_000,
        slots=8,
        window_steps=50,
        request_steps=20,
        phases=4,
        traffic=Traffic(concentration=12.0, phase_concentration=12.0),
    ),
    "by tokens": World(drafts=20_000, slots=8, request_steps=40, traffic=UNEQUAL, by_tokens=True),
    "mixed": World(drafts=20_000, slots=8, traffic=UNEQUAL, draft_lens=(2, 4), plan="mixed"),
}


@pytest.mark.parametrize("name", WORLDS)
def test_simulator_agrees_with_its_own_truth(name: str) -> None:
    """Acceptances over true exposures converge to the closed-form hazards of the population."""
    evidence = simulate(WORLDS[name], 40, np.random.default_rng(7))
    seen = evidence.accepted.sum(axis=(0, 1)) / evidence.exposure.sum(axis=(0, 1))
    assert seen == pytest.approx(truth(WORLDS[name], evidence.other_share)[0], abs=0.006)


def test_simulator_counts_as_an_engine_does() -> None:
    """Every step of every slot is a draft; requests end at their rate; windows say which K ran."""
    world = replace(WORLDS["mixed"], dwell_steps=4.0)
    evidence = simulate(world, 3, np.random.default_rng(8))
    windows = evidence.windows(1)
    assert sum(one.counts.drafts or 0 for one in windows) == world.steps * world.slots
    assert windows[3].draft_lens == frozenset({2, 4})
    assert windows[3].seconds == pytest.approx(world.window_steps * STEP_SECONDS)
    finished = sum(one.counts.finished or 0 for one in windows)
    assert finished == pytest.approx(world.steps * world.slots / world.request_steps, rel=0.1)
    longest = max(one.counts.accepted_by_position[2] / (one.counts.drafts or 1) for one in windows)
    assert longest < 0.8  # position 2 is reached by the steps at K=4 only


@settings(max_examples=25, deadline=None)
@given(
    acceptance=st.floats(0.3, 0.95),
    concentration=st.sampled_from([8.0, 30.0, np.inf]),
    request_steps=st.floats(3.0, 40.0),
    lens=st.sampled_from([(1,), (3,), (1, 3), (2, 4)]),
    seed=st.integers(0, 2**32),
)
def test_any_honest_world_gives_finite_ordered_intervals(
    acceptance: float, concentration: float, request_steps: float, lens: tuple[int, ...], seed: int
) -> None:
    """Whatever the world, intervals are ordered, within 0..1, and within 6 half-widths of the truth."""
    world = World(
        traffic=Traffic(acceptance, concentration),
        drafts=4000,
        request_steps=request_steps,
        draft_lens=lens,
        plan="mixed" if len(lens) > 1 else "constant",
        dwell_steps=5.0,
    )
    evidence = simulate(world, 1, np.random.default_rng(seed))
    found = fit(evidence.windows(0))
    for one, wanted in zip(found.positions, truth(world, evidence.other_share)[0], strict=True):
        assert 0.0 <= one.low <= one.high <= 1.0
        if one.hazard is None:
            assert one.reason
            continue
        assert one.low <= one.hazard <= one.high
        # Three times the half-width of a 95 % interval: 1 in 10^8, a little more where blocks are few.
        assert abs(one.hazard - wanted) < 3 * max(one.high - one.hazard, one.hazard - one.low) + 0.01


@pytest.mark.parametrize("name", ["constant", "unequal", "mixed"])
def test_intervals_cover_the_truth(name: str) -> None:
    """A short form of the bench: 150 repetitions cover at 90-100 % (93-99 % with 2 000)."""
    world = replace(WORLDS[name], drafts=3000, slots=4, window_steps=25)
    evidence = simulate(world, 150, np.random.default_rng(11))
    wanted = truth(world, evidence.other_share)
    covered = np.zeros(wanted.shape)
    for rep in range(len(wanted)):
        for one in fit(evidence.windows(rep)).positions:
            covered[rep, one.position] = one.low <= wanted[rep, one.position] <= one.high
    assert np.all(covered.mean(axis=0) >= 0.90)
    assert not np.all(covered.mean(axis=0) == 1.0)


def test_three_lengths_are_never_read_low() -> None:
    """K in {1, 2, 4} changing every step: positions 1 and 2 are censored in every repetition."""
    world = World(drafts=3000, draft_lens=(1, 2, 4), plan="mixed", dwell_steps=1.0, window_steps=50)
    evidence = simulate(world, 20, np.random.default_rng(12))
    for rep in range(20):
        found = fit(evidence.windows(rep)).positions
        assert [one.state for one in found] == ["measured", "censored", "censored", "measured"]
        assert (found[1].low, found[1].high) == (0.0, 1.0)


def test_bench_breaks_when_a_bound_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bench's verdict follows its bounds: what 80-100 % holds, 101 % does not."""
    from bench.recovery import acceptance as bench

    monkeypatch.setenv("BENCH_COMMIT", "0" * 40)
    monkeypatch.setattr(bench, "LOWER", 0.8)  # 40 repetitions are sure to 4 %
    monkeypatch.setattr(bench, "UPPER", 1.0)
    case = bench.Case("easy", World(drafts=1500, window_steps=10, request_steps=3.0))
    row = bench.judge(case, 40)
    assert row["broken"] == []
    assert all(rate >= bench.LOWER for rate in row["covered"])
    monkeypatch.setattr(bench, "LOWER", 1.01)
    assert bench.judge(case, 40)["broken"] == [0, 1, 2, 3]
    monkeypatch.setattr(bench, "cases", lambda: iter([case]))
    monkeypatch.setattr("sys.argv", ["acceptance", "--repetitions", "5"])
    assert bench.main() == 1
