"""Why a plan is what it is: per batch size the predicted speeds, what decided, what is unknown."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.plan.goodput import Z95, CellState
from tuner.plan.optimise import UNDECIDED
from tuner.plan.words import listed, percent

if TYPE_CHECKING:
    from tuner.fleet import Schedule
    from tuner.plan.goodput import Floats
    from tuner.plan.proposal import Proposal


@dataclass(frozen=True, slots=True)
class Choice:
    """Predicted speed of one draft length, with its 95 % interval."""

    draft_len: int
    tokens_per_second: float
    low: float
    high: float
    state: str
    """``measured``, ``interpolated`` or ``extrapolated``."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is known and what was decided at one batch size."""

    batch: int
    draft_len: int
    """What the schedule runs there."""
    first: int
    last: int
    """The range of the schedule that the batch size falls into."""
    choices: tuple[Choice, ...]
    unknown: tuple[int, ...]
    """Draft lengths of the table without evidence here: not known, or extrapolated."""
    why: str

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form of the contract."""
        return {
            "batch": self.batch,
            "draft_len": self.draft_len,
            "range": [self.first, self.last],
            "choices": [
                {
                    "draft_len": choice.draft_len,
                    "tokens_per_second": _rounded(choice.tokens_per_second),
                    "low": _rounded(choice.low),
                    "high": _rounded(choice.high),
                    "state": choice.state,
                }
                for choice in self.choices
            ],
            "unknown": list(self.unknown),
            "why": self.why,
        }


def _rounded(speed: float) -> float:
    """Return a speed to 6 digits: more would be an artefact of logarithms."""
    return float(f"{speed:.6g}")


def explain(proposal: Proposal, schedule: Schedule) -> tuple[Explanation, ...]:
    """Explain each measured batch size that the schedule covers."""
    table = proposal.table
    rows = table.explained or tuple(range(table.batches.size))
    gains = table.gain_over_none()
    return tuple(
        _explain_row(proposal, schedule, row, gains)
        for row in rows
        if table.batches[row] <= schedule.max_batch
    )


def _explain_row(
    proposal: Proposal, schedule: Schedule, row: int, gains: tuple[Floats, Floats]
) -> Explanation:
    table = proposal.table
    batch = int(table.batches[row])
    draft_len = schedule.draft_len_at(batch)
    span = next(span for span in schedule.ranges if span.first <= batch <= span.last)
    choices = tuple(
        Choice(
            int(table.draft_lens[column]),
            *table.interval(row, column),
            CellState(int(table.states[row, column])).name.lower(),
        )
        for column in np.flatnonzero(table.known[row]).tolist()
    )
    unknown = tuple(table.draft_lens[~table.supported[row]].tolist())
    parts = [
        _headline(proposal, row, draft_len),
        *(f"{note.text} [{note.by}]" for note in proposal.notes if row in note.rows),
        _gain(proposal, row, draft_len, gains),
        _not_known(proposal, unknown),
    ]
    why = "; ".join(part for part in parts if part)
    return Explanation(batch, draft_len, span.first, span.last, choices, unknown, why)


def _headline(proposal: Proposal, row: int, draft_len: int) -> str:
    """Compare the choice with the best cell that was open to it."""
    table = proposal.table
    column = int(np.searchsorted(table.draft_lens, draft_len))
    open_cells = np.where(proposal.eligible[row], table.log_mean[row], -np.inf)
    best = int(np.argmax(open_cells))
    if proposal.choice[row] == UNDECIDED or not np.isfinite(open_cells[best]):
        return f"draft length {draft_len}, taken over from the nearest batch size that has two to compare"
    if column == best:
        return f"draft length {draft_len} is the fastest"
    behind = -math.expm1(float(table.log_mean[row, column] - open_cells[best]))
    fastest = int(table.draft_lens[best])
    return f"draft length {draft_len} runs, {percent(abs(behind))} slower than the fastest, {fastest}"


def _gain(proposal: Proposal, row: int, draft_len: int, gains: tuple[Floats, Floats]) -> str:
    """Return the gain over no speculation of what runs, or of the best draft where none runs."""
    table, zero = proposal.table, proposal.table.zero_column
    if zero is None or not table.trusted[row, zero]:
        return ""
    column = int(np.searchsorted(table.draft_lens, draft_len))
    who = ""
    if draft_len == 0:
        drafts = np.where(table.supported[row] & (table.draft_lens > 0), gains[0][row], -np.inf)
        column = int(np.argmax(drafts))
        who = f"draft length {int(table.draft_lens[column])} would be "
    if column == zero or not table.known[row, column]:
        return ""
    gain, reach = float(gains[0][row, column]), Z95 * float(gains[1][row, column])
    low, high = (percent(math.expm1(gain + side), signed=True) for side in (-reach, reach))
    how = "faster" if gain >= 0 else "slower"
    return f"{who}{percent(abs(math.expm1(gain)))} {how} than no speculation (95 %: {low} to {high})"


def _not_known(proposal: Proposal, unknown: tuple[int, ...]) -> str:
    """Name the draft lengths without evidence at this batch size, and why where the table tells."""
    if not unknown:
        return ""
    reasons = sorted({proposal.table.unknown[k] for k in unknown if k in proposal.table.unknown})
    because = f" ({'; '.join(reasons)})" if reasons else ""
    return f"not measured here: draft length {listed(unknown)}{because}"
