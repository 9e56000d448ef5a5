"""How much faster than real time simulated fleets run, and what their pages cost.

Bounds, in seconds of the process's own CPU so that a busy machine does not break them: 50 engines at 60
times real time, 1000 engines at 3 times, a page of 20 KB in 0.5 ms, 55 KB in 0.6 ms; over HTTP 500 pages
of 55 KB a second from one process.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from http.client import HTTPConnection

from tuner.simulate import Fleet, preset

WARM_SECONDS = 20.0
"""Simulated seconds until batches have filled."""
FLEETS = ((50, 60.0, 60.0), (1000, 10.0, 3.0))
"""Engines, simulated seconds, least times real time."""
PAGES = 400
MAX_PAGE_MS = 0.5
MAX_PADDED_MS = 0.6
MIN_HTTP_PAGES = 500.0


def run_fleet(engines: int, seconds: float) -> tuple[float, float]:
    """Return times real time and steps per simulated second and engine."""
    fleet = Fleet(preset("scale", engines), seed=1)
    fleet.advance(WARM_SECONDS)
    counters = fleet.engines.state.counters
    steps = counters.steps.sum()
    begun = time.process_time()
    fleet.advance(seconds)
    spent = time.process_time() - begun
    return seconds / spent, float(counters.steps.sum() - steps) / seconds / engines


def page_ms(name: str) -> tuple[float, int]:
    """Return milliseconds per page and its bytes."""
    fleet = Fleet(preset(name, 50 if name == "scale" else None), seed=1)
    fleet.advance(WARM_SECONDS)
    pool = next(iter(fleet.pools))
    begun = time.process_time()
    sizes = [len(fleet.body(pool, i % 4)) for i in range(PAGES)]
    return 1e3 * (time.process_time() - begun) / PAGES, max(sizes)


def pages_over_http() -> float:
    """Return pages of 55 KB per second over one connection, from a process of its own that also steps."""
    command = [sys.executable, "-m", "tuner", "simulate", "fleet", "--preset", "scale", "--engines", "100"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        port = json.loads(server.stdout.readline())["port"]
        connection = HTTPConnection("127.0.0.1", port)
        begun = time.perf_counter()
        for i in range(PAGES):
            connection.request("GET", f"/engines/pool-00/{i % 50}/metrics")
            connection.getresponse().read()
        return PAGES / (time.perf_counter() - begun)
    finally:
        server.terminate()
        server.wait(30)


def main() -> int:
    """Print every figure and judge it."""
    broken = False
    for engines, seconds, least in FLEETS:
        times, pace = run_fleet(engines, seconds)
        broken |= times < least
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{engines} engines of {pace:.1f} steps/s: {times:.1f} times real time (bound {least:g}), "
            f"{memory:.0f} MB"
        )
    for name, most in (("demo", MAX_PAGE_MS), ("scale", MAX_PADDED_MS)):
        milliseconds, size = page_ms(name)
        broken |= milliseconds > most
        print(f"page of {size / 1000:.0f} KB: {milliseconds:.2f} ms (bound {most:g})")
    pages = pages_over_http()
    broken |= pages < MIN_HTTP_PAGES
    print(f"over HTTP: {pages:.0f} pages/s (bound {MIN_HTTP_PAGES:g})")
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
