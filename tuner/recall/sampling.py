"""A bounded sample of a stream of windows that no order of arrival and no value moves.

The unit that is kept or dropped is a *block*: the windows of one engine in one stretch of time. Each block
has a number u in (0, 1) that only its name decides, and a size that halves with every half-life of age, as
the weight of a window does in the fits. Blocks are kept in order of u over size, smallest first, as far as
the budget goes (priority sampling, Duffield, Lund and Thorup 2007; with forward decay, Cormode et al. 2009).
Since all sizes shrink alike, the order never changes: what was dropped would be dropped again, whatever came
when.

A block whose size is s is in the sample with probability min(1, s / threshold), so a kept window stands for
the inverse of that many. Estimates weighted so are unbiased, however rare or busy a cell is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, NamedTuple

from tuner.fleet import SHORT_DRAFT_TOKENS, Window, WindowState

if TYPE_CHECKING:
    from collections.abc import Mapping

BLOCK_SECONDS = 300.0
"""Stretch of time of a block: 4 durations of requests of 75 s, the least over which acceptance of one engine
is taken as independent; 20 windows of 15 s, so that 4000 windows are 200 blocks and the variance between them
is known to 10 %. The fits join neighbouring blocks where requests are longer."""

RARE_WINDOWS = 40
"""Windows that each cell keeps, however rare it is: two blocks of 15 s windows, four cells of the step-time
fit. A cell of one window in ten thousand would have none of 4000 otherwise."""

RARE_SHARE = 0.25
"""Most of a budget that is kept for cells that way; they share it alike where that is less."""

MAX_CELLS = 32
"""Cells that have such a part: 31 of 1000 windows each, more than one block. Engines show 5 draft lengths at
3 to 6 octaves of batch; more are mixes of a schedule that is pushed about, and take their chance."""

SAME_SCRAPE = 1e-3
"""Seconds by which windows of one engine may overlap and still follow each other."""


class Cell(NamedTuple):
    """What rare windows are kept for: an octave of the batch, and the draft lengths that ran."""

    octave: int
    draft_lens: tuple[int, ...] | None


class BlockName(NamedTuple):
    """Windows of one engine, one stretch of time and one cell."""

    engine: str
    slot: int
    cell: Cell


@dataclass(slots=True)
class Block:
    """Windows of one name; the blocks of an engine and stretch share their key and go together."""

    key: float
    """log2 of u over the size at time 0: the smaller, the sooner kept."""
    windows: dict[float, Window] = field(default_factory=dict)
    """By start."""
    given: tuple[float, tuple[Window, ...]] | None = None
    """Weight and windows as they were given out last."""


def cell_of(window: Window) -> Cell:
    """Return the cell of a window; octave -1 where the batch is not told."""
    batch = window.batch
    octave = max(0, math.floor(math.log2(max(batch, 1.0)))) if batch and math.isfinite(batch) else -1
    return Cell(octave, None if window.draft_lens is None else tuple(sorted(window.draft_lens)))


def uniform(*names: str) -> float:
    """Return a number in (0, 1) that only the names decide."""
    digest = blake2b("\0".join(names).encode(), digest_size=7).digest()
    return (int.from_bytes(digest, "big") + 0.5) / 2.0**56


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Keys at and above which blocks were dropped: by the whole budget, and by the part of each cell."""

    whole: float = math.inf
    by_cell: Mapping[Cell, float] = field(default_factory=dict)

    def of(self, cell: Cell) -> float:
        """Return the key below which a block of a cell is kept; a cell not seen so far is held at first."""
        return max(self.whole, self.by_cell.get(cell, math.inf))

    @property
    def thinned(self) -> bool:
        """Whether anything was ever dropped for want of room."""
        return self.whole < math.inf


class Stream:
    """Windows of one pool, route and fingerprint within a budget."""

    def __init__(self, half_life: float) -> None:
        """Hold nothing yet; ``half_life`` in seconds."""
        self.half_life = half_life
        self.size = 0
        self._blocks: dict[BlockName, Block] = {}
        self._ceilings = Ceilings()

    def add(self, window: Window, pool: str) -> None:
        """Hold a window, unless its block was dropped before; one of the same start replaces it."""
        slot = math.floor(window.start / BLOCK_SECONDS)
        name = BlockName(window.engine, slot, cell_of(window))
        block = self._blocks.get(name)
        if block is None:
            chance = uniform(pool, window.engine, str(slot))
            block = Block(math.log2(chance) - slot * BLOCK_SECONDS / self.half_life)
            if block.key >= self._ceilings.of(name.cell):
                return
            self._blocks[name] = block
        self.size += window.start not in block.windows
        block.windows[window.start] = window
        block.given = None

    def trim(self, budget: int) -> None:
        """Drop what does not fit into a budget of windows."""
        self._ceilings = self._within(budget)
        if self._ceilings.thinned:
            self._keep({name for name, one in self._blocks.items() if one.key < self._ceilings.of(name.cell)})

    def forget(self, first: float, last: float) -> None:
        """Drop blocks that ended before ``first`` or began after ``last``, unix seconds."""
        slots = math.floor(first / BLOCK_SECONDS), math.floor(last / BLOCK_SECONDS)
        self._keep({name for name in self._blocks if slots[0] <= name.slot <= slots[1]})

    def newest(self, now: float) -> float:
        """Return the last end of a window by ``now``, minus infinity without one."""
        blocks = self._blocks.values()
        ends = (window.end for block in blocks for window in block.windows.values() if window.end <= now)
        return max(ends, default=-math.inf)

    def windows(self, now: float, budget: int) -> list[Window]:
        """Return windows that ended by ``now``, within a budget, each with what it stands for as its weight.

        In order of engine and time. Of windows of one kind that overlap, as a sum over a minute and the
        windows that went into it would, the one that began first is given, the longest of these. Sums of
        different kinds overlap where the kinds took turns, and none of them is in another.
        """
        ceilings = self._within(budget)
        chosen: list[Window] = []
        for name, block in self._blocks.items():
            ceiling = ceilings.of(name.cell)
            if block.key < ceiling:
                weight = 2.0 ** max(0.0, -ceiling - name.slot * BLOCK_SECONDS / self.half_life)
                chosen += _given(block, weight)
        chosen.sort(key=lambda window: (window.engine, window.start, -window.end))
        out: list[Window] = []
        ends: dict[tuple[object, ...], float] = {}
        for window in chosen:
            kind = _kind(window)
            if window.start >= ends.get(kind, -math.inf) - SAME_SCRAPE and window.end <= now:
                ends[kind] = window.end
                out.append(window)
        return out

    def _within(self, budget: int) -> Ceilings:
        """Return the ceilings at which the blocks fit into a budget; never above those that were."""
        if self.size <= budget and not self._ceilings.thinned:
            return self._ceilings
        sizes = [(one.key, name.cell, len(one.windows)) for name, one in self._blocks.items()]
        sizes.sort(key=itemgetter(0))
        seen = {cell for _, cell, _ in sizes} | set(self._ceilings.by_cell)
        ranked = sorted(seen, key=lambda cell: uniform(repr(cell)))
        cells = max(min(len(ranked), MAX_CELLS), 1)
        share = min(RARE_WINDOWS, int(RARE_SHARE * budget) // cells)
        rare = cells * share
        by_cell = dict.fromkeys(ranked[:MAX_CELLS], math.inf) | dict.fromkeys(ranked[MAX_CELLS:], -math.inf)
        whole, total, filled = math.inf, 0, dict.fromkeys(ranked, 0)
        for key, cell, size in sizes:
            total += size
            filled[cell] += size
            if total > budget - rare:
                whole = min(whole, key)
            if filled[cell] > share:
                by_cell[cell] = min(by_cell[cell], key)
        before = self._ceilings.by_cell
        return Ceilings(
            min(self._ceilings.whole, whole),
            {cell: min(key, before.get(cell, math.inf)) for cell, key in by_cell.items()},
        )

    def _keep(self, names: set[BlockName]) -> None:
        if len(names) < len(self._blocks):
            self._blocks = {name: block for name, block in self._blocks.items() if name in names}
            self.size = sum(len(block.windows) for block in self._blocks.values())


def _kind(window: Window) -> tuple[object, ...]:
    """Return what windows share that may be summed into one: whose they are, and what ran."""
    whose = window.engine, window.state, window.restarts
    mean = window.draft_len
    if window.state is not WindowState.GOOD or mean is None or not math.isfinite(mean):
        return whose
    pure = abs(mean - round(mean)) <= SHORT_DRAFT_TOKENS and len(window.draft_lens or ()) <= 1
    return *whose, window.draft_lens, round(mean) if pure else None


def _given(block: Block, weight: float) -> tuple[Window, ...]:
    """Return a block's windows with a weight; the same values each time while neither changes."""
    if block.given is None or block.given[0] != weight:
        windows = tuple(block.windows.values())
        if weight != 1.0:
            windows = tuple(_weighed(window, weight) for window in windows)
        block.given = weight, windows
    return block.given[1]


_NAMES = tuple(one.name for one in fields(Window))
_values_of = attrgetter(*_NAMES)
_WEIGHT = _NAMES.index("weight")


def _weighed(window: Window, weight: float) -> Window:
    """Return a copy that stands for ``weight`` times as many; ``replace`` takes three times as long."""
    values = list(_values_of(window))
    values[_WEIGHT] *= weight
    return Window(*values)
