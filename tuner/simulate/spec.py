"""What a simulated fleet consists of: plain frozen values, checked once, with their defaults.

Units: seconds, tokens, requests. Every default describes an engine whose steps take 20-60 ms, so that a
window of 15 s holds at least 200 of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Literal

from tuner._exceptions import InputError

DraftShape = Literal["linear", "flat", "concave"]
Arrivals = Literal["open", "closed"]
Profile = Literal["constant", "walk", "day", "steps"]

LONGEST_DRAFT = 32
"""Longest draft length simulated; counters are arrays over it, and published drafts have about 30 tokens."""
LARGEST_BATCH = 1024
MOST_ENGINES = 5000
"""Engines of one process: more than one core can step in real time."""


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """A class of traffic with its own acceptance."""

    name: str = "chat"
    share: float = 1.0
    """Share of the requests, relative to the other routes."""
    alpha: float = 0.7
    """Acceptance at every position, unless ``hazards`` tells it by position."""
    hazards: tuple[float, ...] = ()
    """Acceptance by position, given reached; the last one holds for later positions."""
    prompt: float = 200.0
    """Mean prompt tokens."""
    prompt_spread: float = 0.4
    """Standard deviation of the logarithm of prompt lengths."""
    output: float = 220.0
    """Mean output tokens."""
    output_spread: float = 0.5
    request_spread: float = 0.35
    """Standard deviation across requests of the log odds of acceptance: over-dispersion."""
    passage_spread: float = 0.35
    """Standard deviation of the log odds across passages of one request: autocorrelation within it."""
    passage: float = 24.0
    """Mean output tokens of a passage, over which the log odds stay."""
    stop_share: float = 0.8
    """Share of the requests that end by a stop instead of their length limit."""

    def hazard_at(self, position: int) -> float:
        """Return the acceptance at a position (0-based), given that it was reached and drafted."""
        return self.hazards[min(position, len(self.hazards) - 1)] if self.hazards else self.alpha


@dataclass(frozen=True, slots=True)
class CostSpec:
    """Seconds of one engine step: overhead + (memory^p + compute^p)^(1/p) + KV reads + drafter."""

    overhead: float = 0.002
    floor: float = 0.018
    """Seconds to read the weights once, with every expert active."""
    per_token: float = 0.00022
    """Seconds of computing per token in the step."""
    sharpness: float = 2.0
    """p; 64 and above is the maximum of memory and compute."""
    tile: int = 16
    """Tokens are padded to a multiple of it: step time is a staircase."""
    per_context_token: float = 1.0e-7
    """Seconds per token in the KV cache of the batch."""
    draft_shape: DraftShape = "linear"
    """Drafter's seconds by K: ``base + slope K``, ``base`` whatever K, or ``base + slope sqrt K``."""
    draft_base: float = 0.0008
    draft_slope: float = 0.0007
    draft_zero: float = 0.0005
    """Drafter's seconds at K = 0: it keeps its state warm (docs/engines.md)."""
    draft_per_token: float = 0.0
    """Drafter's seconds per draft token of the whole batch."""
    experts: int = 0
    """Experts per layer; 0 for a dense model."""
    experts_per_token: int = 8
    expert_share: float = 0.8
    """Share of the weights that is in experts; ``floor`` is reached when all of them are active."""


@dataclass(frozen=True, slots=True)
class NoiseSpec:
    """How one machine's speed moves."""

    window: float = 0.04
    """Standard deviation of a factor that holds for ``window_seconds``."""
    window_seconds: float = 15.0
    step: float = 0.03
    """Standard deviation of a factor that each step draws anew."""
    drift_low: float = 0.05
    """Speed moves within an hour by a share between ``drift_low`` and ``drift_high``, by engine."""
    drift_high: float = 0.18
    drift_seconds: float = 3600.0


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """Requests over time."""

    arrivals: Arrivals = "open"
    """``open``: Poisson, whatever the engine manages; ``closed``: clients that ask again at once."""
    profile: Profile = "walk"
    """``constant`` at the upper end of ``batch``, a random ``walk`` between its ends, a sine over a
    ``day``, or ``steps`` through ``levels``."""
    batch: tuple[float, float] = (8.0, 32.0)
    """Running requests to aim at, lowest and highest."""
    period: float = 600.0
    """Seconds: memory of the walk, length of the day, time at each level."""
    levels: tuple[float, ...] = ()
    """Running requests at each step; four from low to high and back where not given."""
    burst: float = 1.0
    """Mean requests that arrive together: above 1, prompts come in waves."""
    rate: float = 0.0
    """Requests per second at the top of ``batch`` in place of what would hold it there; 0: compute it."""
    phase_spread: float = 1.0
    """0: all engines move together, 1: each on its own."""


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """Engines that serve one model with one drafter on one kind of hardware."""

    name: str = "pool"
    engines: int = 2
    model: str = "sim/model"
    method: str = "eagle3"
    engine_version: str = "0.32.0"
    gpu: str = "NVIDIA H100 80GB HBM3"
    routes: tuple[RouteSpec, ...] = (RouteSpec(),)
    cost: CostSpec = field(default_factory=CostSpec)
    load: LoadSpec = field(default_factory=LoadSpec)
    noise: NoiseSpec = field(default_factory=NoiseSpec)
    schedule: tuple[tuple[int, int, int], ...] = ((1, 8, 4), (9, 24, 2), (25, 64, 1))
    """Table at start-up; empty for an engine started without one, which drafts ``max_draft_len``."""
    max_draft_len: int = 4
    max_batch: int = 64
    max_step_tokens: int = 2048
    """Tokens that one step may hold; longer prompts are computed in chunks."""
    kv_tokens: int = 400_000
    kv_block: int = 16
    plugin: bool = True
    """Whether the tuner's plugin is loaded; a stock engine has no admin API and no ``tuner:`` metrics."""


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """All pools, and how they are served."""

    pools: tuple[PoolSpec, ...] = (PoolSpec(),)
    pad_bodies: bool = False
    """Fill each metrics page to 55 KB with the families that a real vLLM has beside those simulated."""

    def __post_init__(self) -> None:
        """Refuse what cannot be simulated, naming pool, field and remedy."""
        names = [pool.name for pool in self.pools]
        if not names:
            raise InputError("fleet: no pools: give at least one")
        if len(set(names)) != len(names):
            raise InputError("fleet: two pools have one name: give each its own")
        total = sum(pool.engines for pool in self.pools)
        if total > MOST_ENGINES:
            raise InputError(f"fleet: {total} engines, at most {MOST_ENGINES}: use several processes")
        for pool in self.pools:
            _check_pool(pool)


def _check_pool(pool: PoolSpec) -> None:
    """Check one pool.

    Raises:
        InputError: a value is out of range.
    """
    where = f"pool {pool.name!r}"
    if not pool.name or not all(c.isalnum() or c in "-_." for c in pool.name):
        raise InputError(
            f"{where}: name must be letters, digits, dash, underscore or dot: it is part of URLs"
        )
    _within(f"{where}: engines", pool.engines, 1, MOST_ENGINES)
    _within(f"{where}: max_draft_len", pool.max_draft_len, 1, LONGEST_DRAFT)
    _within(f"{where}: max_batch", pool.max_batch, 1, LARGEST_BATCH)
    _within(f"{where}: max_step_tokens", pool.max_step_tokens, pool.max_batch * (pool.max_draft_len + 1), 1e6)
    _within(f"{where}: kv_tokens", pool.kv_tokens, 1000, 1e9)
    _within(f"{where}: kv_block", pool.kv_block, 1, 1024)
    _check_schedule(where, pool)
    if not pool.routes:
        raise InputError(f"{where}: no routes: give at least one")
    if len({route.name for route in pool.routes}) != len(pool.routes):
        raise InputError(f"{where}: two routes have one name: give each its own")
    for route in pool.routes:
        _check_route(f"{where}: route {route.name!r}", route)
    _check_cost(f"{where}: cost", pool.cost)
    _check_load(f"{where}: load", pool.load, pool.max_batch)
    for item in fields(NoiseSpec):
        highest = 1e6 if item.name.endswith("seconds") else 0.5
        _within(f"{where}: noise.{item.name}", getattr(pool.noise, item.name), 0, highest)
    _within(f"{where}: noise.window_seconds", pool.noise.window_seconds, 0.1, 1e6)
    _within(f"{where}: noise.drift_seconds", pool.noise.drift_seconds, 1, 1e6)


def _check_schedule(where: str, pool: PoolSpec) -> None:
    """Check the table at start-up: from 1, without gap, draft lengths that the engine has room for."""
    expected = 1
    for first, last, draft_len in pool.schedule:
        if first != expected or last < first:
            raise InputError(
                f"{where}: schedule [{first}, {last}, {draft_len}]: ranges start at 1 and follow each other"
            )
        _within(f"{where}: schedule draft length", draft_len, 0, pool.max_draft_len)
        expected = last + 1


def _check_route(where: str, route: RouteSpec) -> None:
    """Check one route."""
    if not route.name:
        raise InputError(f"{where}: the name is empty: give one")
    for hazard in (route.alpha, *route.hazards):
        _within(f"{where}: acceptance", hazard, 0.01, 0.99)
    _within(f"{where}: share", route.share, 1e-6, 1e6)
    _within(f"{where}: prompt", route.prompt, 1, 1e6)
    _within(f"{where}: output", route.output, 2, 1e6)
    _within(f"{where}: passage", route.passage, 1, 1e6)
    _within(f"{where}: stop_share", route.stop_share, 0, 1)
    for name in ("prompt_spread", "output_spread", "request_spread", "passage_spread"):
        _within(f"{where}: {name}", getattr(route, name), 0, 3)


def _check_cost(where: str, cost: CostSpec) -> None:
    """Check the costs of a step."""
    for name in ("overhead", "draft_base", "draft_slope", "draft_zero", "draft_per_token"):
        _within(f"{where}.{name}", getattr(cost, name), 0, 10)
    _within(f"{where}.floor", cost.floor, 1e-5, 10)
    _within(f"{where}.per_token", cost.per_token, 1e-9, 1)
    _within(f"{where}.sharpness", cost.sharpness, 1, 1000)
    _within(f"{where}.tile", cost.tile, 1, 1024)
    _within(f"{where}.per_context_token", cost.per_context_token, 0, 1)
    _within(f"{where}.experts", cost.experts, 0, 10_000)
    _within(
        f"{where}.experts_per_token", cost.experts_per_token, 1, max(cost.experts, 1) if cost.experts else 1e4
    )
    _within(f"{where}.expert_share", cost.expert_share, 0, 1)


def _check_load(where: str, load: LoadSpec, max_batch: int) -> None:
    """Check a load."""
    low, high = load.batch
    _within(f"{where}.batch lowest", low, 0.1, max_batch * 4)
    _within(f"{where}.batch highest", high, low, max_batch * 4)
    for level in load.levels:
        _within(f"{where}.levels", level, 0, max_batch * 4)
    _within(f"{where}.period", load.period, 1, 1e8)
    _within(f"{where}.burst", load.burst, 1, 1000)
    _within(f"{where}.rate", load.rate, 0, 1e5)
    _within(f"{where}.phase_spread", load.phase_spread, 0, 1)


def _within(where: str, value: float, low: float, high: float) -> None:
    """Refuse a number outside its bounds."""
    if not math.isfinite(value) or not low <= value <= high:
        raise InputError(f"{where} is {value:g}: give a number from {low:g} to {high:g}")
