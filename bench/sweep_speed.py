"""How long a large sweep takes to plan: two hundred thousand rows of a dozen cells, and a raw grid.

    python -m bench.sweep_speed

Bound: 2 s each on one core, a pause that a person at a terminal forgives.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from bench.seeds import commit_seed
from tuner.fleet import Schedule, SweepRow
from tuner.plan.options import PlanOptions
from tuner.plan.planner import plan
from tuner.plan.sweep import from_sweep

MAX_SECONDS = 2.0
REPEATED = (4, 3, 16_667)
"""Batch sizes, draft lengths and repeats: 200 000 rows."""
FINE = (2000, 8, 1)
"""The same where every batch size is its own: 16 000 cells."""
NOISE = 0.02


def rows_of(batches: int, draft_lens: int, repeats: int, rng: np.random.Generator) -> list[SweepRow]:
    """Return the rows of a sweep in which longer drafts pay at small batches."""
    sizes = np.unique(np.rint(np.geomspace(1, 4 * batches, batches)).astype(int)).tolist()
    return [
        SweepRow(batch, k, float(speed))
        for batch in sizes
        for k in range(draft_lens)
        for speed in batch * (1 + 0.7 * k) / (1 + batch * (k + 1) / 300) * rng.lognormal(0, NOISE, repeats)
    ]


def main() -> int:
    """Print the time of each sweep; return 1 where the bound is broken."""
    rng = np.random.default_rng(commit_seed("sweep_speed"))
    worst = 0.0
    for name, shape in (("repeats", REPEATED), ("batch sizes", FINE)):
        rows = rows_of(*shape, rng)
        begun = time.perf_counter()
        planned = plan(from_sweep(rows), PlanOptions())
        seconds = time.perf_counter() - begun
        worst = max(worst, seconds)
        told = isinstance(planned.schedule, Schedule)
        print(f"{len(rows):7d} rows, many {name:12s} {seconds:5.2f} s  schedule: {'yes' if told else 'no'}")
    print(f"bound {MAX_SECONDS:g} s each")
    return int(worst > MAX_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
