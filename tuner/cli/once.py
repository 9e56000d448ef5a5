"""``tuner once``: some scrapes and one cycle, printed."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner.cli.output import print_json
from tuner.cli.parameters import Number

if TYPE_CHECKING:
    from tuner.config import Config
    from tuner.daemon.clock import SteadyClock
    from tuner.daemon.leader import Leader
    from tuner.daemon.logs import Logger
    from tuner.daemon.service import Service

FEWEST = 2
"""Scrapes that make one window."""
MOST = 1000

EXAMPLES = """\b
Examples:
  tuner once --config.file tuner.yaml --dry-run
  tuner once --config.file tuner.yaml --dry-run --scrapes 20 --json | jq .pools
"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--config.file", "config_file", type=click.Path(path_type=Path), required=True, help="Settings, YAML."
)
@click.option("--dry-run", is_flag=True, help="Open no database: read engines and print, nothing else.")
@click.option(
    "--scrapes",
    type=Number(FEWEST, MOST, whole=True),
    default=FEWEST,
    show_default=True,
    help="Scrapes of each engine, scrape.interval apart.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def once(*, config_file: Path, dry_run: bool, scrapes: int, as_json: bool) -> None:
    """Scrape every engine a few times, fit and plan once, and print it as replay does.

    Takes (scrapes - 1) scrape intervals. Without --dry-run what the database remembers is looked at too, and
    what was seen is saved; a database that a daemon works on is left alone (exit code 2).
    """
    from tuner.config import load_config
    from tuner.daemon.byhand import observe_and_decide
    from tuner.daemon.clock import SteadyClock, SystemClock
    from tuner.daemon.logs import configure
    from tuner.daemon.parts import RealParts

    config = load_config(config_file)
    log = configure("warning", "logfmt")
    clock = SteadyClock(SystemClock())
    seconds = (scrapes - 1) * config.scrape.interval
    click.echo(f"{scrapes} scrapes, {config.scrape.interval:g} s apart: about {seconds:.0f} s", err=True)

    def progress(number: int, engines: int) -> None:
        click.echo(f"scrape {number + 1} of {scrapes}: {engines} engines", err=True)

    service = observe_and_decide(
        config,
        RealParts(clock),
        clock,
        _leader(config, clock, log, dry_run=dry_run),
        log,
        rounds=scrapes,
        progress=progress,
    )
    _print(service, as_json=as_json)


def _leader(config: Config, clock: SteadyClock, log: Logger, *, dry_run: bool) -> Leader:
    from tuner.daemon.leader import Leader, WithoutDatabase
    from tuner.daemon.opening import opener

    if dry_run:
        return WithoutDatabase(clock.monotonic, log)
    holder = f"{socket.gethostname()}:{os.getpid()} once"
    return Leader(opener(config), holder, 20.0, clock.monotonic, log)


def _print(service: Service, *, as_json: bool) -> None:
    """Print the decision, and what is wrong with engines and sources."""
    decision = service.decider.decision
    assert decision is not None
    elsewhere = [finding for finding in service.findings() if finding not in service.decider.findings]
    if as_json:
        from tuner.contract import decision_dict

        document = decision_dict(decision)
        document["findings"] = [*document["findings"], *(finding.as_dict() for finding in elsewhere)]
        print_json(document)
        return
    from tuner.cli.decision import print_decision
    from tuner.cli.plan_text import print_findings

    print_decision(decision)
    print_findings(elsewhere, name_pools=True)
    for pool in service.config.pools:
        if not any(one.pool == pool.name for one in decision.pools):
            click.echo(f"pool {pool.name}: no window yet: give it traffic, or more --scrapes")
