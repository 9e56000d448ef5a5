"""From a choice at some batch sizes to a schedule over all of them.

The rule between two batch sizes that were decided: log tokens per second is interpolated linearly in
log batch for each draft length. Equal choices at both ends hold between them. Different ones meet where
their lines cross, or come within a tie, else at the geometric mean. A gap wider than
a factor of 2 is first filled by powers of 2, decided among the draft lengths between the two ends.
Outside the batch sizes that were decided the nearest choice is carried on, and a finding says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tuner.fleet import Finding, Schedule
from tuner.plan.optimise import UNDECIDED, within_tie
from tuner.plan.words import listed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tuner.fleet import Severity
    from tuner.plan.goodput import Floats, Ints
    from tuner.plan.options import PlanOptions
    from tuner.plan.proposal import Proposal

WIDEST_GAP = 2.0
"""Ratio of neighbouring batch sizes above which the gap is filled: within an octave a schedule moves by
about one draft length, and half an octave of misplaced threshold costs about 1 % (SGLang PR 22246)."""

SAME_LOAD = 1.15
"""A largest batch within this ratio of the largest one measured is that load to the accuracy of a mean batch
per window, and its draft lengths compare alike; beyond, that they do is a guess."""


@dataclass(frozen=True, slots=True)
class _Point:
    """One batch size with its choice and the utilities of all columns there."""

    batch: float
    column: int
    utility: Floats


def expand(proposal: Proposal, options: PlanOptions) -> tuple[Schedule, tuple[Finding, ...]]:
    """Return the schedule over ``1..max_batch`` and findings on what it carries beyond the evidence.

    At least one row of the proposal must be decided.
    """
    decided = np.flatnonzero(proposal.choice != UNDECIDED)
    points = _points(proposal, options, decided)
    lens = proposal.table.draft_lens
    ranges: list[list[int]] = []
    first = 1
    for here, there in pairwise(points):
        last = _boundary(here, there, options.tie)
        if here.column != there.column and last >= first:
            ranges.append([first, last, int(lens[here.column])])
            first = last + 1
    last = options.max_batch or int(proposal.table.batches[-1])
    ranges.append([first, max(last, first), int(lens[points[-1].column])])
    open_lens = lens[proposal.eligible.any(axis=0)].tolist()
    return _fit(_within_limits(ranges, open_lens, options), last), _edge_findings(proposal, options)


def _within_limits(ranges: list[list[int]], lens: list[int], options: PlanOptions) -> list[list[int]]:
    """Shorten drafts where a range runs past what may be in flight or fits into the KV cache.

    Cells were checked at the batch sizes of the table; between and beyond them the limits hold too,
    down to the shortest draft that is open.
    """
    rows: list[list[int]] = []
    for first, last, draft_len in ranges:
        start, k = first, draft_len
        while start <= last:
            end = last if k == lens[0] else min(last, _largest_batch(k, options))
            if end >= start:
                rows.append([start, end, k])
                start = end + 1
            k = max((shorter for shorter in lens if shorter < k), default=k)
    return rows


def _largest_batch(draft_len: int, options: PlanOptions) -> int:
    """Return the largest batch size at which a draft length keeps the options' limits."""
    caps = [np.iinfo(np.int64).max]
    if options.max_tokens_in_flight is not None and "tokens_in_flight" not in options.without:
        caps.append(options.max_tokens_in_flight // (draft_len + 1))
    if (
        options.kv_capacity_tokens is not None
        and options.context_tokens is not None
        and "kv_headroom" not in options.without
    ):
        caps.append(math.floor(options.kv_capacity_tokens / (options.context_tokens + draft_len + 1)))
    return int(min(caps))


def extend(schedule: Schedule, max_batch: int) -> Schedule:
    """Return the schedule over ``1..max_batch``: cut, or its last range carried on."""
    return _fit(schedule.as_lists(), max_batch)


def _fit(ranges: list[list[int]], max_batch: int) -> Schedule:
    """Merge equal neighbours and end the table at ``max_batch``."""
    rows: list[list[int]] = []
    for first, last, draft_len in ranges:
        if first > max_batch:
            break
        if rows and rows[-1][2] == draft_len:
            rows[-1][1] = last
        else:
            rows.append([first, last, draft_len])
    rows[-1][1] = max_batch
    return Schedule.from_ranges(rows)


def _points(proposal: Proposal, options: PlanOptions, decided: Ints) -> list[_Point]:
    """Return the decided rows, and points between those that lie far apart and differ."""
    table = proposal.table
    usable = table.trusted & proposal.eligible.any(axis=0)  # a limit at one end need not hold in between
    utility = np.where(usable, table.log_mean, -np.inf)
    if table.zero_column is not None and "confidence" not in options.without:
        utility[:, table.zero_column] += math.log1p(options.min_gain)  # what speculation must clear
    known = [
        _Point(float(table.batches[row]), int(proposal.choice[row]), utility[row]) for row in decided.tolist()
    ]
    points = known[:1]
    for here, there in pairwise(known):
        if here.column != there.column and there.batch > WIDEST_GAP * here.batch:
            points += _between(here, there, options.tie)
        points.append(there)
    return points


def _between(here: _Point, there: _Point, tie: float) -> list[_Point]:
    """Decide powers of 2 between two far points, moving one way from one choice to the other."""
    steps = math.ceil(math.log2(there.batch / here.batch) - 1e-9)
    shares = np.arange(1, steps) / steps
    low, high = sorted((here.column, there.column))
    both = np.isfinite(here.utility) & np.isfinite(there.utility)
    columns = np.arange(both.size)
    eligible = both & (columns >= low) & (columns <= high)
    if not eligible.any():
        return []
    ends = np.where(both, np.stack((here.utility, there.utility)), 0.0)
    lines = np.where(eligible, (1 - shares[:, None]) * ends[0] + shares[:, None] * ends[1], -np.inf)
    sets = within_tie(lines, np.broadcast_to(eligible, lines.shape), tie)
    batches = here.batch * (there.batch / here.batch) ** shares
    falling = here.column > there.column
    order = range(len(shares) - 1, -1, -1) if falling else range(len(shares))
    least, chosen = low, {}
    for place in order:
        members = np.flatnonzero(sets[place] & (columns >= least))
        rest = np.where(columns >= least, lines[place], -np.inf)
        least = int(members[0]) if members.size else int(np.argmax(rest))
        chosen[place] = least
    return [_Point(float(batches[place]), chosen[place], lines[place]) for place in range(len(shares))]


def _boundary(here: _Point, there: _Point, tie: float) -> int:
    """Return the last batch size that runs the choice of the smaller of two neighbouring points."""
    share = _share(here, there, -math.log1p(-tie))
    last = math.floor(here.batch * (there.batch / here.batch) ** share + 1e-9)
    return int(min(max(last, math.ceil(here.batch)), math.ceil(there.batch) - 1))


def _share(here: _Point, there: _Point, tie: float) -> float:
    """Return how far between two points their choices change hands, from 0 to 1."""
    pair = [point.utility[column] for point in (here, there) for column in (here.column, there.column)]
    if not np.isfinite(pair).all():
        return 0.5
    ahead, behind = float(pair[0] - pair[1]), float(pair[3] - pair[2])
    if ahead > 0 and behind > 0:
        return ahead / (ahead + behind)
    if ahead > tie >= -behind:  # the second choice is a tie at its own point: from where it became one
        return (ahead - tie) / (ahead + behind)
    return 0.5


def _edge_findings(proposal: Proposal, options: PlanOptions) -> tuple[Finding, ...]:
    """Say which batch sizes have a draft length that no evidence stands behind."""
    table, found = proposal.table, []
    subject = table.subject
    undecided = table.batches[proposal.choice == UNDECIDED].tolist()
    backed = np.flatnonzero(table.supported.any(axis=1))
    smallest, largest = int(table.batches[backed[0]]), int(table.batches[backed[-1]])
    if undecided:
        message = (
            f"at batch {listed(undecided)} fewer than two draft lengths were measured: that of the nearest "
            "batch size runs there; measure a second one"
        )
        found.append(Finding("batch_undecided", "warning", message, subject, {"batches": undecided}))
    found += _uncompared(proposal)
    if smallest > 1:
        message = (
            f"batch sizes below {smallest} were not measured: they run the draft length of batch {smallest}; "
            "measure batch 1"
        )
        found.append(Finding("batch_below_measured", "info", message, subject, {"smallest": smallest}))
    if options.max_batch is None:
        message = (
            f"the largest batch of the engine was not given, so the table ends at {largest}, the largest one "
            "measured; what runs beyond the end of a table is up to the engine: give the largest batch"
        )
        found.append(Finding("max_batch_unknown", "info", message, subject, {"largest": largest}))
    elif options.max_batch > largest:
        found.append(_beyond(largest, options.max_batch, subject))
    return tuple(found)


def _uncompared(proposal: Proposal) -> list[Finding]:
    """Say where no speculation runs because nothing else was measured: safe, and not shown to be best."""
    table, zero = proposal.table, proposal.table.zero_column
    if zero is None:
        return []
    alone = (table.supported.sum(axis=1) == 1) & table.supported[:, zero] & (proposal.choice == zero)
    batches = table.batches[alone].tolist()
    if not batches:
        return []
    message = (
        f"at batch {listed(batches)} only draft length 0 was measured, so it runs there without having won: "
        "measure a draft length above 0"
    )
    return [Finding("draft_len_0_uncompared", "warning", message, table.subject, {"batches": batches})]


def _beyond(largest: int, max_batch: int, subject: Mapping[str, str]) -> Finding:
    """Name the batch sizes past the largest one measured; up to ``SAME_LOAD`` past it, they are its load."""
    first = largest + 1
    which = f"batch size {first} was" if first == max_batch else f"batch sizes {first} to {max_batch} were"
    severity: Severity = "info" if max_batch <= SAME_LOAD * largest else "warning"
    message = f"{which} not measured: the last draft length is kept there; measure batch {max_batch}"
    evidence = {"largest": largest, "first": first, "max_batch": max_batch}
    return Finding("batch_beyond_measured", severity, message, subject, evidence)
