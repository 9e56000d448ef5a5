"""What running a schedule costs an engine: the arms of a sweep compared at like batch and context.

A schedule may switch the engine to another graph mode, and every draft length pays for that, 0 included
(vLLM issue 49986: 6.5 % at concurrency 2, 21 % at 189). So a schedule arm that is slower than its own
constant arms says nothing on the draft lengths in it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tuner.fleet import Finding

if TYPE_CHECKING:
    from tuner.plan.goodput import Floats, Ints
    from tuner.plan.sweep_cells import Cells

NOTICE = 0.01
"""Log speed below which a difference of arms is not worth a finding, besides two standard deviations."""


class _Pair(NamedTuple):
    """A schedule row beside the constant row that it must reach."""

    batch: int
    schedule_tokens_per_second: float
    constant_tokens_per_second: float
    constant_draft_len: int
    ratio: float
    best_constant_draft_len: int
    regret: float
    """Share of the schedule's speed that the best constant draft length leaves; below 0 if none."""


def compare_arms(
    static: Cells, none: Cells, schedule: Cells, batches: Ints
) -> tuple[list[Finding], Floats | None]:
    """Return findings, and ``(nb,)`` log speed of a schedule over a constant draft length.

    A schedule row that tells its draft length is compared with the same constant one; one that does not
    is compared with the slowest constant arm, whose speed any schedule must reach. The factor is at most
    0 and interpolated in log batch; ``None`` where no row can tell.
    """
    findings = _drafter_tax(static, none)
    taxes: dict[int, list[float]] = {}
    slow: list[_Pair] = []
    ahead: list[_Pair] = []
    seen = static.lookup()
    for place in range(schedule.batch.size):
        key = (int(schedule.group[place]), int(schedule.draft_len[place]), int(schedule.batch[place]))
        peers = np.flatnonzero((static.group == key[0]) & (static.batch == key[2]))
        if not peers.size:
            continue
        told = key in seen
        peer = seen[key] if told else int(peers[np.argmin(static.log_speed[peers])])
        pair = _pair(schedule, place, static, peer, int(peers[np.argmax(static.log_speed[peers])]))
        difference = math.log(pair.ratio)
        if told or difference < 0:
            taxes.setdefault(pair.batch, []).append(min(difference, 0.0))
        noise = 2 * math.hypot(float(schedule.log_sd[place]), float(static.log_sd[peer]))
        if difference < -max(NOTICE, noise):
            slow.append(pair)
        elif not told and pair.regret > NOTICE:
            ahead.append(pair)
    if slow:
        findings.append(_overhead_finding(slow))
    if ahead:
        findings.append(_ahead_finding(ahead))
    return findings, _interpolate(taxes, batches)


def _pair(schedule: Cells, place: int, static: Cells, peer: int, best: int) -> _Pair:
    speed = float(schedule.log_speed[place])
    return _Pair(
        batch=int(schedule.batch[place]),
        schedule_tokens_per_second=math.exp(speed),
        constant_tokens_per_second=math.exp(static.log_speed[peer]),
        constant_draft_len=int(static.draft_len[peer]),
        ratio=math.exp(speed - float(static.log_speed[peer])),
        best_constant_draft_len=int(static.draft_len[best]),
        regret=-math.expm1(float(static.log_speed[best]) - speed),
    )


def _interpolate(taxes: dict[int, list[float]], batches: Ints) -> Floats | None:
    if not taxes:
        return None
    known = sorted(taxes)
    values = [float(np.mean(taxes[batch])) for batch in known]
    factor: Floats = np.interp(np.log(batches), np.log(known), values)
    return factor


def _overhead_finding(slow: list[_Pair]) -> Finding:
    worst = min(slow, key=lambda pair: pair.ratio)
    message = (
        f"under a schedule the engine reaches {worst.schedule_tokens_per_second:.5g} tokens/s at batch "
        f"{worst.batch}, {1 - worst.ratio:.1%} less than at constant {worst.constant_draft_len}: its graph "
        "mode or its transitions cost that, no choice of draft length does; compare runners before rolling a "
        "schedule out"
    )
    cells = [pair._asdict() for pair in slow]
    return Finding("schedule_overhead", "warning", message, {}, {"cells": cells})


def _ahead_finding(ahead: list[_Pair]) -> Finding:
    best = max(ahead, key=lambda pair: pair.regret)
    message = (
        f"at batch {best.batch} the schedule arm is ahead of every constant draft length; the best, "
        f"{best.best_constant_draft_len}, leaves {best.regret:.1%} of that: acceptance changes in the run"
    )
    return Finding("schedule_ahead", "info", message, {}, {"cells": [pair._asdict() for pair in ahead]})


def _drafter_tax(static: Cells, none: Cells) -> list[Finding]:
    """Say where an engine without a drafter beats one with a drafter at draft length 0."""
    seen, cells = static.lookup(), []
    for place in range(none.batch.size):
        batch = int(none.batch[place])
        kept = seen.get((int(none.group[place]), 0, batch))
        if kept is None:
            continue
        gap = float(none.log_speed[place] - static.log_speed[kept])
        if gap > max(NOTICE, 2 * math.hypot(float(none.log_sd[place]), float(static.log_sd[kept]))):
            cells.append({"batch": batch, "tax": -math.expm1(-gap)})
    if not cells:
        return []
    worst = max(cell["tax"] for cell in cells)
    message = (
        f"draft length 0 with a drafter loaded is up to {worst:.1%} slower than an engine without one: where "
        "the schedule says 0 at most loads, remove the drafter"
    )
    return [Finding("drafter_tax", "info", message, {}, {"cells": cells})]
