"""Seconds and memory of one cycle at 100 to 3000 engines, by stage.

Pools of 50 engines, 4000 windows each in the cycle's memory: what the memory holds after hours of any load.
Windows are as plain vLLM counters tell them under a schedule of three draft lengths. Each size runs in a
process of its own on one core. Bounds at 1000 engines: 5 s a cycle, 250 MB; and seconds for each engine
at 3000 at most 1.5 times those at 100.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from tuner import cycle
from tuner.fleet import Counts, Fingerprint, Gauges, Window, WindowState
from tuner.recall import Recall

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")
SIZES = (100, 300, 1000, 3000)
POOL_SIZE = 50
MAX_WINDOWS = 4000
ROUNDS = 3
"""Cycles of which the fastest counts: what else runs on the machine only ever slows one down."""
HELD = 100
"""Windows of each engine: 5000 of a pool, so that the memory is full and thins."""
SECONDS = 15.0
START = 1_800_000_000.0
RUNS = Fingerprint(engine="vllm", model="m")
HAZARDS = (0.8, 0.72, 0.66, 0.6)
STAGES = (
    "current_windows",
    "fit_acceptance",
    "fit_step_time",
    "table_from_fits",
    "plan",
    "predicted_speedup",
)
MAX_SECONDS, MAX_MEGABYTES, MAX_GROWTH = 5.0, 250.0, 1.5


def pool_windows(pool: str, seed: int) -> list[Window]:
    """Return the windows of one pool, engine by engine."""
    rng = np.random.default_rng(seed)
    out = []
    for number in range(POOL_SIZE):
        phase = rng.uniform(0, 2 * math.pi)
        index = np.arange(HELD)
        batch = 18.0 * np.exp(1.2 * np.sin(phase + index / 20) + rng.normal(0, 0.05, HELD))
        share = np.clip(rng.normal(0.5, 0.3, HELD), 0, 1)
        for i, (size, part) in enumerate(zip(batch.tolist(), share.tolist(), strict=True)):
            lens = (4,) if size < 8 else (2, 4) if size < 16 else (2,) if size < 30 else (1, 2)
            out.append(_window(pool, f"{pool}-{number}", i, size, lens, part, rng))
    return out


def _window(
    pool: str,
    engine: str,
    index: int,
    batch: float,
    lens: tuple[int, ...],
    part: float,
    rng: np.random.Generator,
) -> Window:
    mean = lens[0] if len(lens) == 1 else lens[0] + part * (lens[1] - lens[0])
    tokens = batch * (mean + 1.5)
    seconds = 0.002 + 0.016 * math.hypot(1.0, tokens / 60.0) + 0.0008 * mean
    steps = float(round(SECONDS / (seconds * math.exp(rng.normal(0, 0.04)))))
    drafts = float(round(steps * batch))
    accepted, reached = [], drafts
    for position, hazard in enumerate(HAZARDS):
        share = 1.0 if position < lens[0] else part if position < lens[-1] else 0.0
        beyond = share if position in (0, lens[0]) else 1.0 if share else 0.0
        reached = float(rng.binomial(int(reached * beyond), hazard)) if share else 0.0
        accepted.append(reached)
    counts = Counts(
        steps=steps, request_steps=drafts, request_step_seconds=drafts * SECONDS / steps, drafts=drafts,
        draft_tokens=float(round(drafts * mean)), accepted=sum(accepted),
        accepted_by_position=tuple(accepted),
        emitted=drafts + sum(accepted) + drafts / 60, first_tokens=drafts / 60, prompt_tokens=0.5 * drafts,
        finished=drafts / 60, request_seconds=drafts * SECONDS / steps, preemptions=0.0,
    )  # fmt: skip
    gauges = Gauges(running=batch, waiting=0.0, kv_usage=0.2, kv_tokens=300.0 * batch)
    start = START + SECONDS * index
    return Window(
        pool, engine, start, start + SECONDS, WindowState.GOOD, "", counts, gauges, RUNS,
        draft_lens=frozenset(lens),
    )  # fmt: skip


class Stages:
    """Seconds spent in the functions that a cycle calls."""

    def __init__(self) -> None:
        """Put a clock around each of them."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        for name in STAGES:
            setattr(cycle, name, self._timed(name, getattr(cycle, name)))

    def _timed(self, name: str, function: Callable[P, T]) -> Callable[P, T]:
        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            begun = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[name] += time.process_time() - begun

        return timed


def measure(engines: int) -> dict[str, Any]:
    """Return seconds by stage and memory of one cycle; to be called in a process of its own."""
    recall = Recall(MAX_WINDOWS)
    names = [f"pool-{number:02d}" for number in range(max(1, engines // POOL_SIZE))]
    last: list[Window] = []
    for number, name in enumerate(names):
        windows = pool_windows(name, number)
        recall.add(windows)
        last += windows[HELD - 1 :: HELD]
    now = START + SECONDS * (HELD + 1)
    cycle.run_once(cycle.Evidence(recall.windows(names[0], now)), cycle.State(), now)  # imports
    stages = Stages()
    rounds = [_round(recall, names, last, now, stages) for _ in range(ROUNDS)]
    seconds, parts, seen = min(rounds, key=lambda one: one[0])
    # The first look weighs all windows; live, where weights change with each cycle, every one does.
    seconds += rounds[0][1]["recall.windows"] - parts["recall.windows"]
    parts["recall.windows"] = rounds[0][1]["recall.windows"]
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"windows": seen, "seconds": seconds, "megabytes": megabytes, "stages": parts}


def _round(
    recall: Recall, names: list[str], last: list[Window], now: float, stages: Stages
) -> tuple[float, dict[str, float], int]:
    """Return the seconds of one cycle, by stage, and the windows it looked at."""
    stages.seconds.clear()
    clock = [time.process_time()]
    recall.add(last)
    clock.append(time.process_time())
    seen = tuple(window for name in names for window in recall.windows(name, now))
    latest = tuple(window for name in names for window in recall.latest(name))
    clock.append(time.process_time())
    settings = cycle.PoolSettings(half_life_seconds=21_600.0)
    decided = cycle.run_once(cycle.Evidence(seen, latest=latest), cycle.State(default=settings), now)
    clock.append(time.process_time())
    assert len(decided.pools) == len(names)
    add, look, cycled = np.diff(clock).tolist()
    parts = {"recall.add": add, "recall.windows": look, **stages.seconds}
    return clock[-1] - clock[0], {**parts, "rest": cycled - sum(stages.seconds.values())}, len(seen)


def main() -> int:
    """Print a row for each size and judge the bounds."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    rows: dict[int, dict[str, Any]] = {}
    for engines in SIZES:
        command = [sys.executable, "-m", "bench.cycle_scale", str(engines)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        rows[engines] = row = json.loads(done.stdout)
        each = row["seconds"] / engines / (rows[SIZES[0]]["seconds"] / SIZES[0])
        print(
            f"{engines:>5} engines, {row['windows']:>6} windows: {row['seconds']:6.2f} s, "
            f"{row['megabytes']:4.0f} MB, {each:4.2f} times the seconds of 100 for each engine"
        )
        print("      " + ", ".join(f"{name} {seconds:.2f}" for name, seconds in row["stages"].items()))
        rows[engines]["each"] = each
    at = rows[1000]
    print(f"bounds at 1000: {MAX_SECONDS:g} s, {MAX_MEGABYTES:g} MB; growth to 3000 {MAX_GROWTH:g} times")
    broken = at["seconds"] > MAX_SECONDS or at["megabytes"] > MAX_MEGABYTES or rows[3000]["each"] > MAX_GROWTH
    return int(broken)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(int(sys.argv[1]))))
        sys.exit(0)
    sys.exit(main())
