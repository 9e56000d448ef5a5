"""Sweep rows to cells: repeats, noise, holes, contexts, arms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.plan.published import chosen, codes, evidence, grid_rows, plan_rows, rows_at
from tuner._exceptions import InputError, SweepError
from tuner.fleet import NotEnoughData, SweepRow
from tuner.plan.goodput import CellState, GoodputTable
from tuner.plan.sweep import from_sweep
from tuner.plan.sweep_cells import BETWEEN_SD, WITHIN_SD

GRID = grid_rows(
    [1, 4, 16, 64], {0: [100, 390, 1400, 4000], 2: [200, 700, 2000, 3800], 4: [230, 720, 1700, 3000]}
)


def cell(table: GoodputTable, batch: int, draft_len: int) -> tuple[float, float, CellState]:
    """Return speed, log sd and state of a cell."""
    row, column = table.batches.tolist().index(batch), table.draft_lens.tolist().index(draft_len)
    return (
        math.exp(table.log_mean[row, column]),
        float(table.log_sd[row, column]),
        CellState(int(table.states[row, column])),
    )


def evidence_of(table: GoodputTable, code: str) -> dict[str, Any]:
    """Return the evidence of the table's only finding of a code."""
    (found,) = [finding for finding in table.findings if finding.code == code]
    return dict(found.evidence)


def test_single_runs_carry_a_stated_error() -> None:
    """A cell measured once is known to 2 %."""
    speed, sd, state = cell(from_sweep(GRID), 4, 2)
    assert (round(speed, 6), state) == (700, CellState.MEASURED)
    assert sd == pytest.approx(math.hypot(BETWEEN_SD, WITHIN_SD)) == pytest.approx(0.02, abs=0.0001)


def test_repeats_tell_the_noise() -> None:
    """Twenty cells of five repeats at 0.5 % noise: near the 1 % that runs differ by anyway, not 2 %."""
    rng = np.random.default_rng(0)
    rows = [
        SweepRow(batch, k, speed * float(np.exp(0.005 * rng.standard_normal())))
        for batch, k, speed, *_ in GRID
        for _ in range(5)
    ]
    _, sd, _ = cell(from_sweep(rows), 4, 2)
    assert BETWEEN_SD < sd < 0.0115
    noisy = [SweepRow(b, k or 0, s * float(np.exp(0.1 * rng.standard_normal()))) for b, k, s, *_ in GRID * 5]
    assert cell(from_sweep(noisy), 4, 2)[1] == pytest.approx(0.1 / math.sqrt(5), rel=0.3)


def test_one_stalled_repeat_moves_nothing() -> None:
    """The median of repeats stands, and the spread is a finding."""
    rows = [*GRID, *GRID, *GRID[:-1], SweepRow(64, 4, 300.0)]
    table = from_sweep(rows)
    assert cell(table, 64, 4)[0] == pytest.approx(3000)
    (finding,) = [finding for finding in table.findings if finding.code == "unsteady_cell"]
    assert finding.evidence["cells"] == [[64, 4, pytest.approx(9.0)]]


def test_order_of_rows_does_not_matter() -> None:
    """Shuffled rows give the same table."""
    rng = np.random.default_rng(1)
    rows = GRID * 3
    shuffled = [rows[place] for place in rng.permutation(len(rows))]
    assert from_sweep(shuffled).log_mean.tolist() == from_sweep(rows).log_mean.tolist()


def test_hole_in_the_middle_is_filled_beside_its_neighbours() -> None:
    """A missing cell follows the bend that the other draft lengths show, is wider, and is a finding."""
    rows = [row for row in GRID if (row.batch, row.draft_len) != (16, 2)]
    planned = plan_rows(rows)
    table = from_sweep(rows)
    speed, sd, state = cell(table, 16, 2)
    assert state is CellState.INTERPOLATED
    assert speed == pytest.approx(2000, rel=0.15)
    assert sd > 0.05
    assert evidence(planned, "sweep_hole")["cells"] == [[16, 2]]
    (entry,) = [entry for entry in planned.explain if entry.batch == 16]
    assert [choice.state for choice in entry.choices] == ["measured", "interpolated", "measured"]


def test_fill_takes_the_bend_from_other_draft_lengths() -> None:
    """Where all draft lengths bend alike the filled cell is exact; a straight line would be 41 % off."""
    bend = {1: 100.0, 2: 200.0, 4: 200.0}
    rows = [
        SweepRow(b, k, speed * (1 + k)) for b, speed in bend.items() for k in (0, 1, 2) if (b, k) != (2, 1)
    ]
    assert cell(from_sweep(rows), 2, 1)[0] == pytest.approx(400)


def test_cells_beyond_the_measured_batches_stay_unknown() -> None:
    """Draft length 4 was not measured at 64: it is not known there, not chosen, and said to be unknown."""
    rows = [row for row in GRID if (row.batch, row.draft_len) != (64, 4)]
    planned = plan_rows(rows)
    assert planned.explain[-1].unknown == (4,)
    assert "not measured here: draft length 4" in planned.explain[-1].why
    assert evidence(planned, "sweep_unknown_cells")["cells"] == [[64, 4]]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (rows_at(8, {3: 100.0}), "only draft length 3"),
        (grid_rows([1, 8, 64], {0: [1, 8, 64]}), "only draft length 0"),
        ([SweepRow(8, 2, 100.0, "schedule"), SweepRow(8, None, 90.0, "schedule")], "no batch size"),
        ([], "no batch size"),
    ],
)
def test_sweeps_without_a_comparison_are_no_schedule(rows: list[SweepRow], reason: str) -> None:
    """One draft length, or schedule arms alone: null with a reason, not a guess."""
    planned = plan_rows(rows)
    assert isinstance(planned.schedule, NotEnoughData)
    assert reason in planned.schedule.reason


def test_one_batch_size_gives_one_range_with_its_limits_named() -> None:
    """Everything below and above the one measured batch size is carried over, and said to be."""
    planned = plan_rows(rows_at(16, {0: 100, 2: 150}), max_batch=64)
    assert chosen(planned) == {16: 2}
    assert codes(planned) == {"batch_below_measured", "batch_beyond_measured", "noise_assumed"}


def test_sweep_without_none_claims_no_gain() -> None:
    """No draft length 0 anywhere: best among drafts, a finding, and no word of a gain."""
    planned = plan_rows([row for row in GRID if row.draft_len])
    assert "no_baseline" in codes(planned)
    assert all("over no speculation" not in entry.why for entry in planned.explain)


def test_engine_without_a_drafter_stands_in_for_none() -> None:
    """Arm none serves as draft length 0 where no constant 0 was measured, and only there."""
    rows = [
        *rows_at(8, {2: 150.0}),
        SweepRow(8, 0, 100.0, "none"),
        *rows_at(16, {0: 180.0, 2: 300.0}),
        SweepRow(16, 0, 200.0, "none"),
    ]
    table = from_sweep(rows)
    assert cell(table, 8, 0)[0] == pytest.approx(100)
    assert cell(table, 16, 0)[0] == pytest.approx(180)
    (tax,) = [finding for finding in table.findings if finding.code == "drafter_tax"]
    assert tax.evidence["cells"] == [{"batch": 16, "tax": pytest.approx(0.1)}]


def test_contexts_close_to_each_other_are_one() -> None:
    """Contexts of 812 to 1 150 tokens are repeats of one load, 4 000 is another."""
    rows = [
        SweepRow(8, k, speed, context=context)
        for k, speed, context in [(0, 100, 812), (2, 150, 900), (2, 152, 1150), (0, 80, 4000), (2, 100, 4100)]
    ]
    planned = plan_rows(rows, context_weights={1000: 1.0})
    (entry,) = planned.explain
    assert entry.choices[1].tokens_per_second == pytest.approx(151, rel=0.001)


def test_draft_length_missing_at_one_context_is_not_judged_on_the_easier_one() -> None:
    """4 was measured at short context only: it is unknown in the mix, instead of fast."""
    rows = [
        *rows_at(8, {0: 100, 2: 160, 4: 200}, context=500.0),
        *rows_at(8, {0: 60, 2: 80}, context=8000.0),
    ]
    planned = plan_rows(rows)
    assert chosen(planned) == {8: 2}
    assert planned.explain[0].unknown == (4,)


def test_context_with_one_draft_length_only_does_not_veto() -> None:
    """A context at which nothing can be compared is left out of the mix at that batch size."""
    rows = [*rows_at(8, {0: 100, 2: 160, 4: 200}, context=500.0), *rows_at(8, {0: 60}, context=8000.0)]
    assert chosen(plan_rows(rows)) == {8: 4}


def test_rows_without_a_context_are_left_out_where_others_state_theirs() -> None:
    """They could be of any context; the finding counts them."""
    rows = [*rows_at(8, {0: 100, 2: 160}, context=500.0), *rows_at(8, {2: 20})]
    planned = plan_rows(rows)
    assert chosen(planned) == {8: 2}
    assert evidence(planned, "context_unstated") == {"rows": 2 - 1}


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({}, "give shares"),
        ({500: -1.0}, "give shares"),
        ({500: 0.0}, "give shares"),
        ({500: float("nan")}, "give shares"),
        ({500: 0.7}, "shares sum to 0.7: make them sum to 1, or to 100"),
        ({500: 0.7, 4000: 0.7}, "shares sum to 1.4"),
        ({500: 70.0, 4000: 20.0}, "shares sum to 90"),
        ({1000: 1.0}, "no context 1000; it has 500, 3900 to 4100"),
        ({500: 0.5, 40000: 0.5}, "no context 40000"),
        ({-5: 1.0}, "no context -5"),
    ],
)
def test_bad_context_mix_is_refused(weights: dict[float, float], words: str) -> None:
    """Shares add up to 1 or 100, and every context was measured: nothing is rescaled or moved in silence."""
    rows = [*rows_at(8, {0: 1, 2: 2}, context=500.0), *rows_at(8, {0: 1}, context=3900.0)]
    rows += rows_at(8, {2: 2}, context=4100.0)
    with pytest.raises(InputError, match=words):
        from_sweep(rows, context_weights=weights)


@pytest.mark.parametrize(
    "weights", [{500: 0.66, 4000: 0.33}, {500: 66, 3900: 33}, {500: 1 / 1.5, 4100: 1 / 3}]
)
def test_shares_may_be_percentages_and_rounded(weights: dict[float, float]) -> None:
    """Two thirds and a third, written as people write them, are one mix."""
    rows = [*rows_at(8, {0: 100, 2: 150}, context=500.0), *rows_at(8, {0: 50, 2: 60}, context=3900.0)]
    rows += rows_at(8, {0: 50, 2: 60}, context=4100.0)
    speed, _, _ = cell(from_sweep(rows, context_weights=weights), 8, 0)
    assert speed == pytest.approx(1 / (2 / 300 + 1 / 150), rel=1e-6)


def test_mix_of_a_sweep_without_contexts_is_refused() -> None:
    """A mix that nothing in the file can follow is an error, not a decoration."""
    with pytest.raises(InputError, match="it has none: add a context column"):
        from_sweep(GRID, context_weights={1000: 1.0})


def test_assumed_noise_is_said_until_repeats_tell() -> None:
    """One run a cell: the assumed 2 % is a finding with its number; five repeats make it go."""
    (assumed,) = [finding for finding in from_sweep(GRID).findings if finding.code == "noise_assumed"]
    assert assumed.evidence == {"cell_sd_ratio": pytest.approx(0.02, abs=0.0005), "repeats": 0}
    assert "2.0 %" in assumed.message
    some = from_sweep([*GRID, *GRID[:2]])
    assert evidence_of(some, "noise_assumed")["repeats"] == 2
    assert "noise_assumed" not in {finding.code for finding in from_sweep([*GRID, *GRID[:5]]).findings}


def test_raw_logs_are_refused() -> None:
    """Thousands of batch sizes or dozens of draft lengths are no sweep."""
    with pytest.raises(SweepError, match="5000 different batch sizes, more than 4096"):
        from_sweep([SweepRow(batch, 0, 1.0) for batch in range(1, 5001)])
    with pytest.raises(SweepError, match="100 different draft lengths, more than 64"):
        from_sweep([SweepRow(8, k, 1.0) for k in range(100)])


def test_many_repeats_plan_as_few_do() -> None:
    """Two hundred thousand equal rows choose what a dozen of them choose."""
    planned = plan_rows(GRID * (200_000 // len(GRID)))
    assert list(chosen(planned).values()) == [4, 4, 2, 0]
    assert chosen(planned) == chosen(plan_rows(GRID))
