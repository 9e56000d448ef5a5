"""Does the acceptance fit cover the truth? 95 % intervals, every case printed, bounds enforced.

    python -m bench.recovery.acceptance [--repetitions N] [--only TEXT] [--json]

Per case and position, over all repetitions: the interval covers the population's hazard in at least
93 % (and, from 8 blocks of windows on, in at most 99 %: the interval must not say less than the data).
Where the draft length followed the acceptance, and where counters cannot identify a position, only the lower
bound holds: there the right answer is to censor or to widen. The same where a position is solved from mixes
of two draft lengths: as far as requests seem to differ its interval allows for a draft length that depends on
them, which counters do not show, and in these worlds it does not. Exit code 1 when a bound breaks.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.recovery.acceptance_world import Evidence, Traffic, World, simulate, truth
from bench.seeds import commit_seed
from tuner.fit.acceptance import AcceptanceFit, fit_acceptance

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

REPETITIONS = 2000
LOWER, UPPER = 0.93, 0.99
CHUNK = 400_000
"""Segments simulated at once: some 200 MB."""


@dataclass(frozen=True)
class Size:
    """How much evidence, and how long requests are beside the windows."""

    drafts: int
    slots: int
    window_steps: int
    short: float
    long: float


SIZES = (
    Size(300, 2, 15, 4, 30),
    Size(3_000, 4, 25, 8, 60),
    Size(30_000, 8, 94, 20, 150),
    Size(300_000, 16, 469, 100, 400),
)

SPREAD = 12.0
"""a + b of the Beta distribution of a request's acceptance: a standard deviation of 0.11 around 0.8, what
SpecDecode-Bench (arXiv 2601.11580) shows between ShareGPT requests."""

KINDS = {
    "independent": (Traffic(), 1),
    "unequal requests": (Traffic(concentration=SPREAD), 1),
    "unequal, autocorrelated": (Traffic(concentration=SPREAD, phase_concentration=SPREAD), 4),
}

CHAT = Traffic(acceptance=0.5, concentration=SPREAD)
CODE = Traffic(acceptance=0.85, concentration=SPREAD)
PROSE = Traffic(acceptance=0.75, concentration=SPREAD)


@dataclass(frozen=True)
class Case:
    """One world and what is asked of its fits."""

    name: str
    world: World
    confounded: bool = False


def cases() -> Iterator[Case]:
    """Yield every case."""
    for size in SIZES:
        yield from _constant(size)
        yield from _mixed(size)
        yield from _confounded(size)


def _world(size: Size, length: float, **change: Any) -> World:  # noqa: ANN401 - any field of a world
    base: dict[str, Any] = {
        "drafts": size.drafts,
        "slots": size.slots,
        "window_steps": size.window_steps,
        "request_steps": length,
    }
    return World(**{**base, **change})


def _constant(size: Size) -> Iterator[Case]:
    for length, steps in (("short", size.short), ("long", size.long)):
        for kind, (traffic, phases) in KINDS.items():
            world = _world(size, steps, traffic=traffic, phases=phases)
            yield Case(f"K=4 | {size.drafts} | {kind} | {length} requests", world)
    # Users ask for a length of text: well accepted requests are over in fewer steps.
    world = _world(size, size.short, traffic=Traffic(concentration=SPREAD), by_tokens=True)
    yield Case(f"K=4 | {size.drafts} | unequal, by tokens | short requests", world)
    world = _world(size, size.short, traffic=Traffic(concentration=SPREAD), equal_requests=True)
    yield Case(f"K=4 | {size.drafts} | unequal, equally long | short requests", world)


def _mixed(size: Size) -> Iterator[Case]:
    for kind, (traffic, phases) in KINDS.items():
        world = _world(
            size, size.short, traffic=traffic, phases=phases, draft_lens=(2, 4), plan="mixed", dwell_steps=6
        )
        yield Case(f"K=2,4 in a window | {size.drafts} | {kind} | short requests", world)
    unequal = {"traffic": Traffic(concentration=SPREAD)}
    world = _world(size, size.long, draft_lens=(1, 3), plan="mixed", dwell_steps=6, **unequal)
    yield Case(f"K=1,3 in a window | {size.drafts} | unequal requests | long requests", world)
    world = _world(size, size.short, draft_lens=(1, 2, 4), plan="by_window", dwell_steps=2, **unequal)
    yield Case(f"K=1,2,4 by window | {size.drafts} | unequal requests | short requests", world)
    for tell, word in ((True, "known"), (False, "unknown")):
        world = _world(
            size, size.short, draft_lens=(1, 2, 4), plan="mixed", dwell_steps=1.5, tell_mix=tell, **unequal
        )
        yield Case(f"K=1,2,4 in a window, {word} | {size.drafts} | unequal requests | short requests", world)


def _confounded(size: Size) -> Iterator[Case]:
    quiet = max(1, size.slots // 3)
    by_window = {"traffic": CODE, "quiet_slots": quiet, "plan": "by_window", "dwell_steps": 4}
    for lens, other, word in (((4, 1), CHAT, "chat"), ((1, 4), CHAT, "chat"), ((4, 2), PROSE, "prose")):
        world = _world(size, size.short, other=other, draft_lens=lens, **by_window)
        yield Case(f"K={lens[0]} code, K={lens[1]} {word}, by window | {size.drafts}", world, confounded=True)
    brief = max(4.0, size.short / 4)
    in_window = {
        **by_window,
        "plan": "mixed",
        "dwell_steps": 4 * brief,
        "window_steps": 2 * size.window_steps,
    }
    for lens in ((4, 2), (2, 4)):
        world = _world(size, brief, other=CHAT, draft_lens=lens, **in_window)
        yield Case(f"K={lens[0]} code, K={lens[1]} chat, in a window | {size.drafts}", world, confounded=True)


@dataclass
class _Tally:
    """Results of one case, one row per repetition."""

    covered: NDArray[np.bool_]
    censored: NDArray[np.bool_]
    width: NDArray[np.float64]
    blocks: NDArray[np.float64]
    weak: NDArray[np.bool_]
    flagged: NDArray[np.bool_]


def judge(case: Case, repetitions: int) -> dict[str, Any]:
    """Simulate and fit one case; return its row of the table."""
    started = time.perf_counter()
    rng = np.random.default_rng(commit_seed(f"acceptance/{case.name}"))
    world = case.world
    per_rep = world.slots * world.steps * (world.phases / world.request_steps + 1 / world.window_steps)
    tallies = []
    for first in range(0, repetitions, chunk := max(1, int(CHUNK / per_rep))):
        tallies.append(_tally(simulate(world, min(chunk, repetitions - first), rng)))
    covered = np.concatenate([tally.covered for tally in tallies]).mean(axis=0)
    censored = np.concatenate([tally.censored for tally in tallies]).mean(axis=0)
    width = np.concatenate([tally.width for tally in tallies]).mean(axis=0)
    blocks = float(np.median(np.concatenate([tally.blocks for tally in tallies])))
    weak = np.concatenate([tally.weak for tally in tallies]).mean(axis=0)
    strong = (weak < 0.5) & (censored < 0.5) & (not case.confounded)
    strong[_solved(world)] = False
    broken = np.flatnonzero((covered < LOWER) | (strong & (covered > UPPER)))
    return {
        "case": case.name,
        "covered": [round(float(x), 4) for x in covered],
        "width": [round(float(x), 4) for x in width],
        "censored": [round(float(x), 3) for x in censored],
        "blocks": blocks,
        "k_confounded": round(float(np.concatenate([tally.flagged for tally in tallies]).mean()), 3),
        "upper_bound": strong.tolist(),
        "broken": broken.tolist(),
        "seconds": round(time.perf_counter() - started, 1),
    }


def _solved(world: World) -> list[int]:
    """Positions whose interval allows for more than this world does: solved from mixes of two lengths."""
    mixed = world.plan == "mixed" and len(world.draft_lens) == 2
    return [min(world.draft_lens)] if mixed else []


def _tally(evidence: Evidence) -> _Tally:
    hazards = truth(evidence.world, evidence.other_share)
    reps, depth = hazards.shape
    tally = _Tally(
        np.zeros((reps, depth), dtype=bool),
        np.zeros((reps, depth), dtype=bool),
        np.zeros((reps, depth)),
        np.zeros(reps),
        np.zeros((reps, depth), dtype=bool),
        np.zeros(reps, dtype=bool),
    )
    for rep in range(reps):
        fit = fit_acceptance(evidence.windows(rep), pool="simulated")
        assert isinstance(fit, AcceptanceFit)
        tally.blocks[rep] = fit.blocks
        tally.flagged[rep] = any(finding.code == "k_confounded" for finding in fit.findings)
        for position in fit.positions:
            at = (rep, position.position)
            tally.covered[at] = position.low <= hazards[at] <= position.high
            tally.weak[at] = position.weak
            tally.censored[at] = position.state == "censored"
            tally.width[at] = position.high - position.low
    return tally


def run(repetitions: int = REPETITIONS, only: str = "") -> list[dict[str, Any]]:
    """Judge every case whose name contains ``only``, printing each row as it is done."""
    print(f"{'case':72} {'covered by position':29} {'mean width':29} blocks  k_conf  censored")
    rows = []
    for case in cases():
        if only in case.name:
            rows.append(judge(case, repetitions))
            print(_line(rows[-1]), flush=True)
    return rows


def _line(row: dict[str, Any]) -> str:
    covered = " ".join(f"{x:.3f}" for x in row["covered"])
    width = " ".join(f"{x:.3f}" for x in row["width"])
    censored = " ".join(f"{x:.2f}" for x in row["censored"])
    mark = f"  BROKEN at {row['broken']}" if row["broken"] else ""
    middle = f"{row['blocks']:6.0f} {row['k_confounded']:7.3f}"
    return f"{row['case']:72} {covered:29} {width:29} {middle}  {censored}{mark}"


def main() -> int:
    """Run the bench from the command line; 1 when a bound breaks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--json", action="store_true", help="print all rows as JSON at the end")
    arguments = parser.parse_args()
    rows = run(arguments.repetitions, arguments.only)
    if arguments.json:
        print(json.dumps(rows))
    broken = [row for row in rows if row["broken"]]
    strong = [
        rate
        for row in rows
        for rate, bounded in zip(row["covered"], row["upper_bound"], strict=True)
        if bounded
    ]
    span = f"{min(strong):.3f} to {max(strong):.3f}" if strong else "none"
    seconds = sum(row["seconds"] for row in rows)
    print(
        f"{len(rows)} cases of {arguments.repetitions} repetitions in {seconds:.0f} s; "
        f"coverage where both bounds hold: {span}; {len(broken)} cases break a bound"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
