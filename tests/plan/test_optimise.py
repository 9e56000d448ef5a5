"""The optimisers against exhaustive search."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.plan.optimise import (
    UNDECIDED,
    best_columns,
    fewest_rises,
    most_plausible,
    rises,
    within_tie,
)

ROWS = 5
COLUMNS = 4
sets_of_rows = st.lists(
    st.lists(st.booleans(), min_size=COLUMNS, max_size=COLUMNS), min_size=1, max_size=ROWS
).map(np.array)
penalties = st.lists(
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 4.0, np.inf]), min_size=COLUMNS, max_size=COLUMNS),
    min_size=1,
    max_size=ROWS,
).map(np.array)


def tables(sets: np.ndarray) -> list[tuple[int, ...]]:
    """Return every choice of one member per row, rows without members left out."""
    members = [np.flatnonzero(row).tolist() for row in sets if row.any()]
    return list(product(*members))


def count_rises(table: tuple[int, ...] | list[int]) -> int:
    return sum(after > before for before, after in pairwise(table))


@given(sets_of_rows)
def test_fewest_rises_is_the_minimum(sets: np.ndarray) -> None:
    """No table of members rises less often, and undecided rows are those without a member."""
    choice = fewest_rises(sets)
    assert ((choice == UNDECIDED) == ~sets.any(axis=1)).all()
    decided = choice[choice != UNDECIDED].tolist()
    assert all(sets[row, column] for row, column in enumerate(choice) if column != UNDECIDED)
    assert count_rises(decided) == min(map(count_rises, tables(sets)), default=0)
    assert rises(choice).size == count_rises(decided)


@given(sets_of_rows)
def test_fewest_rises_takes_the_smallest_table_that_does_not_rise(sets: np.ndarray) -> None:
    """Where a table without a rise exists, the choice is the smallest one row by row."""
    flat = [table for table in tables(sets) if not count_rises(table)]
    choice = [column for column in fewest_rises(sets).tolist() if column != UNDECIDED]
    if flat and choice:
        assert choice == np.array(flat).min(axis=0).tolist()


@given(penalties, st.sampled_from([0.25, 1.0, 3.0]))
def test_most_plausible_is_the_minimum(penalty: np.ndarray, rise_cost: float) -> None:
    """No table has a smaller sum of penalties and rises."""
    choice = most_plausible(penalty, rise_cost)
    usable = np.isfinite(penalty)
    assert ((choice == UNDECIDED) == ~usable.any(axis=1)).all()
    kept = penalty[usable.any(axis=1)]
    if not len(kept):
        return

    def cost(table: tuple[int, ...] | list[int]) -> float:
        return float(sum(kept[row, k] for row, k in enumerate(table))) + rise_cost * count_rises(table)

    best = min(cost(table) for table in product(range(COLUMNS), repeat=len(kept)))
    assert cost(choice[choice != UNDECIDED].tolist()) == pytest.approx(best)


def test_best_column_is_the_smallest_of_equals() -> None:
    """Equal cells resolve to the shorter draft, closed cells never win, empty rows stay undecided."""
    log_mean = np.array([[1.0, 2.0, 2.0], [3.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    eligible = np.array([[True, True, True], [False, True, True], [False, False, False]])
    assert best_columns(log_mean, eligible).tolist() == [1, 1, UNDECIDED]


def test_tie_includes_its_edge() -> None:
    """A cell at exactly 99 % of the best is a tie at 1 %, one just below is not."""
    log_mean = np.log([[100.0, 99.0, 98.999]])
    assert within_tie(log_mean, np.ones((1, 3), bool), 0.01).tolist() == [[True, True, False]]


def test_no_tie_keeps_only_the_best() -> None:
    """At a tie of 0 only cells equal to the best stay."""
    log_mean = np.log([[100.0, 99.999, 100.0]])
    assert within_tie(log_mean, np.ones((1, 3), bool), 0.0).tolist() == [[True, False, True]]
