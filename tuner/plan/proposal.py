"""A schedule in the making: which cells are open, what is chosen, and who decided what."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from tuner.plan.optimise import UNDECIDED, best_columns

if TYPE_CHECKING:
    from tuner.fleet import Finding, Schedule
    from tuner.plan.goodput import Bools, GoodputTable, Ints


@dataclass(frozen=True, slots=True)
class Note:
    """What one post-processor decided, for the batch sizes of some rows."""

    by: str
    rows: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """State handed from one post-processor to the next; each returns a new one."""

    table: GoodputTable
    eligible: Bools
    """``(nb, nk)``: cells that may be chosen."""
    choice: Ints
    """``(nb,)`` columns, ``UNDECIDED`` where none is eligible."""
    ties: Bools
    """``(nb, nk)``: cells that count as good as the best eligible one."""
    unproven: Bools
    """``(nb,)``: speculation was not shown to beat none."""
    held: Schedule | None = None
    """The proposal that stands, or the active schedule, where it stays as it is."""
    wanted: Ints | None = None
    """``(nb,)`` columns that would have been chosen where a schedule was held."""
    notes: tuple[Note, ...] = ()
    findings: tuple[Finding, ...] = ()

    @classmethod
    def start(cls, table: GoodputTable) -> Self:
        """Open every cell that is known."""
        rows = table.batches.size
        nothing = np.zeros(rows, dtype=np.bool_)
        return cls(table, table.known, np.full(rows, UNDECIDED), np.zeros_like(table.known), nothing)

    def restrict(self, keep: Bools, by: str, text: str) -> Self:
        """Close the cells that ``keep`` does not hold, with a note where that changes anything."""
        closed = self.eligible & ~keep
        rows = np.flatnonzero(closed.any(axis=1))
        if not rows.size:
            return self
        return replace(self.noted(by, rows, text), eligible=self.eligible & keep)

    def optimised(self) -> Self:
        """Choose the best eligible cell at each batch size."""
        choice = best_columns(self.table.log_mean, self.eligible)
        ties = np.zeros_like(self.eligible)
        decided = np.flatnonzero(choice != UNDECIDED)
        ties[decided, choice[decided]] = True
        return replace(self, choice=choice, ties=ties)

    def chosen(self, choice: Ints, by: str, text: str) -> Self:
        """Take another choice, with a note on the rows that it changes."""
        rows = np.flatnonzero(choice != self.choice)
        return replace(self.noted(by, rows, text), choice=choice)

    def noted(self, by: str, rows: Ints, text: str) -> Self:
        """Add a note on some rows."""
        return replace(self, notes=(*self.notes, Note(by, tuple(rows.tolist()), text))) if rows.size else self

    def found(self, *findings: Finding) -> Self:
        """Add findings."""
        return replace(self, findings=(*self.findings, *findings))

    def draft_lens(self) -> list[int | None]:
        """Return the chosen draft length of each row, ``None`` where undecided."""
        lens = self.table.draft_lens.tolist()
        return [None if column == UNDECIDED else lens[column] for column in self.choice.tolist()]
