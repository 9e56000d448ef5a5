"""What the demo shows: a screen that is drawn anew, or a line a minute where there is no terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import click
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tuner.fit.acceptance import AcceptanceFit
from tuner.fit.crossover import Crossover
from tuner.fleet import POOLED_ROUTE, Estimate, Schedule

if TYPE_CHECKING:
    from pathlib import Path

    from tuner.cycle import PoolDecision
    from tuner.daemon.service import Service

MINUTE = 60.0
SHOWN_EVENTS = 8
COLUMNS = ("pool", "engines", "windows", "route", "acceptance α", "crossover, tokens", "schedule", "gain")
UNKNOWN = "cannot say"


class Story:
    """What changed from picture to picture, in words."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self._said: dict[tuple[str, str], str] = {}

    def hear(self, service: Service, passed: float) -> list[str]:
        """Note what is new in the last cycle, and return it."""
        new: list[str] = []
        decision = service.decider.decision
        for pool in () if decision is None else decision.pools:
            if isinstance(pool.schedule, Schedule):
                told = f"proposes {_ranges(pool.schedule)}"
                self._tell(new, pool.pool, "schedule", told, passed)
            if isinstance(pool.crossover, Crossover):
                self._tell(new, pool.pool, "crossover", "has told its crossover", passed)
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
        self._live.update(Group(title, table(service), *events), refresh=True)

    def end(self, service: Service) -> None:
        """Say what was done."""
        _end(service)


class Plain:
    """Lines for a pipe or a log: what changed, and the table at the end."""

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
        """Print the table."""
        Console(width=max(Console().width, 130)).print(table(service))
        _end(service)


def table(service: Service) -> Table:
    """Return what is known of every pool and route, one row each."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in COLUMNS:
        shown.add_column(name, overflow="fold", justify="right" if name in {"engines", "windows"} else "left")
    decision = service.decider.decision
    known = {} if decision is None else {pool.pool: pool for pool in decision.pools}
    for status in service.view().pools:
        pool = known.get(status.name)
        if pool is None:
            shown.add_row(status.name, str(status.engines), "0", *["…"] * 5)
            continue
        first = (status.name, str(status.engines), str(len(pool.windows)))
        for row in _rows(pool):
            shown.add_row(*first, *row)
            first = ("", "", "")
    return shown


def _rows(pool: PoolDecision) -> list[tuple[str, str, str, str, str]]:
    """Return the rows of a pool: all routes together, then each."""
    at = pool.crossover
    crossover = f"{at.tokens:.0f}  ({at.low:.0f} to {at.high:.0f})" if isinstance(at, Crossover) else UNKNOWN
    schedule = _ranges(pool.schedule) if isinstance(pool.schedule, Schedule) else UNKNOWN
    rows = [("all", _alpha(pool.acceptance), crossover, schedule, _gain(pool.speedup))]
    named = {route: fit for route, fit in pool.routes.items() if route != POOLED_ROUTE}
    rows += [
        (route, _alpha(fit), "", "", _gain(pool.route_speedups.get(route)))
        for route, fit in sorted(named.items())
    ]
    return rows


def _alpha(fit: Any) -> str:  # noqa: ANN401 - a fit, or why there is none
    if not isinstance(fit, AcceptanceFit) or not isinstance(fit.alpha, Estimate):
        return UNKNOWN
    return f"{fit.alpha.value:.3f}  ({fit.alpha.low:.3f} to {fit.alpha.high:.3f})"


def _gain(gain: Any) -> str:  # noqa: ANN401 - an estimate, or why there is none
    return f"x{gain.value:.2f}" if isinstance(gain, Estimate) else UNKNOWN


def _ranges(schedule: Schedule) -> str:
    """Return a schedule as ``1-8: 4, 9-24: 2``."""
    return ", ".join(f"{first}-{last}: {draft_len}" for first, last, draft_len in schedule.ranges)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _begin(address: str, folder: Path | None) -> None:
    click.echo("A simulated fleet of 12 engines: a dense model, a mixture of experts, one with two routes.")
    click.echo(f"While it runs: {address}/ and {address}/metrics. Ctrl-C ends it.")
    if folder is not None:
        click.echo(f"Database and settings are kept in {folder}.")


def _end(service: Service) -> None:
    """Sum up, and say what comes next."""
    view = service.view()
    windows = sum(view.windows_total.values())
    click.echo(
        f"{windows} windows were observed, {len(view.findings)} findings are active.\n"
        "gain: over no speculation; it cannot be told where draft length 0 never ran.\n"
        "Your own engines: docs/install.md, or tuner once --config.file FILE --dry-run."
    )
