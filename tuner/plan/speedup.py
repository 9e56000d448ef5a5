"""What speculation gains over none at the load that there is, by a schedule or by what runs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tuner.fleet import Estimate, NotEnoughData
from tuner.plan.goodput import Z95

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.fit.acceptance import AcceptanceFit
    from tuner.fit.step_time import StepTimeFit
    from tuner.fleet import Schedule, Window
    from tuner.plan.goodput import Floats, GoodputTable

SAME_BATCH = 0.05
"""Width, in log batch, within which loads count as one: step times there differ by less than 5 %, and their
ratio between draft lengths by less than a thousandth."""


def predicted_speedup(
    acceptance: AcceptanceFit | NotEnoughData,
    step_time: StepTimeFit | NotEnoughData,
    table: GoodputTable | NotEnoughData,
    windows: Sequence[Window],
    schedule: Schedule | NotEnoughData,
) -> Estimate | NotEnoughData:
    """Return how much faster the same tokens come than without speculation, 1 for as fast.

    At the batch sizes of the windows, each for the time it was seen; a route's acceptance may be given with
    its pool's step time and table, as its requests share their steps with the others'.

    Args:
        acceptance: of the pool or a route.
        step_time: of the pool.
        table: of the pool; tells whether running without speculation is known at all.
        windows: good pooled windows that show the load.
        schedule: the draft length at each batch size.

    Returns:
        The ratio with its 95 % interval, or why it cannot be told.
    """
    for known in (acceptance, step_time, table, schedule):
        if isinstance(known, NotEnoughData):
            return known
    assert not isinstance(acceptance, NotEnoughData)
    assert not isinstance(step_time, NotEnoughData)
    assert not isinstance(table, NotEnoughData)
    assert not isinstance(schedule, NotEnoughData)
    zero = table.zero_column
    if zero is None or not table.trusted[:, zero].any():
        return NotEnoughData("no measurement without speculation, so no gain over it is known", 0, 1)
    batch, seconds, prompt_ratio = load_of(windows)
    if not len(batch):
        return NotEnoughData("no good window tells the batch size", 0, 1)
    sizes = np.clip(np.rint(batch), 1, schedule.max_batch).astype(np.int64).tolist()
    lens = [schedule.draft_len_at(size) for size in sizes]
    return _ratio(acceptance, step_time, batch, seconds, lens, prompt_ratio)


def _ratio(
    acceptance: AcceptanceFit,
    step_time: StepTimeFit,
    batch: Floats,
    seconds: Floats,
    lens: Sequence[int],
    prompt_ratio: float,
) -> Estimate:
    """Return time for the same tokens without drafts over time with them; logs of cells are normal."""
    kinds = sorted({0, *lens})
    drafted = np.array([acceptance.drafted_per_step(length) for length in kinds])
    tokens, log_tokens, token_cov = acceptance.emitted_moments(kinds)
    prompts = batch[:, None] * tokens[None, :] * prompt_ratio
    log_seconds, second_cov = step_time.log_seconds_moments(batch, drafted, prompts)
    log_gain = (log_tokens - log_tokens[0])[None, :] - (log_seconds - log_seconds[:, :1])
    cov = token_cov[None] + second_cov
    column = np.searchsorted(kinds, lens)
    rows = np.arange(len(batch))
    gain = log_gain[rows, column]
    sd = np.sqrt(np.maximum(cov[rows, column, column] + cov[:, 0, 0] - 2 * cov[rows, column, 0], 0.0))
    # Time without drafts for the tokens of one second with them is exp(gain): a mean over seconds seen.
    share = seconds / seconds.sum()
    ratio = float(share @ np.exp(gain))
    # The same fits stand behind every batch size, so their errors go together: reaches add up.
    reach = Z95 * float(share @ (np.exp(gain) * sd)) / ratio
    return Estimate(ratio, ratio * math.exp(-reach), ratio * math.exp(reach))


def load_of(windows: Sequence[Window]) -> tuple[Floats, Floats, float]:
    """Return batch sizes (n,), seconds at each (n,), and prompt tokens per token emitted."""
    seen: dict[int, list[float]] = {}
    prompt = emitted = 0.0
    for window in windows:
        batch, counts = window.batch, window.counts
        if not batch or not math.isfinite(batch):
            continue
        entry = seen.setdefault(round(math.log(batch) / SAME_BATCH), [0.0, 0.0])
        entry[0] += window.weight * window.seconds * batch
        entry[1] += window.weight * window.seconds
        if counts.prompt_tokens is not None and counts.emitted:
            prompt += window.weight * counts.prompt_tokens
            emitted += window.weight * counts.emitted
    sums = np.array([seen[key] for key in sorted(seen)], dtype=np.float64).reshape(-1, 2)
    return sums[:, 0] / sums[:, 1], sums[:, 1], prompt / emitted if emitted else 0.0
