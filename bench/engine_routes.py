"""Engine-routes fitted and planned per second, and where the time goes.

Each of the synthetic engine-routes has its own acceptance, costs and load: 120 windows at 6 batch sizes and
4 draft lengths. All go through one cycle, as they would in the daemon, on one core.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import time
from io import StringIO

import numpy as np

from bench.seeds import commit_seed
from tuner.cycle import Evidence, State, run_once
from tuner.fleet import Counts, Fingerprint, Schedule, Window, WindowState

BATCHES = (2, 4, 8, 16, 32, 64)
DRAFT_LENS = (0, 1, 2, 4)
WINDOWS_PER_CELL = 5
INTERVAL = 15.0
NOISE = 0.02
OUTPUT_TOKENS, PROMPT_TOKENS = 200.0, 50.0
"""Mean length of an answer and of a prompt."""
NEED_SCHEDULES = 0.95
"""Share of engine-routes that must end with a schedule, else the speed is that of giving up."""


def engine_route(pool: str, rng: np.random.Generator) -> list[Window]:
    """Return the windows of one engine-route with costs and acceptance of its own."""
    hazards = rng.uniform(0.5, 0.9) - 0.03 * np.arange(max(DRAFT_LENS))
    survival = np.cumprod(hazards)
    fixed = rng.uniform(0.008, 0.03)
    per_token = fixed / rng.uniform(40, 400)
    windows: list[Window] = []
    cells = [(b, k) for b in BATCHES for k in DRAFT_LENS for _ in range(WINDOWS_PER_CELL)]
    blocks = rng.permutation(len(cells) // WINDOWS_PER_CELL)
    for order, block in enumerate(np.repeat(blocks, WINDOWS_PER_CELL).tolist()):
        batch, k = cells[block * WINDOWS_PER_CELL]
        windows.append(_window(pool, order, (batch, k), (fixed, per_token), survival, rng))
    return windows


def _window(
    pool: str,
    order: int,
    cell: tuple[int, int],
    cost: tuple[float, float],
    survival: np.ndarray,
    rng: np.random.Generator,
) -> Window:
    batch, k = cell
    emitted_per_step = 1.0 + float(survival[:k].sum())
    prompt = batch * emitted_per_step * PROMPT_TOKENS / OUTPUT_TOKENS
    seconds = (cost[0] + cost[1] * (batch * (k + 1) + prompt)) * float(np.exp(rng.normal(0, NOISE)))
    steps = round(INTERVAL / seconds)
    request_steps = float(steps * batch)
    accepted = _accepted(int(request_steps), survival[:k], rng)
    emitted = request_steps + float(sum(accepted))
    finished = emitted / OUTPUT_TOKENS
    counts = Counts(
        steps=float(steps),
        request_steps=request_steps,
        request_step_seconds=request_steps * seconds,
        drafts=request_steps if k else 0.0,
        draft_tokens=request_steps * k,
        accepted=float(sum(accepted)),
        accepted_by_position=tuple(accepted) + (0.0,) * (max(DRAFT_LENS) - k),
        emitted=emitted + finished,
        first_tokens=finished,
        prompt_tokens=prompt * steps,
        finished=finished,
        request_seconds=finished * OUTPUT_TOKENS * seconds / emitted_per_step,
        preemptions=0.0,
    )
    start = 1.7e9 + order * INTERVAL
    return Window(
        pool=pool,
        engine="0",
        start=start,
        end=start + INTERVAL,
        state=WindowState.GOOD,
        reason="",
        counts=counts,
        fingerprint=Fingerprint(engine="vllm", model=pool),
        draft_lens=frozenset({k}) if k else frozenset(),
    )


def _accepted(drafts: int, survival: np.ndarray, rng: np.random.Generator) -> list[float]:
    """Draw how many drafts got past each position."""
    left, before, out = drafts, 1.0, []
    for survived in survival.tolist():
        left = int(rng.binomial(left, survived / before))
        before = survived
        out.append(float(left))
    return out


def main() -> int:
    """Time one cycle over all engine-routes, then profile a tenth of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--routes", type=int, default=1000, help="engine-routes (default %(default)s)")
    count = parser.parse_args().routes
    rng = np.random.default_rng(commit_seed("engine_routes"))
    pools = [engine_route(f"pool-{index}", rng) for index in range(count)]
    everything = Evidence(tuple(window for windows in pools for window in windows))
    begun = time.perf_counter()
    decision = run_once(everything, State(), np.inf)
    seconds = time.perf_counter() - begun
    scheduled = sum(isinstance(pool.schedule, Schedule) for pool in decision.pools)
    print(
        f"{count} engine-routes of {len(pools[0])} windows: {seconds:.1f} s, {count / seconds:.0f} per second"
    )
    print(f"{scheduled} of {count} got a schedule (bound {NEED_SCHEDULES:.0%})")
    profile = cProfile.Profile()
    tenth = Evidence(tuple(window for windows in pools[: max(1, count // 10)] for window in windows))
    profile.runcall(run_once, tenth, State(), np.inf)
    text = StringIO()
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(6)
    print("profile of a tenth, by own time:")
    print("\n".join(line for line in text.getvalue().splitlines() if line.strip())[-1200:])
    return int(scheduled < NEED_SCHEDULES * count)


if __name__ == "__main__":
    sys.exit(main())
