"""``tuner demo``: a simulated fleet, the daemon on SQLite, and a view of it learning."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner._exceptions import InputError
from tuner.cli.output import takes_escapes
from tuner.cli.parameters import Number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tuner.config import Config
    from tuner.daemon.accelerated import Accelerated

START_SECONDS = 60.0
"""How long the simulator may take to say that it is ready; it takes 1 s on an idle machine."""
STOP_SECONDS = 5.0
STEP_SECONDS = 15.0
"""Simulated seconds between two pictures: one round of scrapes."""
SETTLE_SECONDS = 20.0
"""Simulated seconds that engines fill up for before the daemon starts."""

EXAMPLES = """\b
Examples:
  tuner demo
  tuner demo --minutes 60 --seed 7
  tuner demo --minutes 0 --web.listen-address 127.0.0.1:9477
"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--minutes",
    type=Number(0, 10_000),
    default=15,
    show_default=True,
    help="Simulated minutes, as fast as this machine goes; 0: until Ctrl-C.",
)
@click.option("--seed", type=Number(0, 2**31, whole=True), default=0, show_default=True, help="Of the load.")
@click.option(
    "--web.listen-address",
    "listen",
    default="127.0.0.1:0",
    show_default=True,
    metavar="ADDRESS",
    help="Where /metrics, the API and the page are served; port 0 takes a free one.",
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the database and the settings here; a temporary folder by default.",
)
def demo(*, minutes: float, seed: int, listen: str, directory: Path | None) -> None:
    """Watch the daemon learn a simulated fleet: three pools, twelve engines, time going by fast.

    The engines run in a process of their own and speak a real engine's metrics. What is true of them is
    not told to the daemon. Ctrl-C, or SIGTERM, ends the demo cleanly and says what was learnt.
    """
    from tuner.cli.demo_view import Plain, Screen

    screen = Screen() if takes_escapes(sys.stdout) else Plain()
    with (
        _ended_alike(),
        _folder(directory) as folder,
        _simulator(seed) as fleet,
        _daemon(fleet, folder, listen) as (daemon, address),
    ):
        screen.begin(address, folder if directory else None)
        try:
            with screen:
                _watch(daemon, minutes, screen.show)
        except KeyboardInterrupt:
            click.echo("")
        screen.end(daemon.service)


@contextmanager
def _ended_alike() -> Iterator[None]:
    """Let SIGTERM, which service managers and time-outs send, end the demo as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _watch(daemon: Accelerated, minutes: float, show: Callable[[Any, float], None]) -> None:
    """Live for so many minutes, or for ever, and show each round."""
    passed = 0.0
    while not minutes or passed < minutes * 60.0:
        daemon.run_for(STEP_SECONDS)
        passed += STEP_SECONDS
        show(daemon.service, passed)


@contextmanager
def _folder(directory: Path | None) -> Iterator[Path]:
    """Give the folder for database and settings."""
    if directory is not None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--directory {directory}: {error.strerror}: name another folder") from None
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="tuner-demo-") as name:
        yield Path(name)


@contextmanager
def _simulator(seed: int) -> Iterator[dict[str, Any]]:
    """Start the simulated fleet and give what it says of itself; end it afterwards."""
    command = [sys.executable, "-m", "tuner", "simulate", "fleet", "--preset", "demo", "--speed", "0"]
    # In a session of its own: Ctrl-C is for the demo, which ends the fleet last. Should the demo be killed,
    # its end of the pipe closes, and the fleet ends by itself.
    with subprocess.Popen(  # noqa: S603 - our own command line
        [*command, "--seed", str(seed), "--while-stdin-open"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={key: value for key, value in os.environ.items() if not key.startswith("TUNER_")},
    ) as process:
        try:
            yield _ready(process)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _ready(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for the line that says where the fleet is."""
    import select

    assert process.stdout is not None
    assert process.stderr is not None
    readable, _, _ = select.select([process.stdout], [], [], START_SECONDS)
    line = process.stdout.readline() if readable else ""
    try:
        said: dict[str, Any] = json.loads(line)
    except ValueError:
        process.kill()
        last = process.stderr.read().strip().splitlines()[-1:]
        raise InputError(f"the simulated fleet did not start: {' '.join(last) or 'no answer'}") from None
    return said


@contextmanager
def _daemon(fleet: dict[str, Any], folder: Path, listen: str) -> Iterator[tuple[Accelerated, str]]:
    """Give a daemon that watches the fleet and takes it along, and the address that it serves at."""
    import httpx2

    from tuner.config import load_config
    from tuner.daemon.accelerated import Accelerated
    from tuner.daemon.logs import configure
    from tuner.daemon.opening import OpenedHistory
    from tuner.daemon.parts import RealParts
    from tuner.serve.app import build_app
    from tuner.serve.server import WebServer

    settings = folder / "tuner.yaml"
    settings.write_text(_settings(fleet, folder), encoding="utf-8")
    config: Config = load_config(settings)
    with httpx2.Client(timeout=START_SECONDS, trust_env=False) as client:

        def advance(seconds: float) -> None:
            client.post(f"{fleet['url']}/sim/advance", json={"seconds": seconds}).raise_for_status()

        advance(SETTLE_SECONDS)
        daemon = Accelerated(
            config,
            RealParts,
            configure("error", "logfmt"),
            now=fleet["now"] + SETTLE_SECONDS,
            advance=advance,
            holder="demo",
        )
        app = build_app(
            daemon.service.view,
            auth=None,
            token_file=None,
            reload=None,
            history=OpenedHistory(daemon.leader),
        )
        web = WebServer(app, listen, None)
        web.start()
        try:
            yield daemon, f"http://{web.address}"
        finally:
            web.stop(STOP_SECONDS)
            daemon.close()


def _settings(fleet: dict[str, Any], folder: Path) -> str:
    """Return the settings of the demo: what an operator would write for these engines."""
    import yaml

    pools = [
        {
            "name": name,
            "mode": "advise",
            "engine": "vllm",
            "engines": {"http_sd": f"{fleet['targets']}/{name}", "identity": ["pod"]},
            "admin": {"url_template": "http://{{ address }}{{ path }}"},
        }
        for name in fleet["pools"]
    ]
    database = folder.resolve() / "tuner.db"
    return yaml.safe_dump({"store": {"url": f"sqlite:///{database}"}, "pools": pools}, sort_keys=False)
