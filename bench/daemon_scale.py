"""What the whole daemon costs by the number of engines: ``python -m bench.daemon_scale [--engines 100,300]``.

The daemon's own service (scraper, windows, memory, fits, plan, SQLite) in virtual time in a process of its
own; the engines, preset ``scale`` (pools of 50, pages of 55 KB, the tuner's plugin), in another. For each
size: wall and CPU seconds of a round of scrapes and of a cycle, stage by stage, in the median of three
minutes, and the memory at the end. The two processes take turns, but for pages, which one makes while the
other reads.

A cycle costs what it looks at, so each pool's memory is filled to ``cycle.max_windows`` first: with the
windows of the first rounds, put back in time again and again, each count times a number near 1. Real scraping
would take half an hour of the engines' time to fill it.

Exits 1 when, at 1 000 engines, a round takes 4 s, a cycle 5 s or the process 400 MB or more, or when CPU time
an engine at the largest size is over twice that at the smallest (which 100 engines or more make comparable).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any

import httpx2

from bench.scrape_round import resident
from bench.seeds import commit_seed
from bench.static_engines import raise_file_limit
from bench.stopwatch import Stopwatch
from tuner import cycle as cycle_module
from tuner.config import Config
from tuner.daemon import deciding
from tuner.daemon.accelerated import Accelerated
from tuner.daemon.deciding import Decider
from tuner.daemon.logs import configure
from tuner.daemon.parts import RealParts
from tuner.daemon.publishing import Published
from tuner.daemon.remembering import Remembered
from tuner.daemon.service import Service
from tuner.daemon.watching import Watched
from tuner.daemon.writing import Writer
from tuner.fleet import Counts, Window
from tuner.observe.scraping import Scraper

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.stopwatch import Spent

ENGINES = (100, 300, 1000, 3000)
MODEST = (100, 300)
"""Sizes without ``--engines``: half a minute, which ``make bench`` can afford each time."""
BOUNDED = 1000
MOST_ROUND, MOST_CYCLE, MOST_MEGABYTES = 4.0, 5.0, 400.0
MOST_GROWTH = 2.0
"""CPU seconds an engine at the largest size over those at the smallest: cache misses cost some, anything
quadratic would cost ten times as much from 100 to 1 000."""
WARM_MINUTES = 2
"""Simulated minutes before memory is filled: eight windows of each engine to fill it with."""
MEASURED_MINUTES = 3
MINUTE = 60.0
"""Seconds between cycles; rounds are 15 s apart."""
SPREAD = 0.05
"""Standard deviation of the numbers that counts of copied windows are multiplied by."""
PATIENCE = 120.0

JOBS = (
    (Service, "scrape", "round"),
    (Service, "cycle", "cycle"),
    (Service, "discover", "discovery"),
    (Service, "read_back", "readback"),
    (Service, "roll_up", "rollup"),
    (Published, "renew", "publish"),
)
STAGES = (
    (Scraper, "round", "round: read"),
    (Watched, "take", "round: windows"),
    (Remembered, "add", "round: remember"),
    (Writer, "put", "round: store"),
    (Remembered, "look", "cycle: look"),
    (deciding, "run_once", "cycle: decide"),
    (cycle_module, "fit_acceptance", "decide: acceptance"),
    (cycle_module, "fit_step_time", "decide: step time"),
    (cycle_module, "table_from_fits", "decide: table"),
    (cycle_module, "plan", "decide: plan"),
    (cycle_module, "predicted_speedup", "decide: speed-up"),
    (cycle_module, "current_windows", "decide: current"),
    (Decider, "_save", "cycle: store"),
)
"""Functions that are counted, and what as. Those of ``decide`` are parts of ``cycle: decide``."""


def settings(fleet: str, pools: Sequence[str], folder: Path) -> Config:
    """Return what an operator would write for this fleet, engines with an admin API included."""
    return Config.model_validate(
        {
            "store": {"url": f"sqlite:///{folder}/tuner.db"},
            "pools": [
                {
                    "name": name,
                    "mode": "advise",
                    "engine": "vllm",
                    "engines": {"http_sd": f"{fleet}/targets/{name}", "identity": ["pod"]},
                    "admin": {"url_template": "http://{{ address }}{{ path }}"},
                }
                for name in pools
            ],
        }
    )


def fill(daemon: Accelerated, seed: int) -> int:
    """Fill the memory of every pool with older copies of what it holds; return how many it holds then."""
    service, now = daemon.service, daemon.clock.now()
    most = daemon.service.config.cycle.max_windows
    random = Random(seed)
    held = 0
    for pool in service.config.pools:
        windows = service.remembered.look([pool.name], now, ()).evidence.windows
        span = max(w.end for w in windows) - min(w.start for w in windows)
        for turn in range(1, 2 + 2 * most // len(windows)):
            factor = random.gauss(1.0, SPREAD)
            service.remembered.restore(_older(window, turn * span, factor) for window in windows)
        held += service.remembered.held(pool.name)
    return held


def _older(window: Window, seconds: float, factor: float) -> Window:
    """Return a window of before, whose numbers are not the same objects in memory."""
    counts = window.counts
    changed: dict[str, Any] = {}
    for name in Counts.__dataclass_fields__:
        value = getattr(counts, name)
        if isinstance(value, float):
            changed[name] = value * factor
        elif isinstance(value, tuple):
            changed[name] = tuple(each * factor for each in value)
        elif isinstance(value, dict):
            changed[name] = {key: each * factor for key, each in value.items()}
    return replace(
        window,
        start=window.start - seconds,
        end=window.end - seconds,
        counts=replace(counts, **changed),
        gauges=replace(window.gauges),
        weight=1.0,
    )


def measure(fleet: dict[str, Any]) -> dict[str, Any]:
    """Run the daemon against a fleet, and return medians by stage."""
    watch = Stopwatch()
    for owner, name, stage in (*JOBS, *STAGES):
        watch.watch(owner, name, stage)
    with (
        httpx2.Client(timeout=PATIENCE, trust_env=False) as client,
        tempfile.TemporaryDirectory(prefix="tuner-bench-") as folder,
    ):

        def advance(seconds: float) -> None:
            reply = client.post(f"{fleet['url']}/sim/advance", json={"seconds": seconds})
            reply.raise_for_status()

        config = settings(fleet["url"], list(fleet["pools"]), Path(folder))
        log = configure("error", "logfmt")
        daemon = Accelerated(config, RealParts, log, now=fleet["now"], advance=advance)
        daemon.run_for(WARM_MINUTES * MINUTE)
        before = resident()
        held = fill(daemon, commit_seed("daemon scale"))
        daemon.run_for(MINUTE)
        watch.take()
        minutes: list[dict[str, Spent]] = []
        for _ in range(MEASURED_MINUTES):
            daemon.run_for(MINUTE)
            minutes.append(watch.take())
        statuses = daemon.service.view()
        out = {
            "stages": _a_run(minutes),
            "held": held,
            "before": before,
            "resident": resident(),
            "up": sum(status.up for status in statuses.targets),
            "schedules": len(statuses.schedules),
            "errors": {job.name: job.errors for job in statuses.jobs if job.errors},
        }
        daemon.close()
    return out


def _a_run(minutes: Sequence[dict[str, Spent]]) -> dict[str, dict[str, float]]:
    """Return seconds by stage: of a run of the job that it is part of, of the median minute."""
    jobs = {stage: stage.partition(":")[0].replace("decide", "cycle") for one in minutes for stage in one}
    return {
        stage: {
            key: median(getattr(one[stage], key) / one[job].calls for one in minutes if stage in one)
            for key in ("wall", "cpu")
        }
        for stage, job in jobs.items()
    }


@contextmanager
def engines(count: int) -> Iterator[dict[str, Any]]:
    """Simulate a fleet in a process of its own; gives what it says of itself."""
    seed = commit_seed("daemon scale fleet") % 2**31
    command = [sys.executable, "-m", "tuner", "simulate", "fleet", "--preset", "scale", "--speed", "0"]
    with subprocess.Popen(
        [*command, "--engines", str(count), "--seed", str(seed)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    ) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


def child(count: int) -> dict[str, Any]:
    """Measure one size in a process of its own, so that its memory is its own."""
    with engines(count) as fleet:
        done = subprocess.run(
            [sys.executable, "-m", "bench.daemon_scale", "--fleet", json.dumps(fleet)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Cost of the whole daemon by the number of engines.")
    parser.add_argument(
        "--engines", default=",".join(map(str, MODEST)), help="sizes, as in 100,300,1000,3000"
    )
    parser.add_argument("--fleet", help=argparse.SUPPRESS)
    given = parser.parse_args()
    raise_file_limit()
    if given.fleet:
        print(json.dumps(measure(json.loads(given.fleet))))
        return 0
    sizes = [int(size) for size in given.engines.split(",")]
    results = {size: child(size) for size in sizes}
    _print(results)
    return 0 if _judge(results) else 1


def _print(results: dict[int, dict[str, Any]]) -> None:
    smallest = min(results)
    print("seconds, wall / CPU; in brackets CPU an engine, over that of the smallest fleet")
    print(f"{'':<20}" + "".join(f"{size:>26} engines" for size in results))
    rows = [stage for _, _, stage in (*JOBS, *STAGES)]
    for stage in rows:
        cells = []
        for size, result in results.items():
            spent = result["stages"].get(stage)
            base = results[smallest]["stages"].get(stage)
            if spent is None:
                cells.append(f"{'-':>34}")
                continue
            ratio = spent["cpu"] / size / (base["cpu"] / smallest) if base and base["cpu"] else 0.0
            cells.append(f"{spent['wall']:>15.3f} / {spent['cpu']:6.3f} ({ratio:4.2f})  ")
        print(f"{stage:<20}" + "".join(cells))
    for name, text in (("resident", "memory, MB"), ("before", "  before filling"), ("held", "windows held")):
        print(f"{text:<20}" + "".join(f"{result[name]:>34.0f}" for result in results.values()))


def _judge(results: dict[int, dict[str, Any]]) -> bool:
    held = True
    for size, result in results.items():
        stages = result["stages"]
        good = result["up"] == size and not result["errors"]
        if size == BOUNDED:
            good = (
                good
                and stages["round"]["wall"] < MOST_ROUND
                and stages["cycle"]["wall"] < MOST_CYCLE
                and result["resident"] < MOST_MEGABYTES
            )
        if not good:
            print(f"{size} engines: bounds broken; {result['up']} up, failed jobs {result['errors']}")
        held &= good
    first, last = min(results), max(results)
    for stage in ("round", "cycle"):
        growth = results[last]["stages"][stage]["cpu"] / results[first]["stages"][stage]["cpu"]
        relative = growth / (last / first)
        print(
            f"{stage}: CPU grows {growth:.2f} times for {last / first:g} times the engines ({relative:.2f})"
        )
        held &= relative < MOST_GROWTH
    return held


if __name__ == "__main__":
    sys.exit(main())
