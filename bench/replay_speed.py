"""Whole-process time and memory of ``tuner replay`` on the recording of 117 scrapes.

Bounds: 3 s and 250 MB on two cores, interpreter start and imports included.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

RECORDING = Path(__file__).resolve().parent.parent / "tests/data/recordings/vllm-0.32-cpu-short"
RUNS = 5
MAX_SECONDS = 3.0
MAX_MEGABYTES = 250.0


def replay_once() -> tuple[float, float]:
    """Return wall seconds and peak resident megabytes of one replay."""
    code = "from tuner.cli import main; main()"
    command = [sys.executable, "-c", code, "replay", str(RECORDING), "--engine", "vllm", "--json"]
    begun = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - begun
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise RuntimeError(f"replay left with exit code {child.returncode}")
    return seconds, usage.ru_maxrss / 1024


def main() -> int:
    """Print every run and judge the median time and the largest memory."""
    scrapes = len(list(RECORDING.glob("*.prom*")))
    runs = [replay_once() for _ in range(RUNS)]
    for seconds, megabytes in runs:
        print(f"replay of {scrapes} scrapes: {seconds:.2f} s, {megabytes:.0f} MB")
    median = statistics.median(seconds for seconds, _ in runs)
    peak = max(megabytes for _, megabytes in runs)
    print(f"median {median:.2f} s (bound {MAX_SECONDS:g}), peak {peak:.0f} MB (bound {MAX_MEGABYTES:g})")
    return int(median > MAX_SECONDS or peak > MAX_MEGABYTES)


if __name__ == "__main__":
    sys.exit(main())
