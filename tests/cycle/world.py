"""Windows of a pool with two routes, whose acceptance and step time are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.plan.engine_windows import engine_windows
from tuner.fleet import Counts, Window

TRUE = {"tools": 0.85, "chat": 0.45}
HAZARDS = (0.65, 0.65, 0.65, 0.65)


def step_seconds(tokens: float, draft_len: int) -> float:
    """Return the seconds of a step: a soft knee at 100 tokens, and a drafter that costs 0.4 ms a token."""
    return 0.012 * float(np.hypot(1.0, tokens / 100.0)) + 0.0004 * draft_len


def pool_windows(seed: int = 0) -> list[Window]:
    """Return good windows of one pool at K of 0, 2 and 4 over batches of 2 to 200."""
    return engine_windows((0, 2, 4), (2, 5, 12, 30, 100, 200), HAZARDS, step_seconds, noise=0.01, seed=seed)


def route_windows(windows: list[Window], route: str, *, share: float = 0.5, seed: int = 0) -> list[Window]:
    """Return what a route did in these windows: joint counts of its share of the drafts."""
    rng = np.random.default_rng(seed)
    out = []
    for window in windows:
        (draft_len,) = window.draft_lens or {0}
        drafts = int(share * (window.counts.drafts or 0.0))
        if not draft_len or not drafts:
            continue
        runs = np.minimum(rng.geometric(1 - TRUE[route], drafts) - 1, draft_len)
        joint = {(draft_len, int(a)): float(n) for a, n in enumerate(np.bincount(runs)) if n}
        counts = Counts(
            drafts=float(drafts),
            draft_tokens=float(drafts * draft_len),
            accepted=float(runs.sum()),
            joint=joint,
        )
        out.append(replace(window, route=route, counts=counts))
    return out
