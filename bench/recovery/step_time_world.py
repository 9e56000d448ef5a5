"""A world with a known step time: windows as an engine of given costs would have them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tuner.fleet import Counts, Fingerprint, Gauges, Window, WindowState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


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
    kv: float = 0.0
    """Seconds per context token."""

    def seconds(self, batch: Floats, draft_len: Floats, prompt: Floats, context: Floats) -> Floats:
        """Return the true step time."""
        memory = self.floor / (1 + self.overhead_ratio)
        overhead = self.floor - memory
        compute = (batch * (draft_len + 1) + prompt) * self.floor / self.crossover
        if math.isinf(self.sharpness):
            core = np.maximum(memory, compute)
        else:
            core = (memory**self.sharpness + compute**self.sharpness) ** (1 / self.sharpness)
        draft = self.floor * (self.draft_base * (draft_len > 0) + self.draft_slope * draft_len)
        return overhead + core + draft + self.kv * context


def make_windows(
    batch: Floats,
    draft_len: Floats,
    seconds: Floats,
    *,
    prompt: Floats | None = None,
    context: Floats | None = None,
    window_seconds: float = 15.0,
    engine: str = "e0",
    fingerprint: Fingerprint = Fingerprint(engine="vllm", model="m"),  # noqa: B008 - frozen
    start: float = 1_800_000_000.0,
) -> list[Window]:
    """Return consecutive windows (n) of given batch, K and seconds per step."""
    windows = []
    prompts = np.zeros(len(batch)) if prompt is None else prompt
    for i, (b, k, t, p) in enumerate(zip(batch, draft_len, seconds, prompts, strict=True)):
        steps = window_seconds / t
        counts = Counts(
            steps=steps,
            request_steps=b * steps,
            request_step_seconds=b * window_seconds,
            drafts=b * steps if k else 0.0,
            draft_tokens=b * steps * k,
            prompt_tokens=p * steps,
        )
        at = start + i * window_seconds
        windows.append(
            Window(
                pool="p",
                engine=engine,
                start=at,
                end=at + window_seconds,
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
    return factor


def random_cells(
    rng: np.random.Generator,
    crossover: float,
    windows: int,
    low: float,
    high: float,
    draft_lens: tuple[int, ...],
) -> tuple[Floats, Floats]:
    """Return batch (n,) and draft length (n,), tokens in flight log-uniform in low..high crossovers."""
    tokens = crossover * np.exp(rng.uniform(math.log(low), math.log(high), windows))
    draft_len = rng.choice(np.array(draft_lens, dtype=np.float64), windows)
    draft_len = np.where(tokens < draft_len + 1, 0.0, draft_len)
    return np.maximum(1.0, tokens / (draft_len + 1)), draft_len
