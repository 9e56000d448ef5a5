"""Published sweeps: the planner reaches what their authors, or their arithmetic, show."""

from __future__ import annotations

import math

import pytest

from tests.plan.published import chosen, codes, evidence, grid_rows, plan_rows, published, rows_at
from tuner.fleet import NotEnoughData, Schedule, SweepRow
from tuner.plan.sweep import from_sweep
from tuner.theory.acceptance import expected_tokens, hazards_from_survival

SWEEPS = published("published_sweeps")


def test_near_flat_optimum_gives_a_table_that_does_not_rise() -> None:
    """4,4,4,4,3,3,2 is within 1 % of the best everywhere and never rises; argmax jumps."""
    data = SWEEPS["sglang_autospec"]
    planned = plan_rows(grid_rows(data["batches"], data["tokens_per_second"]))
    assert list(chosen(planned).values()) == [4, 4, 4, 4, 3, 3, 2]
    worst = min(
        data["tokens_per_second"][k][place] / max(row[place] for row in data["tokens_per_second"].values())
        for place, k in enumerate(chosen(planned).values())
    )
    assert worst == pytest.approx(0.996, abs=0.0005)


def test_near_flat_optimum_without_the_tie_rule_chatters() -> None:
    """The strict best is 4,4,3,4,4,3,2 (the first of equals), which rises between batch 4 and 8."""
    data = SWEEPS["sglang_autospec"]
    rows = grid_rows(data["batches"], data["tokens_per_second"])
    planned = plan_rows(rows, without=frozenset({"tie", "monotone"}))
    assert list(chosen(planned).values()) == [4, 4, 3, 4, 4, 3, 2]


def test_thresholds_lie_where_the_lines_cross_or_halfway() -> None:
    """3 and 4 tie at batch 8 to 16, so 4 ends at 11 = sqrt(8*16); 3 and 2 cross between 32 and 64."""
    data = SWEEPS["sglang_autospec"]
    planned = plan_rows(grid_rows(data["batches"], data["tokens_per_second"]))
    assert isinstance(planned.schedule, Schedule)
    (_, first_end, _), (_, second_end, _), _ = planned.schedule.as_lists()
    gain, loss = math.log(2352 / 2297), math.log(3693 / 3555)
    assert first_end == math.floor(math.sqrt(8 * 16))
    assert second_end == math.floor(32 * 2 ** (gain / (gain + loss)))


def test_ceiling_of_acceptance_is_no_fault() -> None:
    """2.00 tokens a step at K=1 is the ceiling, not an impossible number; K=7 is the fastest."""
    data = SWEEPS["sglang_adaptive_high"]
    rows = [
        SweepRow(1, k, speed, acceptance_length=data["acceptance_length"].get(k))
        for k, speed in data["tokens_per_second"].items()
    ]
    planned = plan_rows(rows)
    assert chosen(planned) == {1: 7}
    assert "implausible_speedup" not in codes(planned)


def test_longest_accepted_is_not_fastest() -> None:
    """K=3 is chosen, not 7 with its higher acceptance length; the best constant leaves 3.0 %."""
    data = SWEEPS["sglang_glm_mtp"]
    rows = [*rows_at(2, data["tokens_per_second"]), SweepRow(2, None, data["adaptive"], "schedule")]
    planned = plan_rows(rows)
    assert max(data["acceptance_length"], key=data["acceptance_length"].get) == 7
    assert chosen(planned) == {2: 3}
    (cell,) = evidence(planned, "schedule_ahead")["cells"]
    assert cell["best_constant_draft_len"] == 3
    assert cell["regret"] == pytest.approx(0.030, abs=0.0005)
    assert "schedule_overhead" not in codes(planned)


def test_throughput_collapses_at_flat_acceptance() -> None:
    """At concurrency 256 every fixed length loses to none by 26-53 %, so 0, whatever the adaptive arm."""
    data = SWEEPS["vllm_deepseek_v4"]
    fixed = {k: data["none"] * (1 + loss) for k, loss in data["relative_to_none"].items()}
    rows = [
        *rows_at(256, fixed),
        SweepRow(256, 0, data["none"], "none"),
        SweepRow(256, None, data["adaptive"], "schedule"),
    ]
    assert chosen(plan_rows(rows)) == {256: 0}


def test_survival_adds_up_to_the_acceptance_length() -> None:
    """1 + the sum of the survivals is the published 4.35; acceptance given reached rises .71 to .88."""
    data = SWEEPS["vllm_dspark"]
    survival = [percent / 100 for percent in data["fixed_survival"]]
    hazards = hazards_from_survival(survival)
    assert expected_tokens(hazards) == pytest.approx(1 + sum(survival))
    assert expected_tokens(hazards) == pytest.approx(data["fixed_acceptance_length"], abs=0.005)
    assert hazards[0] == pytest.approx(0.7123)
    assert hazards[1:15].max() > 0.88


def test_one_constant_arm_beside_an_adaptive_one_is_no_schedule() -> None:
    """Fixed 16 and an adaptive arm 2.8 times as fast leave nothing to choose: null, and a finding."""
    data = SWEEPS["vllm_dspark"]
    rows = [
        SweepRow(64, data["fixed_draft_len"], data["fixed"], acceptance_length=4.35),
        SweepRow(64, None, data["adaptive"], "schedule", acceptance_length=3.76),
    ]
    planned = plan_rows(rows)
    assert isinstance(planned.schedule, NotEnoughData)
    assert planned.as_dict()["schedule"] is None
    assert {"not_enough_data", "schedule_ahead"} <= codes(planned)


@pytest.mark.parametrize("drafter", ["eagle1", "eagle3"])
def test_step_time_is_a_line_in_the_draft_length(drafter: str) -> None:
    """TPOT x acceptance length is 7.69 + 0.740 K and 8.35 + 1.016 K ms; best K 3 and 4."""
    data = SWEEPS["vllm_llama_eagle"]
    own = data[drafter]
    rows = [
        SweepRow(1, k, 1000 / tpot, acceptance_length=length, tpot_ms=tpot)
        for k, length, tpot in zip(data["draft_lens"], own["acceptance_length"], own["tpot_ms"], strict=True)
    ]
    planned = plan_rows(rows, tie=0.0)
    (line,) = evidence(planned, "step_time_line")["lines"]
    fixed, slope = own["step_time_line_ms"]
    assert line["fixed_ms"] == pytest.approx(fixed, abs=0.005)
    assert line["per_draft_token_ms"] == pytest.approx(slope, abs=0.0005)
    assert line["worst_residual_ms"] <= own["worst_residual_ms"] + 0.005
    assert line["no_speculation_ms"] == pytest.approx(7.07)
    assert 0.6 < line["drafter_fixed_ms"] < 1.3
    assert chosen(planned) == {1: own["best_draft_len"]}


def test_more_accepted_and_slower() -> None:
    """K=2 beats 4 and 7 at batch 1; the smaller draft is kept within a tie."""
    data = SWEEPS["vllm_llama_h100"]
    assert chosen(plan_rows(rows_at(1, data["tokens_per_second"]))) == {1: data["best_draft_len"]}


def test_table_below_its_own_arms_is_a_cost_of_the_mode() -> None:
    """A batch table slower than both of its constant arms is a finding; the arms choose K=0."""
    data = SWEEPS["vllm_gemma_context"]
    rows = [
        row
        for context, arms in data["contexts"].items()
        for row in (
            *rows_at(data["batch"], arms["static"], context=context),
            *(SweepRow(data["batch"], None, speed, "schedule", context) for speed in arms["schedule"]),
        )
    ]
    planned = plan_rows(rows)
    assert chosen(planned) == {256: 0}
    (cell,) = evidence(planned, "schedule_overhead")["cells"]
    assert cell["constant_draft_len"] == 3
    assert cell["ratio"] < 0.89
    assert "context_conflict" not in codes(planned)


def test_draft_length_that_hardly_matters_stays_short() -> None:
    """Suffix drafts of 5 and 12 are equal within 1 %: 5 everywhere."""
    data = SWEEPS["vllm_suffix"]
    speeds = {
        k: [1000 * batch / tpot for batch, tpot in zip(data["batches"], tpots, strict=True)]
        for k, tpots in data["tpot_ms"].items()
    }
    planned = plan_rows(grid_rows(data["batches"], speeds))
    assert set(chosen(planned).values()) == {5}
    assert "no_baseline" in codes(planned)


@pytest.mark.parametrize("name", [name for name, data in SWEEPS.items() if "tokens_per_second" in data])
def test_every_published_sweep_explains_each_batch(name: str) -> None:
    """Each measured batch size is explained, with an interval around every speed and a reason."""
    data = SWEEPS[name]
    if "batches" in data:
        rows = grid_rows(data["batches"], data["tokens_per_second"])
    else:
        rows = rows_at(data.get("batch", 1), data["tokens_per_second"])
    planned = plan_rows(rows)
    assert {entry.batch for entry in planned.explain} == {row.batch for row in rows}
    for entry in planned.explain:
        assert entry.why
        assert all(choice.low < choice.tokens_per_second < choice.high for choice in entry.choices)


def test_table_of_a_sweep_holds_what_was_measured() -> None:
    """The cells of the table are the published speeds."""
    data = SWEEPS["sglang_autospec"]
    table = from_sweep(grid_rows(data["batches"], data["tokens_per_second"]))
    assert table.interval(6, 1)[0] == pytest.approx(3693)
    assert table.supported.all()
