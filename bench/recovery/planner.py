"""The planner against the true optimum of random engines, at cell errors of at most 2 %.

    python -m bench.recovery.planner [--repetitions N]

Every world is planned from its goodput cells with an error added, as a sweep at factor-2 batch sizes
and as a dense table with errors that neighbouring batch sizes share, as fits make them. Regret is what
the schedule loses to the best draft length of the same batch size. Bounds, per error model:

* mean regret under 1 %, 95th percentile under 3 %, over all shapes of cost;
* mean regret of each shape under 1 %;
* where errors are bounded by 2 %, no choice is worse than no speculation by more than 1 %; where they
  are Gaussian with a standard deviation of 2 %, at most one in a thousand.

All results are printed, those between the batch sizes of a sweep too, which no bound covers: a straight
line over a factor of 2 misses the knee of a sharp roofline.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.recovery.planner_world import BATCHES, DRAFT_LENS, SHAPES, Shape, random_world
from bench.seeds import commit_seed
from tuner.fleet import Schedule, SweepRow
from tuner.plan.from_fits import planning_batches
from tuner.plan.goodput import GoodputTable
from tuner.plan.options import PlanOptions
from tuner.plan.planner import plan
from tuner.plan.sweep import from_sweep

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Noise = Callable[[np.random.Generator, tuple[int, int]], Floats]

MEAN_REGRET = 0.01
P95_REGRET = 0.03
WORST_LOSS = 0.01
GAUSSIAN_SHARE = 0.001
DEFAULT_REPETITIONS = 200
"""Worlds per shape and error model: 1 200 worlds and 10 800 cells of a sweep per error model."""
EVERY_BATCH = np.arange(1, BATCHES[-1] + 1, dtype=np.float64)
LENS = np.array(DRAFT_LENS, dtype=np.float64)


@dataclass(frozen=True)
class Case:
    """An error model and the table that it is planned from."""

    name: str
    batches: tuple[int, ...]
    noise: Noise
    sd: float | None
    """What the planner is told of the error; ``None`` plans from rows of a sweep, with its default."""
    bounded: bool


def _bounded(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return np.log1p(rng.uniform(-0.02, 0.02, shape))


def _gaussian(sd: float) -> Noise:
    return lambda rng, shape: sd * rng.standard_normal(shape)


def _shared(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Return errors of 2 % per draft length that drift over the batch sizes, as those of a fit do."""
    knots = 0.02 * rng.standard_normal((5, shape[1]))
    places = np.linspace(0, 4, shape[0])
    columns = [np.interp(places, np.arange(5), knots[:, k]) for k in range(shape[1])]
    return np.stack(columns, axis=1)


DENSE = tuple(int(batch) for batch in planning_batches((1, BATCHES[-1])))
CASES = (
    Case("sweep, within 2 %", BATCHES, _bounded, None, bounded=True),
    Case("sweep, sd 2 %", BATCHES, _gaussian(0.02), None, bounded=False),
    Case("dense, within 2 %", DENSE, _bounded, 0.0115, bounded=True),
    Case("dense, sd 1 %", DENSE, _gaussian(0.01), 0.01, bounded=False),
    Case("dense, shared sd 2 %", DENSE, _shared, 0.02, bounded=False),
)


def run(repetitions: int) -> list[dict[str, Any]]:
    """Return one row per error model and shape, and one per error model over all shapes."""
    rows = []
    for case in CASES:
        worlds = {shape: _worlds(case, shape, repetitions) for shape in SHAPES}
        rows += [_row(case, shape, outcome) for shape, outcome in worlds.items()]
        rows.append(
            _row(case, "all", {key: np.concatenate([w[key] for w in worlds.values()]) for key in KEYS})
        )
    return rows


KEYS = ("regret", "greedy", "between", "loss", "seconds")


def _worlds(case: Case, shape: Shape, repetitions: int) -> dict[str, Floats]:
    """Plan ``repetitions`` worlds of a shape; returns regrets and losses by world and batch size."""
    rng = np.random.default_rng(commit_seed(f"planner/{case.name}/{shape}"))
    batches = np.array(case.batches, dtype=np.float64)
    places = batches.astype(int) - 1
    out: dict[str, list[Floats]] = {key: [] for key in KEYS}
    for _ in range(repetitions):
        world = random_world(shape, rng)
        truth = world.goodput(EVERY_BATCH, LENS)
        seen = np.log(truth[places]) + case.noise(rng, (batches.size, LENS.size))
        start = time.perf_counter()
        schedule = plan(_table(case, seen), PlanOptions(max_batch=BATCHES[-1])).schedule
        out["seconds"].append(np.array([time.perf_counter() - start]))
        assert isinstance(schedule, Schedule)
        chosen = np.array([schedule.draft_len_at(int(batch)) for batch in EVERY_BATCH])
        speed = truth[np.arange(EVERY_BATCH.size), chosen]
        regret = 1 - speed / truth.max(axis=1)
        greedy = truth[places, seen.argmax(axis=1)]
        out["regret"].append(regret[places])
        out["greedy"].append(1 - greedy / truth[places].max(axis=1))
        out["between"].append(np.delete(regret, places))
        out["loss"].append(1 - speed[places] / truth[places, 0])
    return {key: np.concatenate(values) for key, values in out.items()}


def _table(case: Case, log_speed: Floats) -> GoodputTable:
    if case.sd is not None:
        return GoodputTable.from_moments(
            case.batches, DRAFT_LENS, log_speed, np.full(log_speed.shape, case.sd)
        )
    speeds = np.exp(log_speed).tolist()
    return from_sweep(
        SweepRow(batch, draft_len, speed)
        for batch, row in zip(case.batches, speeds, strict=True)
        for draft_len, speed in zip(DRAFT_LENS, row, strict=True)
    )


def _row(case: Case, shape: str, outcome: dict[str, Floats]) -> dict[str, Any]:
    regret, loss = outcome["regret"], outcome["loss"]
    row: dict[str, Any] = {
        "case": case.name,
        "shape": shape,
        "cells": regret.size,
        "mean": float(regret.mean()),
        "p95": float(np.quantile(regret, 0.95)),
        "worst": float(regret.max()),
        "greedy_mean": float(outcome["greedy"].mean()),
        "between_mean": float(outcome["between"].mean()) if outcome["between"].size else 0.0,
        "worst_loss_to_none": float(loss.max()),
        "share_losing": float((loss > WORST_LOSS).mean()),
        "milliseconds": 1e3 * float(outcome["seconds"].mean()),
    }
    row["broken"] = ", ".join(_broken(case, shape, row))
    return row


def _broken(case: Case, shape: str, row: dict[str, Any]) -> list[str]:
    """Return the bounds that a row breaks."""
    broken = []
    if row["mean"] >= MEAN_REGRET:
        broken.append("mean regret")
    if shape == "all" and row["p95"] >= P95_REGRET:
        broken.append("95th percentile")
    if case.bounded and row["worst_loss_to_none"] > WORST_LOSS:
        broken.append("worse than none")
    if shape == "all" and row["share_losing"] > GAUSSIAN_SHARE:
        broken.append("share worse than none")
    return broken


def main(argv: list[str] | None = None) -> int:
    """Print every row; return 1 where a bound is broken."""
    parser = argparse.ArgumentParser(description="planner against the true optimum")
    parser.add_argument("--repetitions", type=int, default=DEFAULT_REPETITIONS)
    rows = run(parser.parse_args(argv).repetitions)
    print(
        f"{'errors of the cells':22}{'shape':14}{'cells':>7}{'regret':>8}{'p95':>7}{'worst':>7}{'greedy':>8}"
        f"{'between':>9}{'vs none':>9}{'losing':>8}{'ms':>6}"
    )
    for row in rows:
        print(
            f"{row['case']:22}{row['shape']:14}{row['cells']:7d}{row['mean']:8.2%}{row['p95']:7.2%}"
            f"{row['worst']:7.1%}{row['greedy_mean']:8.2%}{row['between_mean']:9.2%}"
            f"{-row['worst_loss_to_none']:9.2%}{row['share_losing']:8.3%}{row['milliseconds']:6.2f}"
            + (f"  BROKEN: {row['broken']}" if row["broken"] else "")
        )
    broken = [row for row in rows if row["broken"]]
    print(f"{len(broken)} of {len(rows)} rows break a bound")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
