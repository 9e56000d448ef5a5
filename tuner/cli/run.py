"""``tuner run``: the daemon."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

if TYPE_CHECKING:
    from tuner.daemon.logs import Format, Level

CONFIG_FILE = click.option(
    "--config.file", "config_file", type=click.Path(path_type=Path), required=True, help="Settings, YAML."
)


def _a_number(_context: click.Context, _option: click.Parameter, value: float) -> float:
    """Refuse what is no number, which lies within any range."""
    if value != value:  # noqa: PLR0124 - true of NaN alone
        raise click.BadParameter("nan is no number of seconds: give one from 0.5 to 600")
    return value


EXAMPLES = """\b
Examples:
  tuner run --config.file /etc/tuner/tuner.yaml
  tuner run --config.file tuner.yaml --web.listen-address 127.0.0.1:0 --log.format json
"""


@click.command(epilog=EXAMPLES)
@CONFIG_FILE
@click.option(
    "--web.listen-address",
    "listen",
    multiple=True,
    metavar="ADDRESS",
    help="Listen here in place of web.listen; may be given several times. Port 0 takes a free one.",
)
@click.option(
    "--web.config.file",
    "web_config_file",
    type=click.Path(path_type=Path),
    help="Prometheus web configuration with TLS and users, in place of web.config_file.",
)
@click.option(
    "--web.enable-lifecycle", "lifecycle", is_flag=True, help="Allow POST /-/reload, with the token."
)
@click.option(
    "--store.lease-ttl",
    "lease_ttl",
    type=click.FloatRange(0.5, 600.0),
    callback=_a_number,
    default=20.0,
    show_default=True,
    help="Seconds of silence after which a stand-by takes over; the same for all on one database.",
)
@click.option(
    "--log.level",
    "level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Least level of what is logged.",
)
@click.option(
    "--log.format",
    "form",
    type=click.Choice(["logfmt", "json"]),
    default="logfmt",
    show_default=True,
    help="How an event is written on its line of stderr.",
)
def run(
    *,
    config_file: Path,
    listen: tuple[str, ...],
    web_config_file: Path | None,
    lifecycle: bool,
    lease_ttl: float,
    level: str,
    form: str,
) -> int:
    """Watch the engines, remember, plan each cycle, and tell: until SIGTERM or Ctrl-C.

    SIGHUP reads the settings anew; a bad file keeps the old ones. Exit code 0: ended when asked,
    2: the settings or an address cannot be used.
    """
    from tuner.daemon.signals import Signals

    signals = Signals()
    signals.hold()  # first of all: until then SIGHUP ends a process, and the imports take a second

    from tuner.config import load_config
    from tuner.daemon.logs import configure
    from tuner.daemon.parts import RealParts
    from tuner.daemon.process import Daemon, Options, leave

    log = configure(cast("Level", level), cast("Format", form))
    config = load_config(config_file)
    options = Options(config_file, listen, web_config_file, lifecycle, lease_ttl)
    daemon = Daemon(config, options, RealParts, log, signals)
    code = daemon.run()
    leave(daemon, code)
    return code
