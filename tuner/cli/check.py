"""``tuner check``: validate settings before they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tuner.cli.output import print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tuner.config import Checked, Config, Fault, Pool

EXIT_FAULT = 1
"""Exit code for settings with a fault; 2 is kept for a file that cannot be read."""


NOT_YET = (
    "note: docs/configuration.md marks which settings tuner replay and the daemon act on; "
    "the others are checked only"
)

EXAMPLES = """\b
Examples:
  tuner check config /etc/tuner/tuner.yaml
"""


@click.group(epilog=EXAMPLES)
def check() -> None:
    """Validate a configuration file."""


CONFIG_EXAMPLES = """\b
Examples:
  tuner check config tuner.yaml
  tuner check config tuner.yaml --json
  TUNER_CYCLE__INTERVAL=30s tuner check config tuner.yaml
"""


@check.command(epilog=CONFIG_EXAMPLES, short_help="Validate a configuration file.")
@click.argument("file", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def config(ctx: click.Context, *, file: str, as_json: bool) -> None:
    """Print what the settings in FILE mean, or every fault with its line and remedy.

    TUNER_* variables override the file, here and wherever it is read. Exit code 0: fine, 1: faults,
    2: the file cannot be read.
    """
    from tuner.config import check_config

    checked = check_config(file)
    faults = [*checked.faults, *_unknown_engines(file, checked)]
    if as_json:
        print_json(
            {
                "file": file,
                "ok": not faults,
                "faults": [
                    {
                        "place": fault.place,
                        "line": fault.line,
                        "field": fault.field,
                        "problem": fault.problem,
                        "remedy": fault.remedy,
                    }
                    for fault in faults
                ],
                "notes": list(checked.notes),
                "config": checked.config.model_dump(mode="json") if checked.config is not None else None,
            }
        )
    else:
        _print(file, checked, faults)
    if faults:
        ctx.exit(EXIT_FAULT)


def _unknown_engines(file: str, checked: Checked) -> list[Fault]:
    """Return a fault for every pool whose engine the tuner does not know."""
    from tuner.config import Fault
    from tuner.engines import engine_names

    known = engine_names()
    return [
        Fault(
            file,
            checked.lines.get(("pools", index, "engine")),
            f"pools[{index}].engine",
            f"{pool.engine} is not supported",
            f"use one of {', '.join(known)}",
        )
        for index, pool in enumerate(checked.config.pools if checked.config is not None else ())
        if pool.engine not in known
    ]


def _print(file: str, checked: Checked, faults: list[Fault]) -> None:
    """Print faults to stderr, or what the settings mean to stdout."""
    for fault in faults:
        click.echo(str(fault), err=True)
    if faults or checked.config is None:
        click.echo(f"{file}: {len(faults)} fault{'s' if len(faults) != 1 else ''}", err=True)
        return
    settings = checked.config
    print_table(
        ["pool", "mode", "engine", "hardware", "draft lengths", "max batch", "found by"],
        [_pool_row(pool) for pool in settings.pools],
        title="Pools",
        words={"mode", "engine", "hardware", "draft lengths", "found by"},
    )
    click.echo()
    print_table(
        ["setting", "value"],
        list(_rows(settings)),
        title="Settings that differ from their default",
        words={"value"},
    )
    click.echo()
    for note in checked.notes:
        click.echo(f"note: {note}")
    click.echo(NOT_YET)
    click.echo(f"{file}: no faults")


def _pool_row(pool: Pool) -> list[str]:
    """Return one pool as cells."""
    ways = {
        "static": len(pool.engines.static),
        "file_sd": len(pool.engines.file_sd),
        "http_sd": int(pool.engines.http_sd is not None),
        "prometheus": int(pool.engines.prometheus is not None),
    }
    found_by = ", ".join(f"{way} ({count})" for way, count in ways.items() if count)
    lengths = pool.allowed_draft_lens
    return [
        pool.name,
        pool.mode,
        pool.engine,
        (pool.hardware.name or "custom") if pool.hardware is not None else "measured only",
        ",".join(map(str, lengths)) if lengths is not None else "as measured",
        str(pool.max_batch) if pool.max_batch is not None else "as measured",
        found_by or "replays only",
    ]


def _rows(settings: Config) -> Iterator[list[str]]:
    """Yield name and value of every setting that is not at its default, as the file would hold it."""
    from tuner.config.reference import shown
    from tuner.config.structure import settings_of

    for name, field, value in settings_of(settings):
        if value != field.default:
            yield [name, shown(field, value)]
