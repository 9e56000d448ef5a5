"""``tuner simulate`` as a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = (sys.executable, "-m", "tuner", "simulate")


def started(*arguments: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """Start a server; return its process and what it said when it was ready."""
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        pytest.fail(process.communicate(timeout=30)[1])
    return process, json.loads(line)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_fleet_is_served_until_a_signal(number: signal.Signals) -> None:
    """One line of JSON when it answers, exit code 0 and nothing on stderr after the signal."""
    process, ready = started("fleet", "--preset", "fixed", "--speed", "0", "--start", "1900000000")
    try:
        assert ready["ready"] is True
        assert ready["pid"] == process.pid
        assert ready["pools"] == {"fixed": 4}
        answer = httpx2.post(f"{ready['url']}/sim/advance", json={"seconds": 5}, timeout=30)
        assert answer.json() == {"now": 1900000005.0}
        assert len(httpx2.get(ready["targets"], timeout=30).json()) == 4
    finally:
        process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")


def test_one_engine_is_served(tmp_path: Path) -> None:
    """A single engine with its own table, load and token."""
    token = tmp_path / "token"
    token.write_text("abc\n")
    arguments = ("--alpha", "0.8", "--batch", "4,8", "--schedule", "[[1,64,2]]", "--token-file", str(token))
    process, ready = started("engine", *arguments, "--speed", "0")
    try:
        address = f"{ready['url']}/engines/engine/0/tuner/v1/schedule"
        assert httpx2.get(address, timeout=30).json()["schedule"] == [[1, 64, 2]]
        push = {"version": "v", "fence": 1, "schedule": [[1, 64, 2]]}
        headers = {"Authorization": "Bearer abc"}
        assert httpx2.put(address, json=push, headers=headers, timeout=30).status_code == 200
    finally:
        process.terminate()
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fleet", "--preset", "x"), "no preset 'x'"),
        (("fleet", "--preset", "demo", "--fleet", "x.yaml"), "not both"),
        (("fleet", "--fleet", "/nonexistent.yaml"), "cannot be read"),
        (("fleet", "--listen", "nowhere"), "give host:port"),
        (("fleet", "--listen", "203.0.113.1:1"), "choose another"),
        (("fleet", "--token-file", "/nonexistent"), "cannot be read"),
        (("engine", "--schedule", "[[1,"), "give --schedule as"),
        (("engine", "--alpha", "2"), "--alpha"),
    ],
)
def test_mistakes_are_one_line(arguments: tuple[str, ...], said: str) -> None:
    """Exit code 2 and one line on stderr that names the option and the remedy."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")
