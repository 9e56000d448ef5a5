"""``tuner demo``: it learns, serves meanwhile, and ends cleanly whenever it is told."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx2
import pytest

from tuner.serve.words import ranges_text
from tuner.store import open_store

PATIENCE = 120.0


def _demo(*options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tuner", "demo", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def _lines_until(process: subprocess.Popen[str], pattern: str) -> list[str]:
    """Read lines up to the first that holds ``pattern``."""
    assert process.stdout is not None
    lines: list[str] = []
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        readable, _, _ = select.select([process.stdout], [], [], 1.0)
        if readable:
            lines.append(process.stdout.readline())
            if re.search(pattern, lines[-1]):
                return lines
            assert lines[-1], f"ended before {pattern}: {lines}"
    pytest.fail(f"no {pattern} in {lines}")


def _engines(demo: int) -> set[int]:
    """Processes that simulate the fleet of a demo."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                arguments = (folder / "cmdline").read_bytes().split(b"\0")
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == demo and b"simulate" in arguments:
                found.add(int(folder.name))
    return found


def _gone(processes: set[int]) -> bool:
    """Whether processes have ended, waiting for that a while; a zombie that nobody waits for has ended."""
    pause = threading.Event()
    for _ in range(int(PATIENCE / 0.1)):
        if not any(_lives(process) for process in processes):
            return True
        pause.wait(0.1)
    return False


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_it_learns_and_says_what(tmp_path: Path) -> None:
    """A few simulated minutes: acceptance by route near its truth, kept settings and database, exit 0."""
    with _demo("--minutes", "4", "--directory", str(tmp_path)) as process:
        printed, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert errors == ""
    rows = {
        cells[0]: float(cells[1])
        for line in printed.splitlines()
        if (cells := re.findall(r"\b(?:tools|chat)\b|0\.\d{3}", line)) and len(cells) >= 2
    }
    assert rows["tools"] == pytest.approx(0.85, abs=0.03)
    assert (tmp_path / "tuner.yaml").exists()
    assert (tmp_path / "tuner.db").exists()
    assert "0:04:00" in printed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_while_it_runs_and_ends_when_told(number: signal.Signals) -> None:
    """Its metrics answer; Ctrl-C and SIGTERM print what was learnt, end the engines too, and leave with 0."""
    with _demo("--minutes", "0") as process:
        try:
            address = re.search(r"http://[0-9.:]+", _lines_until(process, "http://")[-1])
            assert address is not None
            _lines_until(process, r"^0:0[12]:00 ")
            metrics = httpx2.get(f"{address[0]}/metrics", timeout=10.0)
            assert 'tuner_targets{pool="dense-70b",state="up"} 4.0' in metrics.text
            engines = _engines(process.pid)
            assert len(engines) == 1
            process.send_signal(number)
            printed, errors = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert errors == ""
    assert "windows were observed" in printed
    assert _gone(engines)


def test_a_demo_that_is_killed_leaves_no_engines_behind() -> None:
    """SIGKILL lets nothing be tidied up: the engines see that their parent is gone."""
    with _demo("--minutes", "0") as process:
        try:
            _lines_until(process, "http://")
            engines = _engines(process.pid)
            assert len(engines) == 1
        finally:
            process.kill()
    assert _gone(engines)


def test_it_ends_with_what_fits_a_small_terminal(tmp_path: Path) -> None:
    """No line is wider than 80 columns; each proposal told of is one that the daemon wrote down."""
    with _demo("--minutes", "6", "--directory", str(tmp_path)) as process:
        printed, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    lines = printed.splitlines()
    learnt = lines[lines.index("") :]
    assert [line for line in learnt if len(line) > 80] == []
    assert all(line == line.rstrip() for line in learnt)
    told = re.findall(r"^\d:\d\d:\d\d  (\S+) proposed (.*)$", printed, re.MULTILINE)
    store = open_store(f"sqlite:///{tmp_path}/tuner.db")
    written = [(row.pool, ranges_text(row.schedule.as_lists())) for row in store.schedules()]
    store.close()
    assert written
    assert sorted(told) == sorted(written)
    for ranges in dict(told).values():
        assert re.search(rf"^  proposed +{re.escape(ranges)}$", printed, re.MULTILINE)
    assert re.search(r"findings are active:\n +\d+ (critical|warning) \w+\n", printed)


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    """One line, exit 2, and no engines are started."""
    (tmp_path / "file").write_text("")
    with _demo("--directory", str(tmp_path / "file" / "below")) as process:
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert errors.startswith("error: --directory")
    assert errors.count("\n") == 1
