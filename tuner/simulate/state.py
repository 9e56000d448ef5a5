"""What all simulated engines hold: arrays over engines, and over engines and their request slots.

Everything that engines count is here, so that a restart is one line: the rows of an engine become zero.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

import numpy as np

from tuner.simulate.acceptance import Acceptance
from tuner.simulate.cost import Costs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tuner.simulate.cost import Ints
    from tuner.simulate.spec import PoolSpec

QUEUE = 512
"""Requests that may wait at one engine; more are turned away, as a gateway with a queue limit does."""
NEVER = -(2**30)
"""Remaining tokens that no request reaches."""

# Bucket bounds as vLLM 0.32.0 exposes them.
ITL_BOUNDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
TTFT_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
E2E_BOUNDS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
)  # fmt: skip
STEP_BOUNDS = (
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
)  # fmt: skip
BATCH_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Upper ends of the plugin's batch buckets."""


def reference_draft_len(pool: PoolSpec) -> int:
    """Return the draft length at which counters show a route's hazards as given: the middle one in use."""
    used = sorted({row[2] for row in pool.schedule if row[2] > 0}) or [pool.max_draft_len]
    return used[len(used) // 2]


def dense_table(rows: Sequence[Sequence[int]], max_batch: int, width: int, highest: int) -> Ints:
    """Return K by number of scheduled requests, (width,): gaps and tails keep the K before, as vLLM does."""
    starts = [row[0] for row in rows]
    table = [rows[max(bisect.bisect_right(starts, min(b, max_batch)) - 1, 0)][2] for b in range(width)]
    return np.minimum(np.array(table, dtype=np.int64), highest)


class Counters:
    """Everything that is zero after a restart; first axis is the engine."""

    def __init__(self, engines: int, routes: int, longest: int) -> None:
        """Allocate for draft lengths up to ``longest``."""
        ways = longest + 1
        self.joint: Ints = np.zeros((engines, routes, ways, ways), dtype=np.int64)
        """Request steps by route, draft length and accepted tokens."""
        self.steps = np.zeros(engines)
        self.step_tokens = np.zeros(engines)
        self.step_hist = np.zeros((engines, len(STEP_BOUNDS) + 1))
        self.itl_seconds = np.zeros(engines)
        self.itl_hist = np.zeros((engines, len(ITL_BOUNDS) + 1))
        self.first_tokens = np.zeros(engines)
        self.first_seconds = np.zeros(engines)
        self.first_hist = np.zeros((engines, len(TTFT_BOUNDS) + 1))
        self.generated = np.zeros(engines)
        self.trimmed = np.zeros(engines)
        """Accepted tokens cut off behind a stop or a limit; no real engine tells them."""
        self.prompt_tokens = np.zeros(engines)
        self.e2e_seconds = np.zeros(engines)
        self.e2e_hist = np.zeros((engines, len(E2E_BOUNDS) + 1))
        self.stopped = np.zeros(engines)
        self.cut_by_length = np.zeros(engines)
        self.preemptions = np.zeros(engines)
        self.turned_away = np.zeros(engines)
        self.bucket_seconds = np.zeros((engines, len(BATCH_BOUNDS), ways))
        """Seconds of steps by batch bucket and draft length verified."""
        self.bucket_steps = np.zeros((engines, len(BATCH_BOUNDS), ways))
        self.bucket_tokens = np.zeros((engines, len(BATCH_BOUNDS), ways))
        self.busy_seconds = np.zeros(engines)
        self.memory_seconds = np.zeros(engines)
        self.compute_seconds = np.zeros(engines)

    def clear(self, engine: int) -> None:
        """Zero one engine's counters."""
        for array in vars(self).values():
            array[engine] = 0


class Fixed:
    """What an engine is, which no step changes; arrays over engines, (E,) unless said otherwise."""

    def __init__(self, pools: Sequence[PoolSpec]) -> None:
        """Lay out the engines of all pools one after the other."""
        of_engine = [pool for pool in pools for _ in range(pool.engines)]
        self.engines = len(of_engine)
        self.longest = max(pool.max_draft_len for pool in pools)
        self.slots = max(pool.max_batch for pool in pools)
        self.routes = max(len(pool.routes) for pool in pools)
        self.first_engine: dict[str, int] = {}
        self.pool_of: Ints = np.repeat(np.arange(len(pools)), [pool.engines for pool in pools])
        seen = 0
        for pool in pools:
            self.first_engine[pool.name] = seen
            seen += pool.engines
        self.costs = Costs.of([pool.cost for pool in of_engine], self.longest)
        self.max_batch = np.array([pool.max_batch for pool in of_engine])
        self.max_tokens = np.array([pool.max_step_tokens for pool in of_engine])
        self.kv_tokens = np.array([float(pool.kv_tokens) for pool in of_engine])
        self.highest = np.array([pool.max_draft_len for pool in of_engine])
        self.plugin = np.array([pool.plugin for pool in of_engine])
        self.step_noise = np.array([pool.noise.step for pool in of_engine])
        self.acceptance = [
            [Acceptance.of(route, self.longest, reference_draft_len(pool)) for route in pool.routes]
            for pool in pools
        ]
        self._lay_out_routes(pools)

    def _lay_out_routes(self, pools: Sequence[PoolSpec]) -> None:
        """Give every route of every pool a number, and arrays over these numbers."""
        self.first_route = np.zeros(self.engines, dtype=np.int64)
        self.route_limits = np.ones((self.engines, self.routes))
        flat = [(route, model) for pool, ms in zip(pools, self.acceptance, strict=True)
                for route, model in zip(pool.routes, ms, strict=True)]  # fmt: skip
        offset = 0
        for i, pool in enumerate(pools):
            shares = np.array([route.share for route in pool.routes])
            rows = self.pool_of == i
            self.first_route[rows] = offset
            self.route_limits[rows, : len(shares)] = np.cumsum(shares) / shares.sum()
            offset += len(shares)
        self.base = np.array([model.base for _, model in flat])
        self.request_sd = np.array([model.request_sd for _, model in flat])
        self.passage_sd = np.array([model.passage_sd for _, model in flat])
        self.passage = np.array([route.passage for route, _ in flat])
        self.stop_share = np.array([route.stop_share for route, _ in flat])
        # A log-normal with standard deviation s of the logarithm has mean exp(mu + s^2/2).
        self.prompt_sd = np.array([route.prompt_spread for route, _ in flat])
        self.prompt_log = np.log([route.prompt for route, _ in flat]) - self.prompt_sd**2 / 2
        self.output_sd = np.array([route.output_spread for route, _ in flat])
        self.output_log = np.log([route.output for route, _ in flat]) - self.output_sd**2 / 2


class State:
    """What moves: request slots, queues, clocks and counters of all engines."""

    def __init__(self, fixed: Fixed, start: float) -> None:
        """Start all engines empty at unix second ``start``."""
        e, s = fixed.engines, fixed.slots
        self.fixed = fixed
        self.counters = Counters(e, fixed.routes, fixed.longest)
        self.clock = np.full(e, start)
        """Unix seconds of the end of each engine's last step."""
        self.last_seconds = np.zeros(e)
        self.started = np.full(e, start)
        self.alive = np.ones(e, dtype=bool)
        self.speed = np.ones(e)
        """Factor on step seconds: noise, drift and faults."""
        self.hazard_factor = np.ones(e)
        self.rate = np.zeros(e)
        """Arrivals per second of open load; 0 for closed load."""
        self.burst = np.ones(e)
        self.clients = np.zeros(e, dtype=np.int64)
        """Requests that closed load keeps in the engine; 0 for open load."""
        self.table: Ints = np.zeros((e, s + 1), dtype=np.int64)
        """K by number of scheduled requests."""
        self.draft_len = np.zeros(e, dtype=np.int64)
        """K drafted in the last step: what the next one verifies."""
        self.running = np.zeros(e, dtype=np.int64)
        self.decoding = np.zeros(e, dtype=np.int64)
        self.held = np.zeros(e, dtype=np.int64)
        """Preempted requests that wait for KV cache; they keep their slots."""
        self.any_held = False
        self.context = np.zeros(e)
        """Tokens in the KV cache, prompts counted whole from admission."""
        self.waiting = np.zeros(e, dtype=np.int64)
        self._make_slots(e, s)
        ways = fixed.longest + 1
        self.no_code = e * fixed.routes * ways * ways
        self.code[:] = self.no_code

    def _make_slots(self, e: int, s: int) -> None:
        """Allocate queues and request slots."""
        self.queue_time = np.zeros((e, QUEUE))
        self.queue_route = np.zeros((e, QUEUE), dtype=np.int64)
        self.queue_head = np.zeros(e, dtype=np.int64)
        self.occupied: NDArray[np.bool_] = np.zeros((e, s), dtype=bool)
        self.is_decoding: NDArray[np.bool_] = np.zeros((e, s), dtype=bool)
        self.prompt_left = np.zeros((e, s), dtype=np.int32)
        self.prompt = np.zeros((e, s), dtype=np.int32)
        self.total = np.zeros((e, s), dtype=np.int32)
        """Output tokens that the request will have."""
        self.left = np.zeros((e, s), dtype=np.int32)
        """Output tokens still to come."""
        self.passage_end = np.full((e, s), NEVER, dtype=np.int32)
        """Remaining tokens at which the next passage begins."""
        self.route = np.zeros((e, s), dtype=np.int64)
        self.code = np.zeros((e, s), dtype=np.int64)
        """Where the slot's route begins in the flat joint counts; the bin behind all for no decoding."""
        self.quality = np.zeros((e, s))
        self.arrived = np.zeros((e, s))
        self.preempted_at = np.full((e, s), np.nan)
        """Last output of a request that was preempted and has not resumed."""
        self.thresholds = np.zeros((self.fixed.longest, e, s), dtype=np.float32)
        """Survival by position: a uniform number below it accepts the position."""

    def clear(self, engine: int) -> None:
        """Drop all requests of one engine, waiting ones too."""
        for name in ("running", "decoding", "held", "context", "waiting", "draft_len", "last_seconds"):
            getattr(self, name)[engine] = 0
        for slots in (self.occupied, self.is_decoding, self.prompt_left, self.left):
            slots[engine] = 0
        self.passage_end[engine] = NEVER
        self.preempted_at[engine] = np.nan
        self.code[engine] = self.no_code
