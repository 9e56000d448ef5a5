"""``tuner demo``: it learns, serves meanwhile, and ends cleanly whenever it is told."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

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


def _engines() -> set[int]:
    """Processes that simulate the demo's fleet now."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                arguments = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"simulate" in arguments and b"demo" in arguments:
                found.add(int(folder.name))
    return found


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


def test_it_serves_while_it_runs_and_ends_on_ctrl_c() -> None:
    """Its metrics answer; Ctrl-C prints what was learnt, ends the engines too, and leaves with 0."""
    before = _engines()
    with _demo("--minutes", "0") as process:
        try:
            address = re.search(r"http://[0-9.:]+", _lines_until(process, "http://")[-1])
            assert address is not None
            _lines_until(process, r"^0:0[12]:00 ")
            metrics = httpx2.get(f"{address[0]}/metrics", timeout=10.0)
            assert 'tuner_targets{pool="dense-70b",state="up"} 4.0' in metrics.text
            process.send_signal(signal.SIGINT)
            printed, errors = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert errors == ""
    assert "windows were observed" in printed
    assert _engines() - before == set()


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    """One line, exit 2, and no engines are started."""
    (tmp_path / "file").write_text("")
    with _demo("--directory", str(tmp_path / "file" / "below")) as process:
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert errors.startswith("error: --directory")
    assert errors.count("\n") == 1
