"""A pool of engines whose acceptance and step time are known, as windows of 15 s."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from tuner.fleet import POOLED_ROUTE, Counts, Fingerprint, Gauges, Window, WindowState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

START = 1_800_000_000.0
SECONDS = 15.0
HAZARDS = (0.80, 0.72, 0.66, 0.60)
RUNS = Fingerprint(engine="vllm", model="m")


def good(
    engine: str,
    index: int,
    *,
    batch: float = 8.0,
    draft_len: int = 2,
    route: str = POOLED_ROUTE,
    pool: str = "p",
) -> Window:
    """Return one plain good window, number ``index`` of its engine."""
    counts = Counts(steps=500.0, request_steps=500.0 * batch, drafts=500.0 * batch)
    start = START + SECONDS * index
    lens = frozenset({draft_len}) if draft_len else frozenset()
    return Window(
        pool, engine, start, start + SECONDS, WindowState.GOOD, "", counts, fingerprint=RUNS, route=route,
        draft_lens=lens,
    )  # fmt: skip


def run_pool(engines: int, windows: int, seed: int) -> list[Window]:
    """Return ``windows`` windows of each engine, in order of time.

    Load swings from 2 to 67 requests over 40 minutes; K is 4, 2 or 1 by the batch, and once in 40 windows 0.
    Acceptance falls with the batch and wanders by request, so that a sample which prefers any load or
    draft length reads another acceptance.
    """
    rng = np.random.default_rng(seed)
    out: list[Window] = []
    for number in range(engines):
        phase, quality = rng.uniform(0, 2 * math.pi), rng.normal(0.0, 0.1)
        for index in range(windows):
            batch = 10.0 * math.exp(1.9 * math.sin(phase + index / 25) + rng.normal(0, 0.05))
            draft_len = 4 if batch < 8 else 2 if batch < 24 else 1
            if rng.random() < 1 / 40:
                draft_len = 0
            shift = quality + rng.normal(0.0, 0.15) - 0.15 * math.log(batch / 10)
            out.append(_window(f"e{number}", index, max(batch, 1.0), draft_len, shift, rng))
    return sorted(out, key=lambda window: (window.start, window.engine))


def _window(
    engine: str, index: int, batch: float, draft_len: int, shift: float, rng: np.random.Generator
) -> Window:
    tokens = batch * (draft_len + 1.5)
    seconds = 0.002 + 0.016 * math.hypot(1.0, tokens / 40.0) + 0.0008 * draft_len
    steps = round(SECONDS / (seconds * math.exp(rng.normal(0, 0.03))))
    drafts = round(steps * batch)
    accepted, reached = [], drafts
    for hazard in HAZARDS[:draft_len]:
        reached = int(rng.binomial(reached, 1 / (1 + (1 - hazard) / hazard * math.exp(-shift))))
        accepted.append(float(reached))
    requests = drafts / 60
    counts = Counts(
        steps=float(steps),
        request_steps=float(drafts),
        request_step_seconds=drafts * SECONDS / steps,
        drafts=float(drafts) if draft_len else 0.0,
        draft_tokens=float(drafts * draft_len),
        accepted=sum(accepted),
        accepted_by_position=tuple(accepted) + (0.0,) * (len(HAZARDS) - draft_len),
        emitted=drafts + sum(accepted) + requests,
        first_tokens=requests,
        prompt_tokens=0.5 * drafts,
        finished=requests,
        request_seconds=drafts * SECONDS / steps,
    )
    return replace(
        good(engine, index), counts=counts, gauges=Gauges(running=batch),
        draft_lens=frozenset({draft_len}) if draft_len else frozenset(),
    )  # fmt: skip


def minute_sums(windows: Iterable[Window]) -> list[Window]:
    """Return windows of one engine, minute and set of draft lengths added up, as a store rolls them up."""
    keyed = sorted(windows, key=lambda w: (w.engine, w.start // 60, sorted(w.draft_lens or ()), w.start))
    groups = groupby(keyed, key=lambda w: (w.engine, w.start // 60, w.draft_lens))
    return [piece for _, group in groups for piece in _runs(list(group))]


def _runs(windows: Sequence[Window]) -> list[Window]:
    """Add up windows that follow each other."""
    runs: list[list[Window]] = []
    for window in windows:
        if runs and runs[-1][-1].end == window.start:
            runs[-1].append(window)
        else:
            runs.append([window])
    return [replace(run[0], end=run[-1].end, counts=_sum([one.counts for one in run])) for run in runs]


def _sum(counts: Sequence[Counts]) -> Counts:
    totals = {
        name: sum(getattr(one, name) for one in counts)
        for name in Counts.__slots__
        if isinstance(getattr(counts[0], name), float)
    }
    by_position = tuple(
        sum(column) for column in zip(*(one.accepted_by_position for one in counts), strict=True)
    )
    return Counts(**totals, accepted_by_position=by_position)
