"""What the demo shows: a screen that is drawn anew, or a line a minute where there is no terminal."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Self

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tuner.cli.plan_text import SEVERITIES
from tuner.fit.acceptance import AcceptanceFit
from tuner.fit.crossover import Crossover
from tuner.fleet import POOLED_ROUTE, Estimate
from tuner.serve.words import ranges_text

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from tuner.cycle import PoolDecision
    from tuner.daemon.service import Service

MINUTE = 60.0
SHOWN_EVENTS = 6
"""Lines of events: with the blocks of three pools they fit the 24 lines of a small terminal."""
NAMED_CODES = 6
"""Codes of findings that the end names, the worst first."""
UNKNOWN = "cannot say"


class Story:
    """What changed from picture to picture, in words."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self._said: dict[tuple[str, str], str] = {}

    def hear(self, service: Service, passed: float) -> list[str]:
        """Note crossovers that can be told now and schedules that were written down, and return the new."""
        new: list[str] = []
        decision = service.decider.decision
        for pool in () if decision is None else decision.pools:
            if isinstance(pool.crossover, Crossover):
                self._tell(new, pool.pool, "crossover", "has told its crossover", passed)
        for written in reversed(service.decider.schedules):
            told = f"{written.state} {ranges_text(written.schedule.as_lists())}"
            self._tell(new, written.pool, written.state, told, passed)
        self.events = [*self.events, *new][-SHOWN_EVENTS:]
        return new

    def _tell(self, new: list[str], pool: str, what: str, told: str, passed: float) -> None:
        if self._said.get((pool, what)) != told:
            self._said[pool, what] = told
            new.append(f"{_clock(passed)}  {pool} {told}")


class Screen:
    """A terminal that is drawn anew after each round."""

    def __init__(self) -> None:
        self._story = Story()
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False)
        self._address = ""

    def begin(self, address: str, folder: Path | None) -> None:
        """Say where to look while it runs."""
        self._address = address
        _begin(address, folder)

    def __enter__(self) -> Self:
        """Start to draw."""
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the last picture standing."""
        self._live.stop()

    def show(self, service: Service, passed: float) -> None:
        """Draw what is known now."""
        self._story.hear(service, passed)
        title = Text(f"{_clock(passed)} simulated", style="bold")
        events = [Text(event, style="dim") for event in self._story.events]
        self._live.update(Group(title, blocks(service), *events), refresh=True)

    def end(self, service: Service) -> None:
        """Say what was done."""
        _end(service)


class Plain:
    """Lines for a pipe or a log: what changed, and the blocks at the end."""

    def __init__(self) -> None:
        self._story = Story()
        self._minute = -1

    def begin(self, address: str, folder: Path | None) -> None:
        """Say where to look while it runs."""
        _begin(address, folder)

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """End."""

    def show(self, service: Service, passed: float) -> None:
        """Print what is new, and a sign of life each simulated minute."""
        for event in self._story.hear(service, passed):
            click.echo(event)
        if int(passed // MINUTE) > self._minute:
            self._minute = int(passed // MINUTE)
            click.echo(f"{_clock(passed)}  {service.status_line()}")

    def end(self, service: Service) -> None:
        """Print the blocks."""
        click.echo("")
        console = Console()
        with console.capture() as printed:
            console.print(blocks(service))
        # Cells are filled up with blanks, which nobody wants in a log.
        click.echo("\n".join(line.rstrip() for line in printed.get().splitlines()))
        click.echo("")
        _end(service)


def blocks(service: Service) -> Group:
    """Return what is known: a block for each pool, which fits 80 columns."""
    decision = service.decider.decision
    known = {} if decision is None else {pool.pool: pool for pool in decision.pools}
    shown: list[RenderableType] = []
    for status in service.view().pools:
        pool = known.get(status.name)
        windows = 0 if pool is None else len(pool.windows)
        shown.append(Text(f"{status.name}: {status.engines} engines, {windows} windows", style="bold"))
        rows = Table.grid(padding=(0, 2))
        for heading, text in [] if pool is None else _rows(service, pool):
            rows.add_row(f"  {heading}", text)
        shown.append(rows)
    return Group(*shown)


def _rows(service: Service, pool: PoolDecision) -> list[tuple[str, str]]:
    """Return headings and texts of a pool: schedule, crossover, then acceptance and gain by route."""
    at = pool.crossover
    proposed = next((s for s in service.decider.schedules if s.pool == pool.pool), None)
    routes = {"all routes": (pool.acceptance, pool.speedup)} | {
        f"route {route}": (fit, pool.route_speedups.get(route))
        for route, fit in sorted(pool.routes.items())
        if route != POOLED_ROUTE
    }
    return [
        ("proposed", "nothing yet" if proposed is None else ranges_text(proposed.schedule.as_lists())),
        (
            "crossover",
            f"{at.tokens:.0f} tokens in flight ({at.low:.0f} to {at.high:.0f})"
            if isinstance(at, Crossover)
            else UNKNOWN,
        ),
        *((name, f"acceptance {_alpha(fit)}, gain {_gain(gain)}") for name, (fit, gain) in routes.items()),
    ]


def _alpha(fit: Any) -> str:  # noqa: ANN401 - a fit, or why there is none
    if not isinstance(fit, AcceptanceFit) or not isinstance(fit.alpha, Estimate):
        return UNKNOWN
    return f"{fit.alpha.value:.3f} ({fit.alpha.low:.3f} to {fit.alpha.high:.3f})"


def _gain(gain: Any) -> str:  # noqa: ANN401 - an estimate, or why there is none
    return f"x{gain.value:.2f}" if isinstance(gain, Estimate) else UNKNOWN


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _begin(address: str, folder: Path | None) -> None:
    click.echo("A simulated fleet: 12 engines of three models, one of them with two routes.")
    click.echo(f"While it runs, {address}/ shows it. Ctrl-C ends it.")
    if folder is not None:
        click.echo(f"Database and settings are kept in {folder}.")


def _end(service: Service) -> None:
    """Sum up, and say what comes next."""
    view = service.view()
    windows = sum(view.windows_total.values())
    click.echo(
        "proposed: batch sizes: draft length. gain: over no speculation; it cannot be\n"
        "told where draft length 0 never ran.\n"
        f"{windows} windows were observed, {len(view.findings)} findings are active"
        f"{':' if view.findings else '.'}"
    )
    codes = Counter((SEVERITIES.index(found.severity), found.code) for found in view.findings)
    ordered = sorted(codes.items(), key=lambda item: (item[0][0], -item[1], item[0][1]))
    for (severity, code), count in ordered[:NAMED_CODES]:
        click.echo(f"{count:>4} {SEVERITIES[severity]} {code}")
    if len(ordered) > NAMED_CODES:
        click.echo(f"     and {len(ordered) - NAMED_CODES} other codes")
    click.echo(
        "docs/findings.md says what each means; while it runs (--minutes 0 goes on)\n"
        "the page and /api/v1/findings list them.\n"
        "Your own engines: docs/install.md, or tuner once --config.file FILE --dry-run."
    )
