"""Timing cells: which windows count, how they are grouped, what noise they carry."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.recovery.step_time_world import make_windows
from tuner.fit.cells import EDGE_VARIANCE, build_cells, mix_spread, usable_draft_len
from tuner.fleet import Fingerprint, Window, WindowState


def _run(batch: list[float], draft_len: list[float], seconds: list[float]) -> list[Window]:
    return make_windows(np.array(batch), np.array(draft_len), np.array(seconds))


def test_consecutive_windows_at_one_batch_and_draft_length_are_one_cell() -> None:
    """Blocks end where K or the batch changes; a cell's step time is total wall time over total steps."""
    cells = build_cells(_run([8, 8.2, 8, 8, 16], [2, 2, 3, 3, 3], [0.02, 0.022, 0.03, 0.03, 0.04]))
    assert cells.draft_len.tolist() == [2, 3, 3]
    assert cells.windows.tolist() == [2, 2, 1]
    assert cells.seconds[0] == pytest.approx(30 / (15 / 0.02 + 15 / 0.022))
    assert cells.tokens[1] == pytest.approx(8 * 4)


def test_prompt_tokens_are_tokens_in_flight() -> None:
    """N is B (K + 1) plus the prompt tokens computed per step, not the decode tokens alone."""
    windows = make_windows(np.full(3, 4.0), np.full(3, 1.0), np.full(3, 0.01), prompt=np.full(3, 25.0))
    assert build_cells(windows).tokens.tolist() == pytest.approx([4 * 2 + 25])


def test_blocks_are_cut_in_order_of_time_per_engine() -> None:
    """Two engines scraped at once do not interleave, and the order of the windows given is nothing."""
    one = _run([8] * 3, [2] * 3, [0.02] * 3)
    two = [replace(window, engine="e1") for window in _run([8] * 3, [2] * 3, [0.04] * 3)]
    mixed = [window for pair in zip(two, one, strict=True) for window in pair][::-1]
    cells = build_cells(mixed)
    assert cells.engine == ("e0", "e1")
    assert cells.seconds.tolist() == pytest.approx([0.02, 0.04])


def test_hours_at_one_place_are_many_cells() -> None:
    """A long stay is cut into blocks, since a machine's speed does not hold still for it."""
    cells = build_cells(_run([8] * 95, [2] * 95, [0.02] * 95))
    assert len(cells) == 10


@pytest.mark.parametrize("state", [s for s in WindowState if s is not WindowState.GOOD])
def test_only_good_windows_are_evidence(state: WindowState) -> None:
    """Idle, transition, partial and suspect windows are counted with their state and not fitted."""
    windows = _run([8] * 4, [2] * 4, [0.02] * 4)
    windows[1] = replace(windows[1], state=state)
    cells = build_cells(windows)
    assert cells.windows.sum() == 3
    assert cells.left_out == {f"window is {state.value}": 1}


def test_windows_without_what_a_step_time_needs_are_left_out_with_their_reason() -> None:
    """Untold counters, no steps, too few steps and unknown mixes each say why, and none becomes 0."""
    good = _run([8] * 6, [2] * 6, [0.02] * 6)
    windows = [
        replace(good[0], counts=replace(good[0].counts, prompt_tokens=None)),
        replace(good[1], counts=replace(good[1].counts, steps=0.0)),
        replace(good[2], counts=replace(good[2].counts, steps=3.0)),
        replace(good[3], draft_lens=None),
        replace(good[4], draft_lens=frozenset({1, 4})),
        good[5],
    ]
    cells = build_cells(windows)
    assert cells.windows.sum() == 1
    assert cells.left_out == {
        "steps or tokens in flight untold": 2,
        "fewer than 5 steps": 1,
        "mix of unknown draft lengths": 1,
        "mix of draft lengths too far apart": 1,
    }


def test_a_window_that_drafted_half_the_time_is_no_evidence_for_its_draft_length() -> None:
    """A window said to run K = 3 whose steps drafted only half the time mixes K = 0 and 3."""
    (window,) = _run([8], [3], [0.02])
    counts = replace(window.counts, drafts=375 * 8.0, draft_tokens=3 * 375 * 8.0)
    assert usable_draft_len(window) == 3
    assert usable_draft_len(replace(window, counts=counts)) == "mix of draft lengths 0 and above"


def test_a_mix_of_neighbours_stands_between_them() -> None:
    """Half the steps at K = 2 and half at 3 cost what is half way between, so K is 2.5, and not pure."""
    (window,) = _run([8], [2], [0.02])
    half = replace(window.counts, draft_tokens=2.5 * 750 * 8)
    mixed = replace(window, counts=half, draft_lens=frozenset({2, 3}))
    assert usable_draft_len(mixed) == pytest.approx(2.5)
    assert not build_cells([mixed]).pure.any()


def test_a_silent_ngram_drafter_is_no_mix() -> None:
    """An n-gram drafter proposes only where something matches: a step costs what it did propose."""
    (window,) = _run([8], [3], [0.02])
    quiet = replace(window, counts=replace(window.counts, drafts=900.0, draft_tokens=2700.0))
    ngram = replace(quiet, fingerprint=Fingerprint(engine="vllm", method="ngram"))
    assert usable_draft_len(ngram) == pytest.approx(2700.0 / (window.counts.request_steps or 0.0))
    assert usable_draft_len(replace(ngram, draft_lens=None)) == pytest.approx(0.45)


def test_an_outlier_inside_a_block_is_left_out_of_it() -> None:
    """One window twice as slow as nine others of its block does not move the block."""
    rng = np.random.default_rng(3)
    seconds = 0.02 * np.exp(rng.normal(0, 0.01, 30))
    seconds[4] = 0.04
    cells = build_cells(make_windows(np.full(30, 8.0), np.full(30, 2.0), seconds))
    assert cells.left_out == {"outlier within its block": 1}
    assert np.allclose(cells.seconds, 0.02, rtol=0.01)
    assert 0.005 < cells.within < 0.02


def test_cut_steps_cancel_inside_a_block_and_count_once_per_run() -> None:
    """Windows that share a scrape share its cut step: the error is one step's over the block."""
    windows = _run([8] * 4, [2] * 4, [0.5] * 4)
    whole = build_cells(windows)
    assert whole.edge_variance[0] == pytest.approx(EDGE_VARIANCE / 120**2)
    gap = build_cells([windows[0], windows[2]])
    assert gap.edge_variance[0] == pytest.approx(EDGE_VARIANCE * 2 / 60**2)


def test_a_change_of_context_ends_a_block() -> None:
    """Short and long contexts at one batch and K are different cells: their steps cost differently."""
    context = np.array([1e3] * 3 + [1.6e4] * 3)
    cells = build_cells(make_windows(np.ones(6), np.zeros(6), np.full(6, 0.01), context=context))
    assert cells.context.tolist() == pytest.approx([1e3, 1.6e4])


def test_a_mix_of_near_draft_lengths_stands_for_its_mean_with_room_for_what_it_hides() -> None:
    """Steps at K = 2 and 4 in one window, as at the threshold of a schedule, cost what K = 3 does to 2 %."""
    (window,) = _run([8], [3], [0.02])
    mixed = replace(window, draft_lens=frozenset({2, 4}))
    cells = build_cells([mixed])
    assert cells.draft_len.tolist() == [3.0]
    assert not cells.pure.any(), "no step ran K = 3"
    assert cells.root[0] == pytest.approx((2**0.5 + 4**0.5) / 2)
    assert cells.mix[0] == pytest.approx(0.25 * np.log(5 / 3) ** 2)
    assert cells.sampling_variance[0] > build_cells([window]).sampling_variance[0]
    assert usable_draft_len(replace(window, draft_lens=frozenset({0, 1, 12}))) == (
        "mix of draft lengths too far apart"
    )


def test_three_draft_lengths_spread_less_than_the_outermost_two() -> None:
    """Mean 2 of K = 1, 2 and 4 may be all steps at 2: the spread is taken between that and none at 2."""
    spread = mix_spread({1, 2, 4}, 2.0)
    assert 0 < spread < mix_spread({1, 4}, 2.0)
    assert mix_spread({1, 4}, 2.0) == pytest.approx(2 / 9 * np.log(5 / 2) ** 2)
    assert mix_spread({3}, 3.0) == 0
