"""What is fitted to a thinned memory is what all windows would have said."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.recall.pool_world import START, good, minute_sums, run_pool
from tuner.cycle import Evidence, PoolDecision, PoolSettings, State, run_once
from tuner.fit.acceptance import AcceptanceFit, fit_acceptance
from tuner.fit.crossover import Crossover
from tuner.fleet import Estimate
from tuner.recall import Recall

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tuner.fleet import Window

ENGINES, WINDOWS, ROOM = 24, 480, 1500
"""Two hours of 24 engines, of which one window in eight is kept."""
HALF_LIFE = 3600.0
NOW = START + 15.0 * WINDOWS
STATE = State(default=PoolSettings(half_life_seconds=HALF_LIFE))


def _decide(windows: Iterable[Window]) -> PoolDecision:
    (decided,) = run_once(Evidence(tuple(windows)), STATE, NOW).pools
    return decided


def _remember(windows: Iterable[Window]) -> Recall:
    recall = Recall(ROOM, HALF_LIFE)
    recall.add(windows)
    return recall


def _parts(decided: PoolDecision) -> tuple[Estimate, list[Estimate], Crossover]:
    """Return alpha, hazards and crossover, all of which these worlds tell."""
    fit, crossover = decided.acceptance, decided.crossover
    assert isinstance(fit, AcceptanceFit)
    assert isinstance(fit.alpha, Estimate)
    assert isinstance(crossover, Crossover)
    hazards = [Estimate(p.hazard, p.low, p.high) for p in fit.positions if p.hazard is not None]
    assert len(hazards) == 4
    return fit.alpha, hazards, crossover


def _assert_alike(thinned: PoolDecision, whole: PoolDecision, relative: float) -> None:
    alpha, hazards, crossover = _parts(thinned)
    all_alpha, all_hazards, all_crossover = _parts(whole)
    for some, every in zip([alpha, *hazards], [all_alpha, *all_hazards], strict=True):
        assert some.value == pytest.approx(every.value, rel=relative)
        assert some.low <= every.value <= some.high
    assert crossover.low <= all_crossover.tokens <= crossover.high
    assert crossover.tokens == pytest.approx(all_crossover.tokens, rel=3 * relative)


@pytest.mark.parametrize("seed", range(3))
def test_thinning_moves_no_fit(seed: int) -> None:
    """Acceptance, hazards and crossover of one window in eight are those of all of them, to 1 % and 3 %.

    Acceptance falls with the batch and differs by draft length in this world: rare cells, which are kept
    beyond their share, do not pull it.
    """
    windows = run_pool(ENGINES, WINDOWS, seed)
    kept = _remember(windows).windows("p", NOW)
    assert len(kept) <= ROOM
    _assert_alike(_decide(kept), _decide(windows), 0.01)


def _accepting(window: Window, rate: float) -> Window:
    drafts = window.counts.drafts or 0.0
    counts = replace(window.counts, accepted=rate * drafts, accepted_by_position=(rate * drafts,))
    return replace(window, counts=counts)


def test_a_rare_cell_that_is_kept_whole_does_not_pull_acceptance() -> None:
    """Forty windows that accept 0.9 among 8000 at 0.5 stay forty in 8000: the weights see to it."""
    rare = [_accepting(good("e0", i, batch=16.0, draft_len=1), 0.9) for i in range(40)]
    common = [
        _accepting(good(f"e{e}", 40 + i, draft_len=1), 0.5 + 0.01 * (e % 3))
        for i in range(400)
        for e in range(20)
    ]
    recall = Recall(400, 1e9)
    recall.add([*rare, *common])
    kept = recall.windows("p", common[-1].end)
    assert sum(window.batch == 16.0 for window in kept) == len(rare)

    def alpha(windows: Iterable[Window]) -> float:
        fit = fit_acceptance(list(windows), pool="p")
        assert isinstance(fit, AcceptanceFit)
        assert isinstance(fit.alpha, Estimate)
        return fit.alpha.value

    whole = alpha([*rare, *common])
    assert alpha(kept) == pytest.approx(whole, rel=0.01)
    assert alpha(replace(window, weight=1.0) for window in kept) > whole + 0.05


def test_minute_sums_fit_like_the_windows_that_went_into_them() -> None:
    """Windows rolled up to a minute, as a store gives them back, yield the same fits."""
    windows = run_pool(6, 240, 5)
    sums = minute_sums(windows)
    assert len(sums) < 0.5 * len(windows)
    _assert_alike(_decide(sums), _decide(windows), 0.01)


def test_a_restart_fits_as_before() -> None:
    """A store that kept half an hour raw and the rest as sums over minutes gives the same fits back."""
    windows = run_pool(ENGINES, WINDOWS, 7)
    before = _decide(_remember(windows).windows("p", NOW))
    raw = [window for window in windows if window.start >= NOW - 1800]
    older = minute_sums(window for window in windows if window.start < NOW - 1800)
    after = _decide(_remember([*older, *raw]).windows("p", NOW))
    _assert_alike(after, before, 0.01)
