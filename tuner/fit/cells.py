"""Timing cells: blocks of consecutive windows of one engine at one draft length and batch.

A cell is the unit of evidence for step time. Within one, wall times and steps are added up, so the
step cut by each scrape cancels between neighbouring windows; between cells the machine, the load and
the code path differ, which on a real engine is twice the noise within.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tuner.fleet import WindowState

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from tuner.fleet import Window

    Floats = NDArray[np.float64]

MIN_STEPS = 5
"""Fewest steps of a usable window: each scrape cuts a step, so a mean over n steps carries an error of
up to 1/n and 0.41/n rms, 8 % at 5 steps."""
EDGE_VARIANCE = 1.0 / 6.0
"""Variance, in steps squared, of the difference of two uniform cuts."""
MAX_BLOCK_WINDOWS = 10
"""Longest block: the speed of a shared machine drifts within minutes, so an hour in one place is many
pieces of evidence, not one."""
CONTIGUOUS = 1e-3
"""Seconds between windows that share a scrape, whose cut steps cancel."""
MAX_GAP = 4.0
"""Longest gap inside a block, in windows: a few windows may be left out, an idle spell may not."""
SAME_BATCH = 0.15
"""Largest relative distance of a window's batch from its block's mean, twice that for tokens in flight
and context, which waves of prompts move. A curve bends by less than a thousandth over 15 %."""
SAME_MIX = 0.25
"""Largest distance of mean draft lengths inside a block of mixed windows."""
PURE_SHARE = 0.95
"""Least share of drafting request steps for a window to count as wholly at its draft length."""
MIX_SPREAD = 0.13
"""Largest variance of log tokens in flight that a mix of draft lengths may give the steps of a window: 1 and
3, or 0 and 1, in equal parts have 0.12. What a mix does to the mean step time beyond its mean tokens is half
of it times the curvature of the step time, 0.25 at the knee of p = 2 and 0.75 of p = 4."""
MIX_EXCESS = 0.25
"""Standard deviation of that in log seconds, over the variance: 0.016 for 2 and 4 in equal parts."""
OPTIONAL_DRAFTERS = ("ngram", "suffix")
"""Methods that stay silent where nothing matches; fewer drafts than steps is no sign of a mix."""
OUTLIER_Z = 4.0
"""A window this many robust standard deviations off its block's median is left out of the block."""
MIN_SPREAD = 0.005
"""Least relative noise of a window; nothing measured by scrapes repeats better than 0.5 %."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Blocks as arrays of one length g, in order of engine and time."""

    engine: tuple[str, ...]
    draft_len: Floats
    """K; between two whole numbers where a window mixed neighbouring draft lengths, or where drafts were cut
    short or not proposed: then the mean draft tokens per request step."""
    batch: Floats
    tokens: Floats
    """Mean tokens in flight per step."""
    context: Floats
    """Mean context tokens in the KV cache, NaN where the engine does not tell."""
    seconds: Floats
    """Wall seconds per step."""
    steps: Floats
    windows: Floats
    time: Floats
    """Unix seconds of the block's middle."""
    tokens_per_second: Floats
    """Emitted tokens per wall second, NaN where the engine does not tell."""
    root: Floats
    """Mean square root of the draft length."""
    mix: Floats
    """Variance of log tokens in flight that a mix of draft lengths gives a cell's steps, 0 without one."""
    edge_variance: Floats
    """Variance of log seconds from the steps cut by scrapes."""
    within: float
    """Standard deviation of a window's log seconds within its block, edges excluded."""
    left_out: Mapping[str, int]
    """Reason -> windows that were not used."""

    def __len__(self) -> int:
        """Return the number of cells."""
        return len(self.engine)

    @property
    def sampling_variance(self) -> Floats:
        """Variance (g,) of each cell's log seconds from noise within the cell."""
        return self.edge_variance + self.within**2 / self.windows + (MIX_EXCESS * self.mix) ** 2

    @property
    def pure(self) -> NDArray[np.bool_]:
        """Cells (g,) at one whole draft length."""
        return np.asarray((self.draft_len == np.round(self.draft_len)) & (self.mix == 0))


@dataclass(frozen=True, slots=True)
class _Row:
    """One usable window."""

    engine: str
    start: float
    end: float
    draft_len: float
    mix: float
    root: float
    batch: float
    tokens: float
    context: float
    seconds: float
    steps: float
    tokens_per_second: float


def usable_draft_len(window: Window) -> float | str:
    """Return the draft length that a window stands for, or the reason why it stands for none.

    A window over several draft lengths stands for its mean, since a cost that is a function of whole K is
    interpolated between them: exactly between neighbours, else with the error that :data:`MIX_EXCESS`
    allows for, if they are not too far apart. So does one of a drafter that is silent at will,
    whose own cost is next to nothing (0.6 % of a verify pass, SpecDecode-Bench predictor.py), or of drafts
    that were cut short: what was drafted is what a step costs. Any other mix is refused.
    """
    mean = window.draft_len
    if mean is None:
        return "draft tokens or request steps untold"
    optional = window.fingerprint.method.startswith(OPTIONAL_DRAFTERS)
    if optional:
        return mean
    if window.draft_lens is None:
        return "mix of unknown draft lengths"
    if not window.draft_lens:
        return 0.0 if mean == 0 else "drafts counted at draft length 0"
    low, high = min(window.draft_lens), max(window.draft_lens)
    if high - low > 1 and mix_spread(window.draft_lens, mean) > MIX_SPREAD:
        return "mix of draft lengths too far apart"
    return _drafting_len(window, (low, high))


def mix_spread(draft_lens: Collection[int], mean: float) -> float:
    """Return the variance of log(K + 1) over steps at these draft lengths with this mean.

    Two lengths and their mean tell it. Of three and more it lies between that of the two around the mean and
    that of the two outermost, and their middle is taken. The batch, which falls as K rises under a schedule,
    makes the true spread of tokens in flight smaller.
    """
    inner, outer = (
        share * (1 - share) * math.log((high + 1) / (low + 1)) ** 2
        for low, high, share in _pairs(draft_lens, mean)
    )
    return (inner + outer) / 2


def mean_root(draft_lens: Collection[int], mean: float) -> float:
    """Return the mean square root of the draft length over such steps, to the same approximation."""
    inner, outer = (
        (1 - share) * math.sqrt(low) + share * math.sqrt(high)
        for low, high, share in _pairs(draft_lens, mean)
    )
    return (inner + outer) / 2


def _pairs(draft_lens: Collection[int], mean: float) -> tuple[tuple[int, int, float], tuple[int, int, float]]:
    """Return the two draft lengths around a mean and the two outermost, each with the share of the longer."""
    lens = sorted(draft_lens)
    within = min(max(mean, lens[0]), lens[-1])
    place = bisect_left(lens, within)
    pairs = (lens[place if lens[place] == within else place - 1], lens[place]), (lens[0], lens[-1])
    inner, outer = ((a, b, (within - a) / (b - a) if b > a else 0.0) for a, b in pairs)
    return inner, outer


def _drafting_len(window: Window, lens: tuple[int, int]) -> float | str:
    """Return the draft length of a window that drafted ``low`` or ``high`` tokens, and maybe none."""
    counts, mean, (low, high) = window.counts, window.draft_len, lens
    assert mean is not None
    drafting = 1.0
    if counts.drafts is not None and counts.request_steps:
        drafting = counts.drafts / counts.request_steps
    if drafting < PURE_SHARE or mean < PURE_SHARE * low:
        cut_short = drafting >= PURE_SHARE and low == high
        return mean if cut_short or (low, high) == (1, 1) else "mix of draft lengths 0 and above"
    return float(low) if high == low else min(max(mean, low), high)


def _row(window: Window) -> _Row | str:
    """Return the usable row of a window, or the reason why it has none."""
    if window.state is not WindowState.GOOD:
        return f"window is {window.state.value}"
    steps = window.counts.steps
    seconds, tokens, batch = window.step_seconds, window.tokens_in_flight, window.batch
    if seconds is None or tokens is None or batch is None or steps is None:
        return "steps or tokens in flight untold"
    if not (0 < seconds < math.inf and 0 < tokens < math.inf and 0 < batch < math.inf):
        return "step time or tokens in flight not positive"
    if steps < MIN_STEPS:
        return f"fewer than {MIN_STEPS} steps"
    draft_len = usable_draft_len(window)
    if isinstance(draft_len, str):
        return draft_len
    lens = window.draft_lens or ()
    mix, root = 0.0, root_of(draft_len)
    if len(lens) > 1 and max(lens) - min(lens) > 1:
        mix, root = mix_spread(lens, draft_len), mean_root(lens, draft_len)
    context, throughput = window.gauges.kv_tokens, window.tokens_per_second
    return _Row(
        window.engine,
        window.start,
        window.end,
        draft_len,
        mix,
        root,
        batch,
        tokens,
        math.nan if context is None else context,
        seconds,
        steps,
        math.nan if throughput is None else throughput,
    )


def root_of(draft_len: float) -> float:
    """Return the square root of a draft length, between two whole ones theirs, interpolated."""
    low = math.floor(draft_len)
    part = draft_len - low
    return math.sqrt(low) * (1 - part) + math.sqrt(low + 1) * part


def build_cells(windows: Sequence[Window]) -> Cells:
    """Group good windows into blocks; windows of other states are counted with their reason.

    Args:
        windows: windows of one fingerprint, in any order.
    """
    left_out: Counter[str] = Counter()
    rows: list[_Row] = []
    for window in windows:
        row = _row(window)
        if isinstance(row, str):
            left_out[row] += 1
        else:
            rows.append(row)
    rows.sort(key=lambda row: (row.engine, row.start))
    blocks = _blocks(rows)
    within, outliers = _spread_within(blocks)
    if outliers:
        left_out["outlier within its block"] = len(outliers)
    kept = [[row for row in block if id(row) not in outliers] for block in blocks]
    return _table(kept, within, dict(left_out))


class _Block:
    """Windows of one engine, draft length and batch, while they are put together."""

    def __init__(self, first: _Row) -> None:
        self.rows = [first]
        self.batch, self.tokens, self.context = first.batch, first.tokens, first.context

    def add(self, row: _Row) -> None:
        self.rows.append(row)
        self.batch += row.batch
        self.tokens += row.tokens
        self.context += row.context

    def takes(self, row: _Row) -> bool:
        """Tell whether a window belongs to this block, which came before it."""
        first, last, size = self.rows[0], self.rows[-1], len(self.rows)
        if size == MAX_BLOCK_WINDOWS or row.engine != first.engine or not _same_draft_len(row, first):
            return False
        if row.start - last.end > MAX_GAP * (last.end - last.start):
            return False
        batch, tokens, context = self.batch / size, self.tokens / size, self.context / size
        far = abs(row.context - context) > 2 * SAME_BATCH * context  # false where context is untold
        return (
            abs(row.batch - batch) <= SAME_BATCH * batch
            and abs(row.tokens - tokens) <= 2 * SAME_BATCH * tokens
            and not far
        )


def _blocks(rows: Sequence[_Row]) -> list[list[_Row]]:
    """Split sorted rows where engine, draft length or batch change."""
    blocks: list[_Block] = []
    for row in rows:
        if blocks and blocks[-1].takes(row):
            blocks[-1].add(row)
        else:
            blocks.append(_Block(row))
    return [block.rows for block in blocks]


def _same_draft_len(one: _Row, other: _Row) -> bool:
    """Tell whether two windows ran one draft length, or drafted much alike between two."""
    if _is_mixed(one) and _is_mixed(other):
        return abs(one.draft_len - other.draft_len) <= SAME_MIX
    return one.draft_len == other.draft_len and _is_mixed(one) == _is_mixed(other)


def _is_mixed(row: _Row) -> bool:
    return row.mix > 0 or row.draft_len % 1 > 0


def _spread_within(blocks: Sequence[Sequence[_Row]]) -> tuple[float, set[int]]:
    """Return the noise of a window within its block, and the ids of windows far outside of it."""
    # Of two that differ, nobody knows which one is off.
    judged = [block for block in blocks if len(block) > 2]  # noqa: PLR2004 - said above
    if not judged:
        return 0.0, set()
    rows = [row for block in judged for row in block]
    logs = np.log([row.seconds for row in rows])
    sizes = np.array([len(block) for block in judged])
    offsets = logs - np.repeat(_medians(logs, sizes), sizes)
    edges = EDGE_VARIANCE / np.array([row.steps for row in rows]) ** 2
    scale = 1.4826 * float(np.median(np.abs(offsets)))
    variance = scale**2 * len(offsets) / int((sizes - 1).sum())
    far = np.abs(offsets) > OUTLIER_Z * np.maximum(np.sqrt(variance + edges), 2 * MIN_SPREAD)
    within = float(np.sqrt(max(variance - float(np.mean(edges)), MIN_SPREAD**2)))
    return within, {id(rows[place]) for place in np.flatnonzero(far)}


def _medians(values: Floats, sizes: NDArray[np.intp]) -> Floats:
    """Return the median (b,) of each run of values (n,), b runs of the given sizes one after the other."""
    starts = np.cumsum(sizes) - sizes
    out = np.empty(len(sizes))
    for size in np.unique(sizes):
        same = sizes == size
        out[same] = np.median(values[starts[same, None] + np.arange(size)], axis=1)
    return out


def _table(blocks: Sequence[Sequence[_Row]], within: float, left_out: Mapping[str, int]) -> Cells:
    """Add up each block."""
    blocks = [block for block in blocks if block]
    sizes = np.array([len(block) for block in blocks], dtype=np.intp)
    of_block = np.repeat(np.arange(len(blocks)), sizes)
    rows = [row for block in blocks for row in block]
    each_steps = np.array([row.steps for row in rows], dtype=np.float64)
    steps: Floats = np.asarray(np.bincount(of_block, each_steps, len(blocks)), dtype=np.float64)

    def mean(values: Sequence[float]) -> Floats:
        sums = np.bincount(of_block, np.array(values, dtype=np.float64) * each_steps, len(blocks))
        return np.asarray(sums / steps)

    draft_len = mean([row.draft_len for row in rows])
    whole = np.array([not _is_mixed(block[0]) for block in blocks], dtype=np.bool_)
    draft_len = np.where(whole, [block[0].draft_len for block in blocks], draft_len)
    starts, ends = (np.array([getattr(row, name) for row in rows]) for name in ("start", "end"))
    apart = (starts[1:] - ends[:-1] > CONTIGUOUS) & (of_block[1:] == of_block[:-1])
    runs = 1 + np.bincount(of_block[1:], apart, len(blocks))
    return Cells(
        engine=tuple(block[0].engine for block in blocks),
        draft_len=draft_len,
        batch=mean([row.batch for row in rows]),
        tokens=mean([row.tokens for row in rows]),
        context=mean([row.context for row in rows]),
        seconds=mean([row.seconds for row in rows]),
        steps=steps,
        windows=sizes.astype(np.float64),
        time=np.array([(block[0].start + block[-1].end) / 2 for block in blocks], dtype=np.float64),
        tokens_per_second=mean([row.tokens_per_second for row in rows]),
        root=mean([row.root for row in rows]),
        mix=mean([row.mix for row in rows]),
        edge_variance=EDGE_VARIANCE * runs / steps**2,
        within=within,
        left_out=left_out,
    )
