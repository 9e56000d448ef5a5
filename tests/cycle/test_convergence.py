"""From a cold start: what ten simulated minutes of a fleet teach, held against the simulator's truth."""

from __future__ import annotations

import pytest

from bench.convergence import SEEDS, learn


@pytest.mark.parametrize("seed", range(SEEDS))
def test_ten_minutes_teach_acceptance_crossover_and_schedule(seed: int) -> None:
    """Acceptance of each route is within 0.03, the crossover within 15 %, goodput within 2 % of the best."""
    rows = learn("demo", seed)
    assert [fault for row in rows for fault in row.faults] == []
    assert {route for row in rows for route in row.alphas} == {"chat", "tools"}


def test_one_draft_length_at_constant_load_cannot_say() -> None:
    """Acceptance is measured; crossover and schedule are refused with what they miss."""
    (row,) = learn("fixed", 0)
    ((fitted, truth),) = row.alphas.values()
    assert fitted == pytest.approx(truth, abs=0.03)
    assert row.crossover is None
    assert row.schedule is None
    assert "one draft length only" in row.why
    assert "only draft length 3 was measured" in row.why
