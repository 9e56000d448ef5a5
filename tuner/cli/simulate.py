"""``tuner simulate``: engines that are not there, for demonstrations and tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner._exceptions import InputError
from tuner.cli.parameters import Number

if TYPE_CHECKING:
    from tuner.simulate import FleetSpec
    from tuner.simulate.server import FleetServer

LARGEST_PORT = 65_535
CHUNK = 4096
"""Bytes of standard input, which nobody writes to, that are passed over at a time."""

EXAMPLES = """\b
Examples:
  tuner simulate fleet --preset demo
  tuner simulate fleet --preset scale --engines 300 --listen 127.0.0.1:9000
  tuner simulate fleet --fleet fleet.yaml --speed 60
  tuner simulate engine --alpha 0.8 --schedule '[[1,8,4],[9,64,2]]'
"""


@click.group(epilog=EXAMPLES)
def simulate() -> None:
    """Serve simulated engines over HTTP until interrupted.

    They speak vLLM's metrics, DCGM's, and the tuner's plugin, and follow a cost model of their own.
    """


def _served(command: Any) -> Any:  # noqa: ANN401 - click's decorators take and return what they decorate
    """Add the options that both verbs share."""
    for option in reversed(
        (
            click.option("--listen", default="127.0.0.1:0", show_default=True, metavar="HOST:PORT",
                         help="Address; port 0 chooses a free one."),
            click.option("--speed", type=Number(0.0, 10_000.0, hint="as in 60 or 0"), default=1.0,
                         show_default=True, help="Simulated seconds per second; 0: POST /sim/advance only."),
            click.option("--seed", type=Number(0, 2**31, whole=True), default=0, show_default=True,
                         help="Seed of everything random."),
            click.option("--start", type=Number(0.0, 1e11, hint="as in 1764000000"), default=None,
                         help="Unix second to start at; now if not given."),
            click.option("--token-file", type=click.Path(), help="File with the bearer token for pushes."),
            click.option("--truth", is_flag=True, help="Answer GET /sim/truth: for tests."),
            click.option("--while-stdin-open", is_flag=True,
                         help="End when standard input closes, as it does when the parent process dies."),
            click.option("--pad", is_flag=True, help="Fill metrics pages to the 55 KB of a real engine."),
        )
    ):  # fmt: skip
        command = option(command)
    return command


FLEET_EXAMPLES = """\b
Examples:
  tuner simulate fleet --preset demo --speed 60
  tuner simulate fleet --fleet fleet.yaml --listen 127.0.0.1:9000 --token-file engine.token
  tuner simulate fleet --preset scale --engines 1000
"""


@simulate.command(epilog=FLEET_EXAMPLES, short_help="Serve several pools of engines.")
@click.option("--fleet", "file", type=click.Path(), help="Description in YAML, see docs/simulator.md.")
@click.option("--preset", "name", help="Built-in fleet: demo (the default), fixed or scale.")
@click.option("--engines", type=Number(1, 5000, whole=True), help="Engines of the preset scale.")
@_served
def fleet(*, file: str | None, name: str | None, engines: int | None, **served: Any) -> None:  # noqa: ANN401
    """Serve a fleet; prints one line of JSON with its addresses when it is ready."""
    from tuner.simulate import preset
    from tuner.simulate.description import read_fleet

    if file is not None:
        if name is not None or engines is not None:
            raise InputError("tuner simulate fleet: give --fleet or --preset, not both")
        _serve(read_fleet(Path(file)), **served)
    else:
        _serve(preset(name or "demo", engines), **served)


ENGINE_EXAMPLES = """\b
Examples:
  tuner simulate engine
  tuner simulate engine --alpha 0.8 --batch 4,32 --schedule '[[1,8,4],[9,24,2],[25,64,1]]'
  tuner simulate engine --stock --speed 10
"""


@simulate.command(epilog=ENGINE_EXAMPLES, short_help="Serve one engine.")
@click.option("--alpha", type=Number(0.01, 0.99), default=0.7, show_default=True, help="Acceptance.")
@click.option(
    "--batch", default="8,32", show_default=True, metavar="LOW,HIGH", help="Running requests aimed at."
)
@click.option("--schedule", default="[[1,8,4],[9,24,2],[25,64,1]]", show_default=True,
              help="Table at start-up, JSON; [] for an engine started without one.")  # fmt: skip
@click.option("--stock", is_flag=True, help="Without the tuner's plugin.")
@_served
def engine(*, alpha: float, batch: str, schedule: str, stock: bool, **served: Any) -> None:  # noqa: ANN401
    """Serve one engine, engine 0 of a pool called engine."""
    from tuner.simulate.description import fleet_of

    try:
        rows = json.loads(schedule)
        bounds = [float(part) for part in batch.split(",")]
    except ValueError:
        raise InputError(
            "tuner simulate engine: give --schedule as [[1,8,4],[9,64,2]] and --batch as 8,32"
        ) from None
    pool = {
        "name": "engine",
        "engines": 1,
        "plugin": not stock,
        "schedule": rows,
        "routes": [{"name": "chat", "alpha": alpha}],
        "load": {"batch": bounds},
    }
    _serve(fleet_of({"pools": [pool]}), **served)


def _serve(
    spec: FleetSpec,
    *,
    listen: str,
    speed: float,
    seed: int,
    start: float | None,
    token_file: str | None,
    truth: bool,
    pad: bool,
    while_stdin_open: bool,
) -> None:
    """Serve a fleet until SIGINT or SIGTERM, or with ``while_stdin_open`` until that closes."""
    import dataclasses

    from tuner.simulate import Fleet

    host, port = _address(listen)
    token = _token(token_file)
    if pad:
        spec = dataclasses.replace(spec, pad_bodies=True)
    fleet = Fleet(spec, seed, start=time.time() if start is None else start, token=token)
    from tuner.simulate.server import FleetServer

    server = FleetServer(fleet, speed=speed, show_truth=truth)
    asyncio.run(_until_told(server, host, port, seed=seed, while_stdin_open=while_stdin_open))


async def _until_told(
    server: FleetServer, host: str, port: int, *, seed: int, while_stdin_open: bool
) -> None:
    """Say that the server is ready, and wait for a signal."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    if while_stdin_open:
        threading.Thread(target=_read_to_end, args=(loop, told), daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    fleet = server.fleet
    try:
        url = await server.start(host, port)
    except OSError as error:
        raise InputError(f"--listen {host}:{port}: {error.strerror or error}: choose another port") from None
    line = {
        "ready": True,
        "url": url,
        "port": int(url.rpartition(":")[2]),
        "targets": f"{url}/targets",
        "engines": f"{url}/engines/<pool>/<n>",
        "pools": {name: pool.engines for name, pool in fleet.pools.items()},
        "now": fleet.now,
        "speed": server.speed,
        "seed": seed,
        "pid": os.getpid(),
    }
    click.echo(json.dumps(line))
    await told.wait()
    await server.stop()


def _read_to_end(loop: asyncio.AbstractEventLoop, told: asyncio.Event) -> None:
    """Wait, in a thread of its own, until standard input closes; files and terminals can be waited for so."""
    with contextlib.suppress(OSError):
        while os.read(0, CHUNK):
            pass
    with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
        loop.call_soon_threadsafe(told.set)


def _address(listen: str) -> tuple[str, int]:
    """Return host and port."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > LARGEST_PORT:
        raise InputError(f"--listen {listen}: give host:port, as in 127.0.0.1:9000")
    return host.strip("[]") or "127.0.0.1", int(port)


def _token(path: str | None) -> str | None:
    """Return the token in a file, ``None`` without one."""
    if path is None:
        return None
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise InputError(f"--token-file {path}: cannot be read: {reason}") from None
    if not token:
        raise InputError(f"--token-file {path}: empty: write the token into it")
    return token
