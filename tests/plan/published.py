"""Published numbers as rows of a sweep."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tuner.fleet import Schedule, SweepRow
from tuner.plan.options import PlanOptions
from tuner.plan.planner import Plan, plan
from tuner.plan.sweep import from_sweep

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DATA = Path(__file__).parent / "data"


@cache
def published(name: str) -> dict[str, Any]:
    """Return a data file."""
    document = yaml.safe_load((DATA / f"{name}.yaml").read_text())
    assert isinstance(document, dict)
    return document


def rows_at(batch: int, tokens_per_second: Mapping[int, float], **more: Any) -> list[SweepRow]:
    """Return rows of one batch size from draft length -> tokens/s."""
    return [SweepRow(batch, draft_len, speed, **more) for draft_len, speed in tokens_per_second.items()]


def grid_rows(batches: list[int], tokens_per_second: Mapping[int, list[float]]) -> list[SweepRow]:
    """Return rows from draft length -> tokens/s by batch size."""
    return [
        SweepRow(batch, draft_len, speed)
        for draft_len, speeds in tokens_per_second.items()
        for batch, speed in zip(batches, speeds, strict=True)
    ]


def plan_rows(
    rows: Iterable[SweepRow], *, context_weights: Mapping[float, float] | None = None, **options: Any
) -> Plan:
    """Plan a sweep."""
    return plan(from_sweep(rows, context_weights=context_weights), PlanOptions(**options))


def chosen(planned: Plan) -> dict[int, int]:
    """Return measured batch size -> draft length that the schedule runs there."""
    assert isinstance(planned.schedule, Schedule), planned.schedule
    return {entry.batch: entry.draft_len for entry in planned.explain}


def codes(planned: Plan) -> set[str]:
    """Return the codes of the findings."""
    return {finding.code for finding in planned.findings}


def evidence(planned: Plan, code: str) -> dict[str, Any]:
    """Return the evidence of the only finding of a code."""
    (found,) = [finding for finding in planned.findings if finding.code == code]
    return dict(found.evidence)
