"""Why a plan is what it is: per batch size the predicted speeds, what decided, what is unknown."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.plan.goodput import Z95, CellState
from tuner.plan.optimise import UNDECIDED
from tuner.plan.words import listed

if TYPE_CHECKING:
    from tuner.fleet import Schedule
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
    """Draft lengths of the table about which nothing can be said here."""
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
                    "tokens_per_second": choice.tokens_per_second,
                    "low": choice.low,
                    "high": choice.high,
                    "state": choice.state,
                }
                for choice in self.choices
            ],
            "unknown": list(self.unknown),
            "why": self.why,
        }


def explain(proposal: Proposal, schedule: Schedule) -> tuple[Explanation, ...]:
    """Explain each measured batch size that the schedule covers."""
    table = proposal.table
    rows = table.explained or tuple(range(table.batches.size))
    return tuple(
        _explain_row(proposal, schedule, row) for row in rows if table.batches[row] <= schedule.max_batch
    )


def _explain_row(proposal: Proposal, schedule: Schedule, row: int) -> Explanation:
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
    unknown = tuple(table.draft_lens[~table.known[row]].tolist())
    why = _why(proposal, row, draft_len, unknown)
    return Explanation(batch, draft_len, span.first, span.last, choices, unknown, why)


def _why(proposal: Proposal, row: int, draft_len: int, unknown: tuple[int, ...]) -> str:
    """Compose the reasons: the choice, who decided it, the gain over none, and what is not known."""
    parts = [_headline(proposal, row, draft_len)]
    parts += [f"{note.by}: {note.text}" for note in proposal.notes if row in note.rows]
    if gain := _gain(proposal, row, draft_len):
        parts.append(gain)
    if unknown:
        reasons = sorted({proposal.table.unknown[k] for k in unknown if k in proposal.table.unknown})
        parts.append(
            f"not known here: draft length {listed(unknown)}"
            + (f" ({'; '.join(reasons)})" if reasons else "")
        )
    return "; ".join(parts)


def _headline(proposal: Proposal, row: int, draft_len: int) -> str:
    """Compare the choice with the best cell that was open to it."""
    table = proposal.table
    column = int(np.searchsorted(table.draft_lens, draft_len))
    open_cells = np.where(proposal.eligible[row], table.log_mean[row], -np.inf)
    best = int(np.argmax(open_cells))
    if proposal.choice[row] == UNDECIDED or not np.isfinite(open_cells[best]):
        return f"draft length {draft_len}, carried over from the nearest batch size that could be decided"
    if column == best:
        return f"draft length {draft_len} is the fastest"
    behind = -math.expm1(float(table.log_mean[row, column] - open_cells[best]))
    return f"draft length {draft_len}, {abs(behind):.1%} behind the fastest, {int(table.draft_lens[best])}"


def _gain(proposal: Proposal, row: int, draft_len: int) -> str:
    """Return the gain over no speculation with its interval, empty where it cannot be told."""
    table = proposal.table
    column = int(np.searchsorted(table.draft_lens, draft_len))
    zero = table.zero_column
    if draft_len == 0 or zero is None or not table.supported[row, zero] or not table.known[row, column]:
        return ""
    gains, sds = table.gain_over_none()
    gain, reach = float(gains[row, column]), Z95 * float(sds[row, column])
    low, high = math.expm1(gain - reach), math.expm1(gain + reach)
    return f"{math.expm1(gain):+.1%} over no speculation (95 %: {low:+.1%} to {high:+.1%})"
