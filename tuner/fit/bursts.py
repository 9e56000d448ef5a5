"""Bursts of other traffic: a load test must not stand in for the users.

Random prompts of a benchmark are accepted at 0.12 where prose gets 0.52 (vLLM PR 53906), and five minutes
of it can hold four times the drafts of an hour of users. A cap on the weight of a window does not help
against twenty such windows; what tells them apart is that acceptance *and* rate are unlike the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tuner.fleet import Finding

if TYPE_CHECKING:
    from tuner.fit.arrays import BoolArray, FloatArray
    from tuner.fit.exposure import ExposureTable

MIN_WINDOWS = 12
"""Fewer windows have no usual spread to be unlike."""

UNLIKE_SIGMAS = 6.0
"""Distance in robust standard deviations: one window in 10^9 by chance if windows were normal; acceptance
of single long requests has far heavier tails than that, so rate and number of episodes must agree."""

UNLIKE_ACCEPTANCE = 0.10
"""And in acceptance: less would move the estimate by 0.01 at a tenth of the windows."""

UNLIKE_RATE = 3.0
"""And in drafts per second, over the median of the rest: users' load rarely triples within a minute."""

MAX_SHARE = 0.20
"""More windows than this are part of the traffic, whatever they are."""

MAX_EPISODES = 2
"""So is what comes back again and again."""


def leave_out_bursts(table: ExposureTable, pool: str) -> tuple[ExposureTable, list[Finding]]:
    """Leave out one or two short episodes of much faster traffic with another acceptance, and say so."""
    if len(table.windows) < MIN_WINDOWS or table.positions == 0:
        return table, []
    unlike = _unlike(table)
    count = int(unlike.sum())
    if count == 0 or count > MAX_SHARE * len(unlike) or _episodes(unlike, table) > MAX_EPISODES:
        return table, []
    kept = table.keep(~unlike)
    inside, outside = _rate(table.keep(unlike)), _rate(kept)
    starts = [window.start for window, out in zip(table.windows, unlike, strict=True) if out]
    finding = Finding(
        code="traffic_burst_left_out",
        severity="info",
        message=f"{count} windows at several times the usual rate accept the first token at {inside:.2f}, "
        f"the rest at {outside:.2f}: left out of the acceptance fit as a load test. "
        "If these were users, give them a route of their own.",
        subject={"pool": pool},
        evidence={"windows": count, "acceptance": inside, "rest": outside, "start": min(starts)},
    )
    return kept, [finding]


def _unlike(table: ExposureTable) -> BoolArray:
    exposed, accepted = table.exposed[:, 0], table.accepted[:, 0]
    known = exposed > 0
    if not known.any():
        return np.zeros(len(exposed), dtype=bool)
    rate = np.where(known, accepted / np.maximum(exposed, 1.0), np.nan)
    middle = float(np.nanmedian(rate))
    spread = 1.4826 * float(np.nanmedian(np.abs(rate - middle)))  # MAD to standard deviation
    chance = middle * (1 - middle) / np.maximum(exposed, 1.0)
    distance = np.abs(np.where(known, rate, middle) - middle)
    speed = table.drafts / np.maximum(table.seconds, 1e-9)
    far = (distance > UNLIKE_ACCEPTANCE) & (distance > UNLIKE_SIGMAS * np.sqrt(spread**2 + chance))
    if not far.any() or far.all():
        return np.zeros(len(exposed), dtype=bool)
    usual: float = float(np.median(speed[~far]))
    return np.asarray(far & (speed > UNLIKE_RATE * usual), dtype=bool)


def _episodes(unlike: BoolArray, table: ExposureTable) -> int:
    """Runs of unlike windows in a row; engines that are hit at one time share one episode."""
    spans = sorted(
        (window.start, window.end) for window, out in zip(table.windows, unlike, strict=True) if out
    )
    episodes, end, gap = 0, -np.inf, 2.0 * float(np.median(table.seconds))
    for start, stop in spans:
        if start > end + gap:
            episodes += 1
        end = max(end, stop)
    return episodes


def _rate(table: ExposureTable) -> float:
    exposed: FloatArray = table.exposed[:, 0]
    return float(table.accepted[:, 0].sum() / max(float(exposed.sum()), 1.0))
