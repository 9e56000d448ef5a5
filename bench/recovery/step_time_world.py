"""Worlds with a known step time: windows as an engine of given costs would have them.

Imports nothing of the fits: it must be able to contradict them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tuner.fleet import Counts, Fingerprint, Gauges, Window, WindowState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

START = 1_800_000_000.0
WINDOW_SECONDS = 15.0
ENGINE = Fingerprint(engine="vllm", model="m")
SCHEDULE = ((0.3, 4.0), (0.6, 2.0), (1.0, 0.0))
"""Share of the batch sizes and K of a schedule in force: K falls as the batch grows."""


@dataclass(frozen=True, slots=True)
class World:
    """Costs of one engine in seconds; ``sharpness`` inf is the roofline max(m, cN)."""

    crossover: float = 295.0
    sharpness: float = 2.0
    overhead_ratio: float = 0.0
    """o over m."""
    floor: float = 0.02
    """o + m."""
    draft_base: float = 0.05
    """Cost of having drafted at all, over the floor."""
    draft_slope: float = 0.08
    """Cost of each draft token, over the floor."""
    draft_root: float = 0.0
    """Cost of the root of the draft tokens, over the floor: a drafter whose later tokens cost less."""
    draft_batched: float = 0.0
    """Cost of each draft token and request, over the target's cost per token."""
    kv: float = 0.0
    """Seconds per context token."""

    def seconds(
        self,
        batch: Floats,
        draft_len: Floats,
        prompt: Floats | float = 0.0,
        context: Floats | float = 0.0,
    ) -> Floats:
        """Return the true step time, arguments broadcast."""
        memory = self.floor / (1 + self.overhead_ratio)
        overhead = self.floor - memory
        token = self.floor / self.crossover
        compute = (batch * (draft_len + 1) + prompt) * token
        if math.isinf(self.sharpness):
            core = np.maximum(memory, compute)
        else:
            core = (memory**self.sharpness + compute**self.sharpness) ** (1 / self.sharpness)
        draft = self.draft_base * (draft_len > 0) + self.draft_slope * draft_len
        draft = self.floor * (draft + self.draft_root * np.sqrt(draft_len))
        return overhead + core + draft + self.draft_batched * token * batch * draft_len + self.kv * context


def make_windows(
    batch: Floats,
    draft_len: Floats,
    seconds: Floats,
    *,
    prompt: Floats | None = None,
    context: Floats | None = None,
    emitted: Floats | None = None,
    steps: float | None = None,
    engine: str = "e0",
    fingerprint: Fingerprint = ENGINE,
    start: float = START,
) -> list[Window]:
    """Return consecutive windows (n,) of given batch, K and seconds per step.

    Args:
        batch: (n,) mean requests per step.
        draft_len: (n,) K.
        seconds: (n,) wall seconds per step.
        prompt: (n,) prompt tokens computed per step.
        context: (n,) tokens in the KV cache; untold if None.
        emitted: (n,) tokens emitted per second; untold if None.
        steps: steps of every window, whose length then follows; 15 s of steps if None.
        engine: name of the engine.
        fingerprint: what it is.
        start: unix seconds of the first window.
    """
    prompts = np.zeros(len(batch)) if prompt is None else prompt
    lengths = np.full(len(batch), WINDOW_SECONDS) if steps is None else steps * np.asarray(seconds)
    ends = start + np.cumsum(lengths)
    windows = []
    for i, (b, k, t) in enumerate(zip(batch, draft_len, seconds, strict=True)):
        length, end = float(lengths[i]), float(ends[i])
        count = length / t
        counts = Counts(
            steps=count,
            request_steps=b * count,
            request_step_seconds=b * length,
            drafts=b * count if k else 0.0,
            draft_tokens=b * count * k,
            prompt_tokens=prompts[i] * count,
            emitted=None if emitted is None else float(emitted[i]) * length,
        )
        windows.append(
            Window(
                pool="p",
                engine=engine,
                start=end - length,
                end=end,
                state=WindowState.GOOD,
                reason="",
                counts=counts,
                gauges=Gauges(kv_tokens=None if context is None else float(context[i])),
                fingerprint=fingerprint,
                draft_lens=frozenset({int(k)}) if k else frozenset(),
            )
        )
    return windows


def noise(rng: np.random.Generator, size: int, sd: float = 0.03, outliers: float = 0.05) -> Floats:
    """Return factors (size,): log-normal noise, and outliers that are 1.3 to 3 times too slow."""
    factor = np.exp(rng.normal(0.0, sd, size))
    bad = rng.random(size) < outliers
    factor[bad] *= rng.uniform(1.3, 3.0, int(bad.sum()))
    return np.asarray(factor)


def drift(rng: np.random.Generator, size: int, sd: float = 0.08, memory_seconds: float = 900.0) -> Floats:
    """Return the factor (size,) of a machine whose speed moves from window to window."""
    keep = math.exp(-WINDOW_SECONDS / memory_seconds)
    steps = rng.standard_normal(size)
    level = np.empty(size)
    level[0] = steps[0]
    for i in range(1, size):
        level[i] = keep * level[i - 1] + math.sqrt(1 - keep**2) * steps[i]
    return np.exp(sd * level)


def random_cells(
    rng: np.random.Generator,
    crossover: float,
    cells: int,
    low: float,
    high: float,
    draft_lens: tuple[int, ...] = (0, 1, 2, 3, 4),
) -> tuple[Floats, Floats]:
    """Return batch (n,) and K (n,), tokens in flight log-uniform in low..high crossovers."""
    tokens = crossover * np.exp(rng.uniform(math.log(low), math.log(high), cells))
    draft_len = rng.choice(np.array(draft_lens, dtype=np.float64), cells)
    draft_len = np.where(tokens < draft_len + 1, float(draft_lens[0]), draft_len)
    return np.maximum(1.0, tokens / (draft_len + 1)), np.asarray(draft_len)


@dataclass(frozen=True, slots=True)
class Traffic:
    """How an engine was used while its windows were taken."""

    windows: int = 300
    low: float = 1 / 8
    high: float = 8.0
    """Range of tokens in flight, in crossovers."""
    draft_lens: tuple[int, ...] = (0, 1, 2, 3, 4)
    scheduled: bool = False
    """K follows the batch, as under a schedule in force, instead of being drawn."""
    per_cell: int = 1
    """Consecutive windows at one batch and K."""
    prompts: float = 0.0
    """Largest ratio of prompt tokens to decode tokens in a step."""
    noise: float = 0.03
    cell_noise: float = 0.0
    drift: float = 0.0

    def run(self, world: World, rng: np.random.Generator) -> list[Window]:
        """Return the windows of one run of a world."""
        cells = self.windows // self.per_cell
        batch, draft_len = random_cells(rng, world.crossover, cells, self.low, self.high, self.draft_lens)
        if self.scheduled:
            order = (np.argsort(np.argsort(batch)) + 0.5) / cells
            draft_len = np.select([order < share for share, _ in SCHEDULE], [k for _, k in SCHEDULE])
        batch, draft_len = np.repeat(batch, self.per_cell), np.repeat(draft_len, self.per_cell)
        prompt = batch * (draft_len + 1) * rng.uniform(0, self.prompts, len(batch))
        seconds = world.seconds(batch, draft_len, prompt) * noise(rng, len(batch), self.noise)
        seconds *= np.exp(np.repeat(rng.normal(0.0, self.cell_noise, cells), self.per_cell))
        seconds *= drift(rng, len(batch), self.drift)
        return make_windows(batch, draft_len, seconds, prompt=prompt)
