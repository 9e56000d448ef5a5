"""``tuner doctor``: can everything that the settings name be reached, and is what it says usable?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.output import print_json, print_line

if TYPE_CHECKING:
    from tuner.daemon.doctor import Report

EXIT_FAULT = 1
"""Exit code where something is at fault; 2 is kept for settings that cannot be read."""

EXAMPLES = """\b
Examples:
  tuner doctor --config.file /etc/tuner/tuner.yaml
  tuner doctor --config.file tuner.yaml --json | jq '.checks[] | select(.verdict != "ok")'
"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--config.file", "config_file", type=click.Path(path_type=Path), required=True, help="Settings, YAML."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def doctor(ctx: click.Context, *, config_file: Path, as_json: bool) -> None:
    """Ask every engine, metrics server, database, admin API and Alertmanager once.

    Reads only: nothing is pushed, written or migrated. Exit code 0: no fault (warnings may be), 1: faults,
    2: the settings cannot be used.
    """
    import httpx2

    from tuner.config import load_config
    from tuner.daemon.clock import SteadyClock, SystemClock
    from tuner.daemon.doctor import examine
    from tuner.daemon.parts import RealParts

    config = load_config(config_file)
    clock = SteadyClock(SystemClock())
    with httpx2.Client(follow_redirects=False, trust_env=False) as client:
        report = examine(config, RealParts(clock), client, clock.now)
    if as_json:
        print_json(_document(report))
    else:
        _print(report)
    if report.faults:
        ctx.exit(EXIT_FAULT)


def _document(report: Report) -> dict[str, Any]:
    return {
        "ok": not report.faults,
        "checks": [
            {"subject": c.subject, "verdict": c.verdict, "said": c.said, "remedy": c.remedy}
            for c in report.checks
        ],
        "findings": [finding.as_dict() for finding in report.findings],
    }


def _print(report: Report) -> None:
    """Print a line for each check, with what is wrong and what to do."""
    width = max((len(check.verdict) for check in report.checks), default=0)
    for check in report.checks:
        remedy = f": {check.remedy}" if check.remedy else ""
        print_line(f"{check.verdict:<{width}}  {check.subject}: {check.said}{remedy}", indent="")
    click.echo(f"{report.faults} fault{'s' if report.faults != 1 else ''}")
