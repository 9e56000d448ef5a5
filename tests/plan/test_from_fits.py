"""Fits to a goodput table: the formula, prefill, what each cell rests on, and a real pair of fits."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plan.engine_windows import engine_windows
from tests.plan.published import chosen
from tuner.fit.acceptance import AcceptanceFit, fit_acceptance
from tuner.fit.step_time import StepTimeFit, fit_step_time
from tuner.fleet import NotEnoughData, Schedule
from tuner.plan.from_fits import from_fits, planning_batches, table_from_fits
from tuner.plan.goodput import CellState, GoodputTable
from tuner.plan.options import PlanOptions
from tuner.plan.planner import Plan, plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tuner.fleet import Window

    Floats = NDArray[np.float64]

HAZARDS = (0.8, 0.72, 0.66, 0.6)
RATIO = 0.5
BATCHES = (1, 2, 4, 8, 16, 32, 64)


class Emitted:
    """Tokens per step of known hazards, exact."""

    def emitted_moments(self, draft_lens: Sequence[int]) -> tuple[Floats, Floats, Floats]:
        tokens = np.array([expected(k) for k in draft_lens])
        return tokens, np.log(tokens), np.zeros((tokens.size, tokens.size))

    def drafted_per_step(self, draft_len: int) -> float:
        return float(draft_len)


class Seconds:
    """10 ms and 0.1 ms a token, prompt tokens included, off by 2 % at all K; remembers what it was asked."""

    def __init__(self) -> None:
        self.prompt_tokens: Floats = np.empty(0)

    def log_seconds_moments(
        self,
        batch: Floats,
        draft_len: Floats,
        prompt_tokens: Floats,
        context_tokens: Floats | None,  # noqa: ARG002
    ) -> tuple[Floats, Floats]:
        self.prompt_tokens = prompt_tokens
        seconds = 0.01 + 1e-4 * (batch[:, None] * (draft_len[None, :] + 1) + prompt_tokens)
        return np.log(seconds), np.full((batch.size, draft_len.size, draft_len.size), 0.02**2)


def expected(draft_len: int) -> float:
    return float(1 + np.cumprod(HAZARDS[:draft_len]).sum())


def step_seconds(tokens: float, draft_len: int) -> float:
    return 0.01 * float(np.hypot(1, tokens / 100)) + 0.0004 * draft_len


def goodput(batch: int, draft_len: int, ratio: float) -> float:
    tokens = batch * expected(draft_len)
    return tokens / step_seconds(batch * (draft_len + 1) + tokens * ratio, draft_len)


def fitted(
    draft_lens: Sequence[int], options: PlanOptions | None = None, ratio: float = RATIO
) -> GoodputTable:
    """Fit an engine that ran some draft lengths."""
    windows = engine_windows(draft_lens, BATCHES, HAZARDS, step_seconds, prompt_per_output=ratio)
    acceptance, step_time = fit_acceptance(windows, pool="p"), fit_step_time(windows)
    table = table_from_fits(acceptance, step_time, windows, options or PlanOptions())
    assert isinstance(table, GoodputTable)
    return table


def test_goodput_is_batch_times_tokens_over_seconds_at_steady_prefill() -> None:
    """N holds the prompt tokens that the emitted ones bring with them; shared errors stay shared."""
    seconds = Seconds()
    table = from_fits(Emitted(), seconds, [1, 16], [0, 2], prompt_tokens_per_output_token=3.0)
    assert seconds.prompt_tokens[1, 1] == pytest.approx(16 * expected(2) * 3)
    tokens = 16 * expected(2)
    assert table.interval(1, 1)[0] == pytest.approx(tokens / (0.01 + 1e-4 * (48 + 3 * tokens)), rel=1e-9)
    assert table.log_sd[1, 1] == pytest.approx(0.02)
    assert table.gain_over_none()[1][1, 1] < 1e-6


@pytest.mark.parametrize(("first", "last"), [(1, 1), (1, 3), (2, 60), (7, 256), (1, 1024)])
def test_planning_batches_step_by_a_quarter(first: int, last: int) -> None:
    """From the smallest to the largest measured one, in steps of 1 or a quarter."""
    batches = planning_batches([last, first])
    assert (batches[0], batches[-1]) == (first, last)
    steps = np.diff(batches)
    assert ((steps <= 1) | (batches[1:] <= 1.25 * batches[:-1] + 1)).all()


@given(st.lists(st.integers(1, 300), min_size=1, max_size=8), st.integers(1, 300))
def test_one_more_batch_size_measured_moves_no_row(measured: list[int], more: int) -> None:
    """Rows of the grid hang on nothing but the range: a further batch size only adds."""
    assert set(planning_batches(measured)) <= set(planning_batches([*measured, more]))


def test_real_fits_predict_the_engine() -> None:
    """Every cell of an engine that ran 0 to 4 is within 5 %, and within its own interval 19 times in 20."""
    table = fitted([0, 1, 2, 3, 4])
    assert table.subject == {"pool": "p", "route": "*"}
    truth = np.array([[goodput(int(b), int(k), RATIO) for k in table.draft_lens] for b in table.batches])
    error = table.log_mean - np.log(truth)
    assert np.abs(error).max() < 0.05
    assert np.median(np.abs(error)) < 0.01
    assert (np.abs(error) < 1.96 * table.log_sd + 0.002).mean() > 0.9


def test_real_fits_choose_the_optimum() -> None:
    """The schedule of the fits loses at most 2 % to the true optimum at any batch size."""
    planned = plan(fitted([0, 1, 2, 3, 4]))
    assert isinstance(planned.schedule, Schedule)
    for batch in range(1, 65):
        speeds = [goodput(batch, k, RATIO) for k in range(5)]
        assert speeds[planned.schedule.draft_len_at(batch)] > 0.97 * max(speeds)
    assert [entry.batch for entry in planned.explain] == list(BATCHES)


def test_prefill_shortens_drafts() -> None:
    """More prompt tokens per output token use up the compute: drafts get shorter at like batch."""
    light, heavy = (chosen(plan(fitted([0, 1, 2, 3, 4], ratio=ratio))) for ratio in (0.0, 4.0))
    assert all(heavy[batch] <= light[batch] for batch in BATCHES)
    assert sum(heavy.values()) < sum(light.values())


def test_draft_lengths_between_those_that_ran_are_shown_and_not_scheduled() -> None:
    """From 0, 2 and 4 the positions tell 1 and 3, but nobody knows that the engine can run them."""
    table = fitted([0, 2, 4])
    row = table.batches.tolist().index(8)
    states = [CellState(int(state)) for state in table.states[row]]
    assert states[0] == states[2] == states[4] == CellState.MEASURED
    assert states[1] == states[3] == CellState.EXTRAPOLATED
    assert table.unknown == {1: "draft length 1 never ran", 3: "draft length 3 never ran"}
    assert set(chosen(plan(table)).values()) <= {0, 2, 4}


def test_b37_longer_drafts_than_ran_are_not_climbed_to() -> None:
    """From 0 and 1 alone 2 to 4 are extrapolated, wide, named, and not chosen."""
    options = PlanOptions(allowed_draft_lens=frozenset(range(5)))
    table = fitted([0, 1], options)
    assert set(table.unknown) == {2, 3, 4}
    row = table.batches.tolist().index(1)
    assert [CellState(int(state)) for state in table.states[row, 2:]] == [CellState.EXTRAPOLATED] * 3
    assert table.log_sd[row, 4] > 5 * table.log_sd[row, 1]
    planned = plan(table, options)
    assert set(chosen(planned).values()) <= {0, 1}
    assert planned.explain[0].unknown == (2, 3, 4)


@cache
def steady_fits() -> tuple[list[Window], AcceptanceFit, StepTimeFit]:
    """Fit an engine that ran 0, 1, 2 and 4 at batch 2 to 64."""
    windows = engine_windows([0, 1, 2, 4], BATCHES[1:], HAZARDS, step_seconds, prompt_per_output=RATIO)
    acceptance, step_time = fit_acceptance(windows, pool="p"), fit_step_time(windows)
    assert isinstance(acceptance, AcceptanceFit)
    assert isinstance(step_time, StepTimeFit)
    return windows, acceptance, step_time


def planned_with(max_batch: int | None, allowed: set[int] | None) -> Plan:
    """Plan the steady engine under some limits."""
    windows, acceptance, step_time = steady_fits()
    options = PlanOptions(
        max_batch=max_batch, allowed_draft_lens=None if allowed is None else frozenset(allowed)
    )
    table = table_from_fits(acceptance, step_time, windows, options)
    assert isinstance(table, GoodputTable)
    return plan(table, options)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 4000), st.sets(st.integers(5, 12)))
def test_limits_move_no_cell_and_no_threshold(max_batch: int, more: set[int]) -> None:
    """One recording, one answer: the largest batch and longer drafts allowed change the tail alone."""
    whole, cut = planned_with(None, None), planned_with(max_batch, {0, 1, 2, 3, 4, *more})
    assert isinstance(whole.schedule, Schedule)
    assert isinstance(cut.schedule, Schedule)
    last = cut.schedule.max_batch
    assert last == max_batch
    shared = range(1, min(last, 64) + 1)
    assert [cut.schedule.draft_len_at(b) for b in shared] == [whole.schedule.draft_len_at(b) for b in shared]
    speeds = {(e.batch, c.draft_len): c for e in cut.explain for c in e.choices}
    for entry in whole.explain[: len(cut.explain)]:
        for choice in entry.choices:
            other = speeds[entry.batch, choice.draft_len]
            assert [other.tokens_per_second, other.low, other.high] == pytest.approx(
                [choice.tokens_per_second, choice.low, choice.high], rel=1e-9
            )


@pytest.mark.parametrize("max_batch", [65, 80, 512, 4000])
def test_beyond_the_largest_batch_measured_the_last_draft_length_is_kept(max_batch: int) -> None:
    """Nothing is predicted past the measured loads; the finding names the first and the last without one."""
    planned = planned_with(max_batch, None)
    assert isinstance(planned.schedule, Schedule)
    assert (planned.proposal.table.batches[0], planned.proposal.table.batches[-1]) == (2, 64)
    kept = planned.schedule.draft_len_at(64)
    assert {planned.schedule.draft_len_at(batch) for batch in range(64, max_batch + 1)} == {kept}
    beyond = next(finding for finding in planned.findings if finding.code == "batch_beyond_measured")
    assert (
        f"{'batch size 65 was' if max_batch == 65 else f'batch sizes 65 to {max_batch} were'} not measured"
        in (beyond.message)
    )
    assert beyond.evidence["first"] == 65
    assert beyond.evidence["max_batch"] == max_batch


def test_below_the_smallest_batch_measured_its_draft_length_holds() -> None:
    """Batch 1 was not measured: it runs what batch 2 runs, and a finding says so."""
    planned = planned_with(64, None)
    assert isinstance(planned.schedule, Schedule)
    assert planned.schedule.draft_len_at(1) == planned.schedule.draft_len_at(2)
    assert {finding.code for finding in planned.findings} == {"batch_below_measured"}


def test_one_draft_length_alone_is_no_schedule() -> None:
    """An engine at constant 3 tells what 3 costs and no more."""
    planned: Plan = plan(fitted([3]))
    assert isinstance(planned.schedule, NotEnoughData)
    assert "only draft length 3" in planned.schedule.reason


def test_missing_fits_pass_their_reason_on() -> None:
    """Without acceptance or step time the table is their reason."""
    windows = engine_windows([0, 2], (1, 8), HAZARDS, step_seconds)
    reason = NotEnoughData("no drafts", 0, 20)
    acceptance, step_time = fit_acceptance(windows, pool="p"), fit_step_time(windows)
    assert table_from_fits(reason, step_time, windows, PlanOptions()) is reason
    assert table_from_fits(acceptance, reason, windows, PlanOptions()) is reason


def test_one_load_at_one_draft_length_predicts_no_other() -> None:
    """From one batch at K=3 nobody knows what a token costs: no number for 0 to 2, not even a wide one."""
    windows = engine_windows([3], (12,), HAZARDS, step_seconds)
    acceptance, step_time = fit_acceptance(windows, pool="p"), fit_step_time(windows)
    table = table_from_fits(acceptance, step_time, windows, PlanOptions())
    assert isinstance(table, GoodputTable)
    assert table.batches.tolist() == [12]
    assert table.known.tolist() == [[False, False, False, True]]
