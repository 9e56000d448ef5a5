"""A decision as tables in the terminal; docs/reading.md explains each of them."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import click

from tuner.cli.output import print_heading, print_line, print_table
from tuner.cli.plan_text import cannot_say, print_findings, print_plan
from tuner.cycle import count_states
from tuner.fit.crossover import Crossover
from tuner.fit.step_time import StepTimeFit
from tuner.fleet import POOLED_ROUTE, Estimate, NotEnoughData, WindowState
from tuner.plan.planner import Plan

if TYPE_CHECKING:
    from tuner.cycle import Decision, PoolDecision
    from tuner.fit.acceptance import AcceptanceFit
    from tuner.fit.step_time_columns import Drafter

MILLISECONDS = 1000.0
LINEAR = 1.3
"""Largest p called linear: at the crossover such a curve stands 1.7 times above the two straight lines of
a roofline, a straight line 2 times; the fit of the crossover takes both for one."""
SHARP = 4.0
"""Least p called a sharp knee: at the crossover the curve stands 1.19 times above the roofline."""
STATES = {
    "weak": "weak: too few blocks of windows to measure how acceptance spreads, so a usual spread is assumed",
    "censored": "censored: nothing that ran could show this position; it may be anything in the interval",
    "extrapolated": "extrapolated: never drafted, carried on from the positions before it",
}
"""What the words of the column ``state`` mean, printed where they occur."""


def print_decision(decision: Decision) -> None:
    """Print every pool, then all findings."""
    for number, pool in enumerate(decision.pools):
        if number:
            click.echo("")
        _print_pool(pool)
    findings = [*(finding for pool in decision.pools for finding in pool.findings), *decision.findings]
    print_findings(findings, name_pools=len(decision.pools) > 1)


def _print_pool(decision: PoolDecision) -> None:
    print_heading(f"pool {decision.pool}")
    _print_windows(decision)
    _print_acceptance(decision.acceptance)
    _print_step_time(decision)
    _print_plan(decision)


def _print_windows(decision: PoolDecision) -> None:
    """Print how many windows there are, how many can be fitted, and why the others cannot."""
    counts = count_states(decision.windows)
    click.echo(f"\nwindows: {counts['good']} of {counts['total']} can be fitted")
    reasons = Counter(
        (window.state.value, window.reason.split(":")[0])
        for window in decision.windows
        if window.state is not WindowState.GOOD
    )
    for (state, reason), count in reasons.most_common(6):
        print_line(f"{count:>4} {state}: {reason}")


def _print_acceptance(fit: AcceptanceFit | NotEnoughData) -> None:
    """Print the hazard of each position with its interval."""
    click.echo("")
    if isinstance(fit, NotEnoughData):
        print_line(f"acceptance: cannot say: {cannot_say(fit)}", indent="")
        return
    where = "all routes" if fit.route == POOLED_ROUTE else f"route {fit.route}"
    if fit.positions:
        _print_positions(fit, where)
    else:
        print_line(f"acceptance by position in the draft, {where}: cannot say", indent="")
    alpha = fit.alpha
    if isinstance(alpha, Estimate):
        text = f"{alpha.value:.3f} (95 %: {alpha.low:.3f} to {alpha.high:.3f})"
    else:
        text = f"cannot say: {cannot_say(alpha)}"
    print_line(f"one acceptance for all positions (alpha): {text}", indent="")


def _print_positions(fit: AcceptanceFit, where: str) -> None:
    """Print the profile, with what the words in it mean."""
    states = [
        position.state + (", weak" if position.weak and position.state == "measured" else "")
        for position in fit.positions
    ]
    rows = [
        [
            str(position.position),
            "-" if position.hazard is None else f"{position.hazard:.3f}",
            f"{position.low:.3f} to {position.high:.3f}",
            f"{position.exposed:.0f}",
            f"{position.accepted:.0f}",
            state,
        ]
        for position, state in zip(fit.positions, states, strict=True)
    ]
    columns = ("position", "acceptance", "95 % interval", "exposed", "accepted", "state")
    print_table(columns, rows, title=f"acceptance by position in the draft, {where}", words={"state"})
    print_line("exposed: drafts that proposed this position and had all before it accepted", indent="")
    for word, meaning in STATES.items():
        if any(word in state for state in states):
            print_line(meaning, indent="")


def _print_step_time(decision: PoolDecision) -> None:
    """Print what a step costs and where the crossover lies."""
    click.echo("")
    fit = decision.step_time
    if not isinstance(fit, StepTimeFit):
        print_line(f"step time: cannot say: {cannot_say(fit)}", indent="")
        return
    if isinstance(fit.split, NotEnoughData):
        text = f"fixed time and time per token: cannot say: {cannot_say(fit.split)}"
    else:
        text = (
            f"{milliseconds(fit.split.fixed)} fixed, {milliseconds(fit.split.per_token)} per token in "
            f"flight, {knee(fit.sharpness)}; {drafter_of(fit)}"
        )
    print_line(f"step time: {text}", indent="")
    crossover = decision.crossover
    if isinstance(crossover, Crossover):
        text = (
            f"{crossover.tokens:.0f} tokens in flight (95 %: {crossover.low:.0f} to {crossover.high:.0f}), "
            "where the tokens take as long as the fixed time"
        )
    else:
        text = f"cannot say: {cannot_say(crossover)}"
    print_line(f"crossover: {text}", indent="")


def milliseconds(seconds: Estimate) -> str:
    """Return a time with its interval, in milliseconds."""
    value, low, high = (MILLISECONDS * part for part in (seconds.value, seconds.low, seconds.high))
    return f"{value:.3g} ms (95 %: {low:.3g} to {high:.3g})"


def knee(sharpness: float) -> str:
    """Return in words how a step turns from fixed time to time per token."""
    if sharpness <= LINEAR:
        return f"linear (p = {sharpness:.2g}): each token costs from the first one on"
    kind = "soft" if sharpness < SHARP else "sharp"
    p = f"{sharpness:.2g}" if math.isfinite(sharpness) else "infinite"
    return f"{kind} knee (p = {p})"


def drafter_of(fit: StepTimeFit) -> str:
    """Return in words what drafting adds to a step, as far as the draft lengths that ran can tell."""
    if len(set(fit.cells.draft_len.tolist())) == 1:
        return "the drafter's time is in it, as one draft length cannot tell it apart"
    return drafter_cost(fit.draft)


def drafter_cost(draft: Drafter) -> str:
    """Return in words what drafting adds to a step."""
    parts = [
        f"{MILLISECONDS * seconds:.3g} ms{unit}"
        for seconds, unit in (
            (draft.base_seconds, ""),
            (draft.slope_seconds, " x K"),
            (draft.root_seconds, " x sqrt(K)"),
            (draft.batched_seconds, " x K x requests"),
        )
        if seconds
    ]
    return f"the drafter adds {' + '.join(parts)}" if parts else "no separate drafter cost found"


def _print_plan(decision: PoolDecision) -> None:
    """Print the plan, or why there is none."""
    click.echo("")
    if isinstance(decision.plan, Plan):
        print_plan(decision.plan)
    else:
        print_line(f"no schedule: {cannot_say(decision.plan)}", indent="")
