"""A plan and findings as text: speeds by batch and draft length, the schedule, the reasons."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from tuner.cli.output import print_heading, print_line, print_table
from tuner.fleet import NotEnoughData, Schedule

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tuner.fleet import Finding
    from tuner.plan.explain import Explanation
    from tuner.plan.planner import Plan

LEGEND = "* fastest, ~ between measurements, ? outside of them, - not known"


def cannot_say(unknown: NotEnoughData) -> str:
    """Return in words why something cannot be told, with what there is and what it takes."""
    if unknown.have is None or unknown.need is None:
        return unknown.reason
    return f"{unknown.reason}; it takes {unknown.need:g}, there are {unknown.have:g}"


def print_plan(planned: Plan) -> None:
    """Print what each draft length yields, the schedule and why, or why there is none."""
    schedule = planned.schedule
    if not isinstance(schedule, Schedule):
        print_line(f"no schedule: {cannot_say(schedule)}", indent="")
        return
    entries = planned.explain
    lens = sorted({choice.draft_len for entry in entries for choice in entry.choices})
    print_table(
        ["batch", *(f"K={draft_len}" for draft_len in lens), "schedule"],
        [_speeds(entry, lens) for entry in entries],
        title=f"tokens per second by draft length K ({LEGEND})",
    )
    click.echo("")
    print_table(
        ["requests in a step", "draft length"],
        [[f"{first} to {last}", str(draft_len)] for first, last, draft_len in schedule.ranges],
        title=f"schedule {json.dumps(schedule.as_lists(), separators=(',', ':'))}",
    )
    click.echo("")
    print_heading("why")
    for entry in entries:
        print_line(f"batch {entry.batch}: {entry.why}")


def print_findings(findings: Iterable[Finding], *, name_pools: bool = False) -> None:
    """Print findings with severity and code under one heading, the worst first, or nothing without any."""
    listed = sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
    if listed:
        click.echo("")
        print_heading("findings")
    for finding in listed:
        pool = finding.subject.get("pool", "")
        where = f" (pool {pool})" if name_pools and pool else ""
        print_line(f"{finding.severity} {finding.code}{where}: {finding.message}")


SEVERITIES = ("critical", "warning", "info")
MARKS = {"measured": "", "interpolated": "~"}


def _speeds(entry: Explanation, lens: Sequence[int]) -> list[str]:
    """Return one row of the table of speeds; the star is on the fastest that is backed by measurement."""
    by_len = {choice.draft_len: choice for choice in entry.choices}
    backed = [choice for choice in entry.choices if choice.state in MARKS]
    best = max(backed, key=lambda choice: choice.tokens_per_second, default=None)
    cells = [str(entry.batch)]
    for draft_len in lens:
        choice = by_len.get(draft_len)
        if choice is None:
            cells.append("-")
            continue
        star = "*" if choice is best else ""
        cells.append(f"{star}{MARKS.get(choice.state, '?')}{_four_digits(choice.tokens_per_second)}")
    return [*cells, f"K={entry.draft_len}"]


def _four_digits(value: float) -> str:
    """Write tokens per second to the digits that a measurement carries, never in powers of ten."""
    return f"{value:.0f}" if value >= 1000 else f"{value:#.4g}".rstrip(".")  # noqa: PLR2004
