"""A decision as tables in the terminal."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from tuner.cli.output import print_table
from tuner.cli.plan_text import print_findings, print_plan
from tuner.cycle import count_states
from tuner.fit.crossover import Crossover
from tuner.fit.step_time import StepTimeFit
from tuner.fleet import Estimate, NotEnoughData, WindowState
from tuner.plan.planner import Plan

if TYPE_CHECKING:
    from tuner.cycle import Decision, PoolDecision
    from tuner.fit.acceptance import AcceptanceFit

MILLISECONDS = 1000.0


def print_decision(decision: Decision) -> None:
    """Print every pool, then the findings that belong to none."""
    for pool in decision.pools:
        _print_pool(pool)
    print_findings(decision.findings)


def _print_pool(decision: PoolDecision) -> None:
    click.secho(f"pool {decision.pool}", bold=True)
    _print_windows(decision)
    _print_acceptance(decision.acceptance)
    _print_step_time(decision)
    _print_plan(decision)
    print_findings(decision.findings)


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
        click.echo(f"  {count:>4} {state}: {reason}")


def _print_acceptance(fit: AcceptanceFit | NotEnoughData) -> None:
    """Print the hazard of each position with its interval."""
    if isinstance(fit, NotEnoughData):
        click.echo(f"\nacceptance: cannot say, {fit}")
        return
    rows = [
        [
            str(position.position),
            "-" if position.hazard is None else f"{position.hazard:.3f}",
            f"{position.low:.3f} to {position.high:.3f}",
            f"{position.exposed:.0f}",
            f"{position.accepted:.0f}",
            position.state + (", weak" if position.weak else ""),
        ]
        for position in fit.positions
    ]
    columns = ("position", "acceptance", "95 % interval", "exposed", "accepted", "state")
    click.echo("")
    print_table(columns, rows, title=f"acceptance by position, route {fit.route}")
    alpha = fit.alpha
    if isinstance(alpha, Estimate):
        click.echo(f"single alpha {alpha.value:.3f} ({alpha.low:.3f} to {alpha.high:.3f})")
    else:
        click.echo(f"single alpha: cannot say, {alpha}")


def _print_step_time(decision: PoolDecision) -> None:
    """Print what a step costs and where the crossover lies."""
    fit = decision.step_time
    if not isinstance(fit, StepTimeFit):
        click.echo(f"\nstep time: cannot say, {fit}")
        return
    fixed = MILLISECONDS * (fit.floor_seconds + fit.overhead_seconds)
    click.echo(
        f"\nstep time: {fixed:.1f} ms fixed + {MILLISECONDS * fit.seconds_per_token:.3f} ms per token in "
        f"flight, sharpness {fit.sharpness:.2g}, drafter {fit.draft.shape}"
    )
    crossover = decision.crossover
    if isinstance(crossover, Crossover):
        click.echo(
            f"crossover: {crossover.tokens:.0f} tokens in flight (95 %: {crossover.low:.0f} to "
            f"{crossover.high:.0f})"
        )
    else:
        click.echo(f"crossover: cannot say, {crossover}")


def _print_plan(decision: PoolDecision) -> None:
    """Print the plan, or why there is none."""
    click.echo("")
    if isinstance(decision.plan, Plan):
        print_plan(decision.plan)
    else:
        click.echo(f"no schedule: {decision.plan}")
