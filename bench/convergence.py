"""What ten minutes teach: a simulated fleet from a cold start, scraped every 15 s, against its truth.

The fleet starts empty and the tuner knows its names and the tables it was started with. Windows are made
as they come, remembered, and fitted once at the end. Bounds: acceptance of each route within 0.03, crossover
within 15 %, the schedule's goodput within 2 % of the best one's over the batch sizes that were visited.

``python -m bench.convergence [seeds]`` prints one row for each pool and seed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.cycle import Decision, Evidence, State, run_once
from tuner.engines import get_engine
from tuner.fit.acceptance import AcceptanceFit
from tuner.fit.crossover import Crossover
from tuner.fleet import POOLED_ROUTE, Estimate, Fingerprint, Schedule, Target, WindowState
from tuner.observe.exposition import TimedScrape, parse
from tuner.observe.live import LiveWindows
from tuner.recall import Recall
from tuner.simulate.fleet import Fleet
from tuner.simulate.presets import preset

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tuner.cycle import PoolDecision
    from tuner.fleet import Window

INTERVAL = 15.0
MINUTES = 10.0
SEEDS = 5
MAX_ALPHA_ERROR = 0.03
MAX_CROSSOVER_ERROR = 0.15
MAX_LOSS = 0.02


@dataclass(frozen=True, slots=True)
class Learned:
    """What was learned of one pool beside what is true; what was not told is ``None``, with its reason."""

    seed: int
    pool: str
    alphas: Mapping[str, tuple[float | None, float]]
    """Route -> acceptance fitted and true."""
    crossover: Crossover | None
    true_crossover: float
    schedule: Schedule | None
    loss: float | None
    """Goodput missing to the best schedule, over the batch sizes visited."""
    why: str

    @property
    def crossover_error(self) -> float | None:
        """Relative error of the crossover."""
        return None if self.crossover is None else self.crossover.tokens / self.true_crossover - 1.0

    @property
    def faults(self) -> list[str]:
        """Say which bound is broken, or what was not told."""
        found = [
            f"acceptance of {route} {fitted} is not {truth:.3f}"
            for route, (fitted, truth) in self.alphas.items()
            if fitted is None or abs(fitted - truth) > MAX_ALPHA_ERROR
        ]
        error = self.crossover_error
        if error is None or abs(error) > MAX_CROSSOVER_ERROR:
            found.append(f"crossover {self.crossover} is not {self.true_crossover:.0f} ({self.why})")
        if self.loss is None or self.loss > MAX_LOSS:
            found.append(f"schedule {self.schedule} loses {self.loss} ({self.why})")
        return [f"seed {self.seed}, {self.pool}: {fault}" for fault in found]

    def __str__(self) -> str:
        """Return one row of the table."""
        alphas = ", ".join(
            f"{route} {'?' if fitted is None else format(fitted, '.3f')} ({truth:.3f})"
            for route, (fitted, truth) in self.alphas.items()
        )
        crossover = "cannot say" if self.crossover is None else f"{self.crossover.tokens:.0f}"
        error = "" if self.crossover_error is None else f" {self.crossover_error:+.1%}"
        loss = "cannot say" if self.loss is None else f"{self.loss:.2%}"
        return (
            f"{self.seed:>4} {self.pool:<10} {alphas:<44} "
            f"{crossover} ({self.true_crossover:.0f}){error:<10} {loss}"
        )


def observe(fleet: Fleet, minutes: float) -> Decision:
    """Scrape a fleet for so many minutes of its time and decide at the end."""
    vocabulary = get_engine("vllm").vocabulary
    live: dict[str, LiveWindows] = {}
    targets: dict[tuple[str, int], Target] = {}
    for pool, spec in fleet.pools.items():
        live[pool] = LiveWindows(
            vocabulary, pool=pool, fingerprint=Fingerprint(engine="vllm", method=spec.method)
        )
        table = Schedule.from_ranges(spec.schedule)
        for n in range(spec.engines):
            targets[pool, n] = Target(pool, f"{pool}-{n}", f"http://{pool}-{n}:8000/metrics")
            live[pool].set_schedule(targets[pool, n], table, fleet.now)
    recall = Recall()
    for _ in range(round(60.0 * minutes / INTERVAL) + 1):
        for (pool, n), target in targets.items():
            scrape = TimedScrape(fleet.now, parse(fleet.body(pool, n), wanted=vocabulary.sample_names))
            recall.add(live[pool].add(target, [scrape]).windows)
        fleet.advance(INTERVAL)
    windows = tuple(window for pool in fleet.pools for window in recall.windows(pool, fleet.now))
    latest = tuple(window for pool in fleet.pools for window in recall.latest(pool))
    return run_once(Evidence(windows, latest=latest), State(), fleet.now)


def compare(seed: int, fleet: Fleet, decided: PoolDecision) -> Learned:
    """Hold one pool's decision against its truth."""
    truth = fleet.truth(decided.pool)
    alphas: dict[str, tuple[float | None, float]] = {}
    for route in (one.name for one in truth.pool.routes):
        fit = decided.routes.get(route)
        alpha = fit.alpha if isinstance(fit, AcceptanceFit) else None
        alphas[route] = alpha.value if isinstance(alpha, Estimate) else None, truth.alpha(route)
    crossover, schedule = decided.crossover, decided.schedule
    told = schedule if isinstance(schedule, Schedule) else None
    return Learned(
        seed,
        decided.pool,
        alphas,
        crossover if isinstance(crossover, Crossover) else None,
        truth.crossover()["tokens"],
        told,
        None if told is None else _loss(fleet, decided.windows, told, decided.pool),
        "; ".join(str(one) for one in (crossover, schedule) if not isinstance(one, Crossover | Schedule)),
    )


def _loss(fleet: Fleet, windows: tuple[Window, ...], schedule: Schedule, pool: str) -> float:
    """Return the share of goodput that a schedule misses, at the batch sizes of the windows."""
    truth = fleet.truth(pool)
    reached = best = 0.0
    for window in windows:
        if window.state is WindowState.GOOD and window.route == POOLED_ROUTE and window.batch:
            batch = max(1, round(window.batch))
            draft_len = schedule.draft_len_at(min(batch, schedule.max_batch))
            reached += window.seconds * truth.goodput(batch, draft_len)
            best += window.seconds * max(truth.goodput(batch, k) for k in truth.allowed_draft_lens())
    return 1.0 - reached / best


def learn(name: str, seed: int, minutes: float = MINUTES) -> list[Learned]:
    """Run a preset of the simulator from a cold start and compare every pool."""
    fleet = Fleet(preset(name), seed)
    return [compare(seed, fleet, pool) for pool in observe(fleet, minutes).pools]


def main() -> int:
    """Print a row for each pool and seed, 1 if a bound is broken."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS
    print("seed pool       acceptance fitted (true)                     crossover (true)      goodput lost")
    faults: list[str] = []
    for seed in range(seeds):
        for row in learn("demo", seed):
            print(row, flush=True)
            faults += row.faults
    print("\n".join(faults) or f"all {seeds} seeds within bounds")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
