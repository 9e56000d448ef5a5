"""``tuner simulate`` as a child: it ends with its parent, and says how its engines are named."""

from __future__ import annotations

import json
import subprocess
import sys

import httpx2

COMMAND = (sys.executable, "-m", "tuner", "simulate", "fleet", "--preset", "fixed", "--speed", "0")
PATIENCE = 60.0


def _started(*options: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    process = subprocess.Popen(
        [*COMMAND, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def test_it_ends_when_standard_input_closes() -> None:
    """With the option a pipe that closes ends it as a signal does: exit code 0, nothing on stderr."""
    process, _ = _started("--while-stdin-open")
    _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, "")


def test_without_the_option_it_goes_on() -> None:
    """A server in the background has no standard input, and serves on."""
    process, ready = _started()
    assert process.stdin is not None
    process.stdin.close()
    try:
        assert httpx2.get(f"{ready['url']}/sim/now", timeout=PATIENCE).status_code == 200
        assert process.poll() is None
    finally:
        process.stdin = None
        process.terminate()
        process.communicate(timeout=PATIENCE)


def test_it_says_where_its_engines_are() -> None:
    """Its line has the pattern of their addresses; a page that is not there names it too."""
    process, ready = _started("--while-stdin-open")
    try:
        address = ready["engines"].replace("<pool>", "fixed").replace("<n>", "0")
        assert httpx2.get(f"{address}/metrics", timeout=PATIENCE).status_code == 200
        missing = httpx2.get(f"{ready['url']}/metrics", timeout=PATIENCE)
        assert missing.status_code == 404
        assert "/engines/<pool>/<n>" in missing.json()["error"]
    finally:
        process.communicate(timeout=PATIENCE)
