"""A goodput table and the operator's options to a schedule that explains itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.fleet import Finding, NotEnoughData, Schedule
from tuner.plan.against import against
from tuner.plan.expand import expand, extend
from tuner.plan.explain import Explanation, explain
from tuner.plan.optimise import UNDECIDED
from tuner.plan.options import PlanOptions
from tuner.plan.postprocess import apply
from tuner.plan.proposal import Proposal

if TYPE_CHECKING:
    from tuner.plan.goodput import Bools, GoodputTable


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A schedule, or why there is none, with everything that led to it."""

    schedule: Schedule | NotEnoughData
    proposal: Proposal
    findings: tuple[Finding, ...]

    @property
    def explain(self) -> tuple[Explanation, ...]:
        """Per measured batch size: predicted speeds, what decided, what is unknown."""
        return () if isinstance(self.schedule, NotEnoughData) else explain(self.proposal, self.schedule)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form of the contract; ``schedule`` is null where nothing can be said."""
        known = isinstance(self.schedule, Schedule)
        return {
            "schedule": self.schedule.as_lists() if isinstance(self.schedule, Schedule) else None,
            **({} if known else {"not_enough_data": str(self.schedule)}),
            "explain": [entry.as_dict() for entry in self.explain],
            "findings": [finding.as_dict() for finding in self.findings],
        }


def plan(table: GoodputTable, options: PlanOptions | None = None) -> Plan:
    """Choose a draft length for every batch size, or say why that cannot be done.

    What is not known is not pushed: without two draft lengths to compare at any batch size the schedule
    is :class:`NotEnoughData`. A batch size at which only one draft length is known takes the choice of
    its neighbour, unless that one is 0.

    Raises:
        InputError: an option names no post-processor.
    """
    options = options or PlanOptions()
    proposal = Proposal.start(table)
    comparable = table.supported.sum(axis=1)
    if comparable.max(initial=0) < 2:  # noqa: PLR2004  # a comparison takes two
        return _refuse(proposal, _lone_reason(table))
    lone = (comparable == 1) & ~_zero_supported(table)
    proposal = replace(proposal, eligible=proposal.eligible & ~lone[:, None])
    proposal = apply(proposal, options)
    if (proposal.choice == UNDECIDED).all():
        reason = "none of the allowed draft lengths was measured"
        return _refuse(proposal, NotEnoughData(reason, have=0, need=1))
    schedule, edges = expand(proposal, options)
    edges = (*against(proposal, options), *edges)
    if proposal.held is not None:
        last = max(proposal.held.max_batch, int(table.batches[-1]))
        schedule = extend(proposal.held, options.max_batch or last)
    return Plan(schedule, proposal, (*table.findings, *proposal.findings, *edges))


def _zero_supported(table: GoodputTable) -> Bools:
    """Return the rows that know draft length 0: what is known to run without a draft is safe to run."""
    if table.zero_column is None:
        return np.zeros(table.batches.size, dtype=np.bool_)
    return table.supported[:, table.zero_column]


def _lone_reason(table: GoodputTable) -> NotEnoughData:
    seen = table.draft_lens[table.supported.any(axis=0)].tolist()
    what = (
        f"only draft length {seen[0]} was measured"
        if len(seen) == 1
        else "no batch size has two draft lengths"
    )
    return NotEnoughData(f"{what}, so there is nothing to compare it with", have=min(len(seen), 1), need=2)


def _refuse(proposal: Proposal, why: NotEnoughData) -> Plan:
    finding = Finding(
        code="not_enough_data",
        severity="warning",
        message=f"no schedule: {why.reason}; measure draft length 0 and another at the same batch sizes",
        subject=proposal.table.subject,
        evidence={"have": why.have, "need": why.need},
    )
    return Plan(why, proposal, (*proposal.table.findings, *proposal.findings, finding))
