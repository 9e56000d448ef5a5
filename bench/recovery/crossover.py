"""Whether step-time fits find a crossover that is known, and say so when they cannot.

    python -m bench.recovery.crossover [--repetitions N]

Three tables, all results printed:

* the plain world: crossover 20 to 3 000 tokens, sharpness 1, 2, 4 and the roofline, overhead 0 to 0.2
  of the floor; 300 windows over an eighth to eight crossovers, each at its own batch and K of 0 to 4,
  3 % noise, 5 % outliers (a window 1.3 to 3 times too slow), a drafter with a base and a slope;
* harder traffic: few cells with noise of their own, prompts, a drafter that costs per request, a
  machine that drifts, a concave and a flat drafter over few cells, K tied to the batch by a schedule, no
  window without drafts, 10 % noise;
* windows that do not bracket the crossover, and windows at one K.

Bounds: intervals cover at least 90 % over each table, and no case of a table is so low that 90 % is out
of the question (0.1 % quantile); nine of ten point estimates of every plain case within 10 %; not one
answer where windows do not bracket. Harder traffic has no bound on its point estimates: 20 cells with
4 % noise of their own allow 10 % in four of five runs where p = 1, and windows that all drafted leave
the drafter's base (5 % here) in the fixed time, which their interval then allows for.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.recovery.step_time_world import Traffic, World
from bench.seeds import commit_seed
from tuner.fit.step_time import RESAMPLES, fit_step_time
from tuner.fleet import NotEnoughData

CROSSOVERS = (20.0, 60.0, 295.0, 1000.0, 3000.0)
SHARPNESSES = (1.0, 2.0, 4.0, math.inf)
OVERHEADS = (0.0, 0.1, 0.2)
COVERAGE = 0.90
CLOSE = 0.10
CLOSE_SHARE = 0.90
DEFAULT_REPETITIONS = 30
"""Runs of each of 150 cases: 4 500 fits, two to three minutes on one core."""
FEW_CELLS = Traffic(
    windows=108, per_cell=6, low=1 / 24, high=12.0, draft_lens=(0, 2, 4), noise=0.01, cell_noise=0.02
)
"""18 cells at three draft lengths, as a sweep leaves them: too few to tell the drafter's shape for sure."""
HARDER = {
    "60 cells of 5 windows, 4 % between cells": (Traffic(per_cell=5, noise=0.02, cell_noise=0.04), World()),
    "20 cells of 7 windows, 4 % between cells": (
        Traffic(windows=140, per_cell=7, noise=0.02, cell_noise=0.04),
        World(),
    ),
    "prompts up to 0.8 of a step": (Traffic(prompts=0.8), World()),
    "drafter costs 0.1 c per request": (Traffic(), World(draft_batched=0.1)),
    "machine drifts, 8 % over 15 minutes": (Traffic(drift=0.08), World()),
    "K tied to the batch by a schedule": (Traffic(scheduled=True), World()),
    "K 2 and 4 only": (Traffic(draft_lens=(2, 4)), World()),
    "drafter's cost concave in K, 18 cells": (
        FEW_CELLS,
        World(crossover=60.0, draft_base=0.0, draft_slope=0.0, draft_root=0.05),
    ),
    "drafter's cost flat in K, 18 cells": (
        FEW_CELLS,
        World(crossover=60.0, draft_base=0.08, draft_slope=0.0),
    ),
    "10 % noise": (Traffic(noise=0.10), World()),
}
UNBRACKETED = {
    "an eighth to one crossover": Traffic(high=1.0),
    "an eighth to two crossovers": Traffic(high=2.0),
    "0.4 to eight crossovers": Traffic(low=0.4),
    "one to eight crossovers": Traffic(low=1.0),
    "K = 3 only": Traffic(draft_lens=(3,)),
}


@dataclass(frozen=True)
class Case:
    """One world under one kind of traffic."""

    table: str
    name: str
    traffic: Traffic
    world: World

    @property
    def title(self) -> str:
        """Return the row's name, unique over all cases."""
        world = self.world
        return f"{self.name}, N* {world.crossover:g}, p {world.sharpness:g}, o/m {world.overhead_ratio:g}"


def cases() -> list[Case]:
    """Return every case of the three tables."""
    shapes = [(p, o) for p in SHARPNESSES for o in OVERHEADS]
    out = [
        Case("plain", "plain", Traffic(), World(crossover=n, sharpness=p, overhead_ratio=o))
        for n in CROSSOVERS
        for p, o in shapes
    ]
    ends = [(p, o) for p, o in shapes if p in (1.0, 2.0, math.inf) and o in (0.0, 0.2)]
    for table, traffics in (
        ("harder", HARDER),
        ("unbracketed", {k: (t, World()) for k, t in UNBRACKETED.items()}),
    ):
        for name, (traffic, base) in traffics.items():
            for p, o in ends:
                out.append(Case(table, name, traffic, replace(base, sharpness=p, overhead_ratio=o)))
    return out


def measure(case: Case, repetitions: int) -> dict[str, Any]:
    """Return one row: how far off, how often covered, how often said to be unknown."""
    errors, widths, covered, unknown, seconds = [], [], 0, 0, 0.0
    truth = case.world.crossover
    for repetition in range(repetitions):
        rng = np.random.default_rng(commit_seed(f"crossover/{case.title}/{repetition}"))
        windows = case.traffic.run(case.world, rng)
        begun = time.process_time()
        fit = fit_step_time(windows)
        seconds += time.process_time() - begun
        if isinstance(fit, NotEnoughData) or isinstance(fit.crossover, NotEnoughData):
            unknown += 1
            continue
        errors.append(fit.crossover.tokens / truth - 1)
        widths.append(fit.crossover.high / fit.crossover.low)
        covered += fit.crossover.low <= truth <= fit.crossover.high
    row: dict[str, Any] = {"table": case.table, "case": case.title, "repetitions": repetitions}
    row |= {"answers": len(errors), "unknown": unknown, "covered": covered, "ms": 1e3 * seconds / repetitions}
    if errors:
        off = np.array(errors)
        row |= {"bias": off.mean(), "sd": off.std(), "close": float((np.abs(off) <= CLOSE).mean())}
        row |= {"worst": float(np.abs(off).max()), "width": float(np.median(widths))}
    return row


def run(repetitions: int = DEFAULT_REPETITIONS, tables: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Return a row for each case, printed as it is found."""
    print(f"{'case':<76} answers cover   bias     sd  <10 %  worst  high/low  ms/fit")
    rows = []
    for case in cases():
        if tables and case.table not in tables:
            continue
        row = measure(case, repetitions)
        rows.append(row)
        print(_line(row), flush=True)
    return rows


def _line(row: dict[str, Any]) -> str:
    head = f"{row['case']:<76} {row['answers']:>3}/{row['repetitions']:<3} "
    if not row["answers"]:
        return f"{head} cannot say{row['ms']:>46.0f}"
    cover = row["covered"] / row["answers"]
    return (
        f"{head}{cover:6.2f} {row['bias']:+7.3f} {row['sd']:6.3f} {row['close']:6.2f} "
        f"{row['worst']:6.3f} {row['width']:9.2f} {row['ms']:7.0f}"
    )


def broken_bounds(rows: list[dict[str, Any]]) -> list[str]:
    """Return one line for every bound that does not hold."""
    from scipy.stats import binom  # noqa: PLC0415 - half a second that tests of one case do without

    broken = []
    for table in ("plain", "harder"):
        here = [row for row in rows if row["table"] == table and row["answers"]]
        answers, covered = sum(row["answers"] for row in here), sum(row["covered"] for row in here)
        if answers and covered < COVERAGE * answers:
            broken.append(
                f"{table}: intervals cover {covered / answers:.1%} of {answers}, bound {COVERAGE:.0%}"
            )
        broken += [
            f"{row['case']}: {row['covered']} of {row['answers']} covered, too few for {COVERAGE:.0%}"
            for row in here
            if row["covered"] < binom.ppf(0.001, row["answers"], COVERAGE)
        ]
    for row in rows:
        if row["table"] == "plain" and (row["unknown"] or row["close"] < CLOSE_SHARE):
            broken.append(f"{row['case']}: too few answers within {CLOSE:.0%}")
        if row["table"] == "unbracketed" and row["answers"]:
            broken.append(f"{row['case']}: {row['answers']} answers where windows do not bracket")
    return broken


def main() -> int:
    """Run all cases; 1 if a bound broke."""
    parser = argparse.ArgumentParser(description="Recovery of a known crossover.")
    parser.add_argument("--repetitions", type=int, default=DEFAULT_REPETITIONS)
    parser.add_argument("--table", action="append", default=[], choices=("plain", "harder", "unbracketed"))
    arguments = parser.parse_args()
    rows = run(arguments.repetitions, tuple(arguments.table))
    for table in ("plain", "harder"):
        here = [row for row in rows if row["table"] == table]
        answers = sum(row["answers"] for row in here)
        if answers:
            covered = sum(row["covered"] for row in here) / answers
            close = sum(row["close"] * row["answers"] for row in here if row["answers"]) / answers
            print(
                f"{table}: {answers} answers, intervals cover {covered:.1%}, {close:.1%} within {CLOSE:.0%}"
            )
    print(f"{np.mean([row['ms'] for row in rows]):.0f} ms a fit with {2 * RESAMPLES} resamples")
    broken = broken_bounds(rows)
    for line in broken:
        print(f"BROKEN {line}")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
