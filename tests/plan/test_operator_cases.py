"""What operators reported, as inputs of the planner."""

from __future__ import annotations

import pytest

from tests.plan.published import chosen, codes, evidence, grid_rows, plan_rows, published, rows_at
from tuner.fleet import Schedule, SweepRow
from tuner.theory.acceptance import expected_tokens, expected_tokens_geometric

CASES = published("operator_cases")


def graph_mode_rows(gain: float) -> list[SweepRow]:
    """Return arms in which 3 is best at batch 2 and 1 at batch 189, each by ``gain`` over constant 2."""
    data = CASES["graph_mode_tax"]
    rows = []
    for batch, none, taxed in zip(
        data["batches"], data["none_tpot_ms"], data["schedule_tpot_ms"], strict=True
    ):
        speed = 1000 * batch / none
        best, other = (3, 1) if batch == 2 else (1, 3)
        constant = {best: 1.5 * speed * (1 + gain), 2: 1.5 * speed, other: 1.2 * speed}
        rows += rows_at(batch, constant)
        rows += [SweepRow(batch, 0, speed, "none"), SweepRow(batch, 0, 1000 * batch / taxed, "schedule")]
    return rows


def test_b34_graph_mode_taxes_the_mode_not_a_draft_length() -> None:
    """Schedule at K=0 against off: +6.5 % and +21 % TPOT; 5 % of gain nets a loss, so constant 2 runs."""
    planned = plan_rows(graph_mode_rows(0.05))
    assert isinstance(planned.schedule, Schedule)
    assert planned.schedule.as_lists() == [[1, 189, 2]]
    found = evidence(planned, "schedule_not_worth_its_mode")
    assert found["constant_draft_len"] == 2
    assert found["gross_gain"] == pytest.approx(0.05, abs=0.001)
    assert found["net_gain"] < -0.01
    tax = [1 / ratio - 1 for ratio in found["speed_ratio_by_batch"].values()]
    assert tax == pytest.approx(CASES["graph_mode_tax"]["tax"], abs=0.001)
    assert "schedule_overhead" in codes(planned)


def test_b34_schedule_that_gains_more_than_its_mode_costs_stays() -> None:
    """With 30 % to gain at each batch size the schedule pays in spite of the tax."""
    planned = plan_rows(graph_mode_rows(0.30))
    assert list(chosen(planned).values()) == [3, 1]
    assert "a schedule still pays" in planned.explain[0].why


def test_b34_tax_is_ignored_where_the_step_is_switched_off() -> None:
    """Without the post-processor the draft lengths alone decide."""
    planned = plan_rows(graph_mode_rows(0.05), without=frozenset({"mode"}))
    assert list(chosen(planned).values()) == [3, 1]


def test_b35_collapse_past_a_threshold_is_a_cliff() -> None:
    """232 -> 24 tokens/s from batch 4 to 5 is named, kept as measured, and not smoothed into neighbours."""
    data = CASES["threshold_collapse"]
    rows = [SweepRow(batch, k, speed, "schedule") for batch, k, speed in data["schedule"]]
    rows += [SweepRow(batch, k, speed) for batch, k, speed in data["constant"]]
    (cliff,) = evidence(plan_rows(rows), "cliff")["cliffs"]
    assert (cliff["series"], cliff["from_batch"], cliff["to_batch"]) == ("schedule", 4, 5)
    assert cliff["ratio"] == pytest.approx(24 / 232)


def test_b35_collapse_without_arms_is_seen_and_not_chosen() -> None:
    """Read as constant arms: 2 is ten times as fast as 0 at batch 5, which no acceptance explains; 2 runs."""
    data = CASES["threshold_collapse"]
    rows = [SweepRow(batch, k, speed) for batch, k, speed in [*data["schedule"], *data["constant"]]]
    planned = plan_rows(rows)
    assert chosen(planned)[5] == 2
    assert chosen(planned)[8] == 2
    impossible = {"batch": 5, "draft_len": 2, "ratio": pytest.approx(10.0)}
    assert evidence(planned, "implausible_speedup")["cells"][0] == impossible
    alone = plan_rows([row for row in rows if (row.batch, row.draft_len) not in {(5, 2), (8, 2)}])
    assert {"best draft length"} == {cliff["series"] for cliff in evidence(alone, "cliff")["cliffs"]}


@pytest.mark.parametrize("alpha", [0.7, 0.5])
def test_b38_experts_make_verification_dear(alpha: float) -> None:
    """Tokens per ms by K at alpha .7 and .5 are as printed; best 2 and 0, where a flat cost says 7 and 4."""
    data = CASES["experts"]
    speeds = {k: expected_tokens_geometric(alpha, k) / ms for k, ms in data["step_ms"].items()}
    assert speeds == pytest.approx(data["tokens_per_ms"][alpha], rel=0.007)
    planned = plan_rows(rows_at(1, {k: 1000 * speed for k, speed in speeds.items()}))
    assert chosen(planned) == {1: data["best"][alpha]}
    flat = {k: 1000 * expected_tokens_geometric(alpha, k) / (10 + 0.4 * k) for k in data["step_ms"]}
    assert chosen(plan_rows(rows_at(1, flat), tie=0.0)) == {1: 7 if alpha == 0.7 else 4}


def test_b38_no_hill_climbing_over_a_dip() -> None:
    """At alpha .5 the speed is higher at 2 than at 1, and both are under 0: among drafts 2 is found."""
    data = CASES["experts"]
    speeds = {k: 1000 * expected_tokens_geometric(0.5, k) / ms for k, ms in data["step_ms"].items()}
    assert speeds[1] < speeds[2]
    del speeds[0]
    assert chosen(plan_rows(rows_at(1, speeds), tie=0.0)) == {1: 2}


def long_context_rows() -> list[SweepRow]:
    data = CASES["long_context"]["step_ms"]
    return [
        SweepRow(1, k, 1000 * (k + 1) / ms, context=float(context))
        for context, steps in data.items()
        for k, ms in steps.items()
    ]


def test_b39_contexts_are_mixed_by_milliseconds_per_token() -> None:
    """70 % of tokens at 1k, 30 % at 16k: 5.60 against 6.61 ms per token, so 0; averaged speeds say 1."""
    data = CASES["long_context"]
    planned = plan_rows(long_context_rows(), context_weights=data["mix"])
    assert chosen(planned) == {1: 0}
    (entry,) = planned.explain
    per_token = {choice.draft_len: 1000 / choice.tokens_per_second for choice in entry.choices}
    assert per_token == pytest.approx(data["mixed_ms_per_token"], abs=0.015)
    (conflict,) = evidence(planned, "context_conflict")["conflicts"]
    assert conflict["best_by_context"] == {"1000": 1, "16000": 0}
    assert conflict["best_of_mix"] == 0


def test_b39_short_contexts_alone_speculate() -> None:
    """All tokens at 1k: K=1 gains 79 %; the conflict with 16k is still named."""
    planned = plan_rows(long_context_rows(), context_weights={1000: 1.0})
    assert chosen(planned) == {1: 1}
    assert "78.6 % faster than no speculation" in planned.explain[0].why
    assert "context_conflict" in codes(planned)


def test_b40_gain_shrinks_at_equal_throughput() -> None:
    """A cheaper step lowers the gain from 1.60 to 1.36 at the same .160 tokens per ms: still 3, no alarm."""
    data = CASES["quantised_cache"]
    gains = []
    for state in (data["before"], data["after"]):
        tokens = expected_tokens_geometric(state["alpha"], 3)
        assert tokens == pytest.approx(state["tokens_per_step"], abs=0.001)
        assert tokens == pytest.approx(expected_tokens([state["alpha"]] * 3))
        planned = plan_rows(rows_at(1, {0: 1000 / state["none_ms"], 3: 1000 * tokens / state["draft_ms"]}))
        assert chosen(planned) == {1: 3}
        (entry,) = planned.explain
        gains.append(entry.choices[1].tokens_per_second / entry.choices[0].tokens_per_second)
        assert entry.choices[1].tokens_per_second == pytest.approx(160.2, abs=0.1)
        assert codes(planned) == {"max_batch_unknown", "noise_assumed"}
    assert gains == pytest.approx([data["before"]["gain"], data["after"]["gain"]], abs=0.01)


def test_experts_may_rise_with_the_batch() -> None:
    """Where the data insist, the draft length rises with the batch, with a finding that says so."""
    rows = grid_rows([1, 4, 16], {0: [100, 300, 800], 2: [90, 330, 1100], 4: [80, 280, 1250]})
    planned = plan_rows(rows)
    assert list(chosen(planned).values()) == [0, 2, 4]
    assert evidence(planned, "draft_len_rises_with_batch")["above_batches"] == [1, 4]
