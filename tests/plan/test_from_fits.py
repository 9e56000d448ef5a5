"""Fits to a goodput table: the formula, prefill, what each cell rests on, and a real pair of fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.plan.engine_windows import engine_windows
from tests.plan.published import chosen
from tuner.fit.acceptance import fit_acceptance
from tuner.fit.step_time import fit_step_time
from tuner.fleet import NotEnoughData, Schedule
from tuner.plan.from_fits import from_fits, planning_batches, table_from_fits
from tuner.plan.goodput import CellState, GoodputTable
from tuner.plan.options import PlanOptions
from tuner.plan.planner import Plan, plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

HAZARDS = (0.8, 0.72, 0.66, 0.6)
RATIO = 0.5
BATCHES = (1, 2, 4, 8, 16, 32, 64)


class Emitted:
    """Tokens per step of known hazards, exact."""

    def emitted_draws(self, draft_lens: Sequence[int], size: int, rng: np.random.Generator) -> Floats:  # noqa: ARG002
        return np.tile([expected(k) for k in draft_lens], (size, 1))


class Seconds:
    """10 ms and 0.1 ms a token, prompt tokens included; remembers what it was asked."""

    def __init__(self) -> None:
        self.prompt_tokens: Floats = np.empty(0)

    def seconds_draws(
        self,
        batch: Floats,
        draft_len: Floats,
        prompt_tokens: Floats,
        context_tokens: Floats | None,  # noqa: ARG002
        size: int,
        rng: np.random.Generator,
    ) -> Floats:
        self.prompt_tokens = prompt_tokens
        seconds = 0.01 + 1e-4 * (batch[:, None] * (draft_len[None, :] + 1) + prompt_tokens)
        return seconds[None] * np.exp(0.02 * rng.standard_normal((size, 1, 1)))


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
    table = from_fits(Emitted(), seconds, [1, 16], [0, 2], prompt_tokens_per_output_token=3.0, size=4000)
    assert seconds.prompt_tokens[1, 1] == pytest.approx(16 * expected(2) * 3)
    tokens = 16 * expected(2)
    assert table.interval(1, 1)[0] == pytest.approx(tokens / (0.01 + 1e-4 * (48 + 3 * tokens)), rel=0.002)
    assert table.log_sd[1, 1] == pytest.approx(0.02, rel=0.1)
    assert table.gain_over_none()[1][1, 1] < 1e-6


def test_same_seed_same_table() -> None:
    """Equal fits give equal tables; another seed gives others."""
    one, two = (from_fits(Emitted(), Seconds(), [1, 16], [0, 2]) for _ in range(2))
    assert one.log_mean.tolist() == two.log_mean.tolist()
    other = from_fits(Emitted(), Seconds(), [1, 16], [0, 2], seed=1)
    assert other.log_mean.tolist() != one.log_mean.tolist()


@pytest.mark.parametrize("last", [1, 2, 3, 8, 60, 256, 1024])
def test_planning_batches_step_by_a_quarter(last: int) -> None:
    """From 1 to the last one, in steps of 1 or a quarter, with the measured ones among them."""
    batches = planning_batches(last, [last, 1])
    assert (batches[0], batches[-1]) == (1, last)
    steps = np.diff(batches)
    assert ((steps <= 1) | (batches[1:] <= 1.25 * batches[:-1] + 1)).all()
    assert 7 in planning_batches(256, [7])


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


def test_batches_beyond_the_measured_are_extrapolated() -> None:
    """Up to 512 where 64 was the largest: tokens in flight beyond 1.5 times those seen are marked."""
    table = fitted([0, 1, 2, 3, 4], PlanOptions(max_batch=512))
    assert table.batches[-1] == 512
    assert (table.states[-1] == CellState.EXTRAPOLATED).all()
    planned = plan(table, PlanOptions(max_batch=512))
    assert isinstance(planned.schedule, Schedule)
    assert planned.schedule.max_batch == 512
    assert [entry.batch for entry in planned.explain] == list(BATCHES)
    assert {finding.code for finding in planned.findings} == {"batch_beyond_measured"}


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
