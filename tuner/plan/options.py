"""What an operator may choose about a plan, with every default in one place."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tuner._exceptions import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tuner.fleet import Schedule

Objective = Literal["throughput", "latency"]


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Choices of a plan; the defaults are safe without any knowledge of the engine.

    Raises:
        InputError: a value is outside its range; names field and remedy.
    """

    min_gain: float = 0.03
    """Speculation must beat no speculation by this ratio. With cell errors bounded by 2 % it keeps every
    choice within 1 % of no speculation or better: 1.03 * 0.98 / 1.02 = 0.99."""
    credibility: float = 0.8
    """Posterior probability that the gain reaches ``min_gain``. At a cell error of 2 % a measured gain
    of 5.5 % is needed (0.84 sd of 2.8 %). More forgoes more than it saves: 0.95 would need 7.8 %, while
    a gain wrongly believed costs 1 %."""
    tie: float = 0.01
    """Cells within this ratio of their best count as equal: the size of the noise of a careful sweep,
    and what a change of graph or drafter memory may cost."""
    allowed_draft_lens: frozenset[int] | None = None
    """Draft lengths that the engine can run, ``None`` for all of the table."""
    allow_unmeasured: bool = False
    """Let a draft length that never ran be chosen where its whole interval lies above the best that did.
    Off by default: an interval built on extrapolated acceptance is no measurement."""
    floor: int = 0
    """Smallest draft length; 1 where draft length 0 leaves the drafter's state behind."""
    max_batch: int | None = None
    """Last batch size of the schedule, ``None`` for the largest one known, with a finding."""
    max_ranges: int = 8
    """Most ranges of a schedule: each is a threshold to flap at and a set of graphs to hold."""
    rise_odds: float = 20.0
    """Evidence, as odds, that it takes to let the draft length rise with the batch size. On dense models
    it cannot; 20:1 is a difference of 2.4 sd in one cell, or of 1.7 sd in two."""
    dead_band: float = 0.01
    """A new schedule must beat the proposal that stands, else the active one, somewhere by this ratio:
    below, a change costs more than it brings."""
    active: Schedule | None = None
    """The schedule that engines run now; ``None`` where that is not known."""
    proposed: Schedule | None = None
    """The schedule that was proposed last, whether or not an engine runs it."""
    objective: Objective = "throughput"
    """How batch sizes are averaged where one draft length serves them all: ``throughput`` by engine time,
    ``latency`` by the time of the requests in it. At one batch size both agree."""
    slo_tpot: float | None = None
    """Seconds per output token and request that must not be exceeded where a draft length can help it."""
    max_tokens_in_flight: int | None = None
    """Largest ``batch * (draft_len + 1)``; off by default, because near-linear step times still pay
    beyond the crossover."""
    kv_capacity_tokens: float | None = None
    """Tokens that the KV cache holds; each sequence takes its context and ``draft_len + 1`` slots."""
    context_tokens: float | None = None
    """Context tokens of a sequence, for ``kv_capacity_tokens``."""
    batch_weights: Mapping[int, float] | None = None
    """Share of engine time at each batch size, ``None`` for equal shares of the batch sizes known."""
    without: frozenset[str] = field(default_factory=frozenset)
    """Post-processors that are switched off, by name."""

    def __post_init__(self) -> None:
        """Check every field."""
        for name, low, high in (
            ("min_gain", 0.0, 10.0),
            ("credibility", 0.5, 0.9999),
            ("tie", 0.0, 0.2),
            ("dead_band", 0.0, 1.0),
            ("rise_odds", 1.0, 1e12),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise InputError(f"{name} is {value:g}: choose it between {low:g} and {high:g}")
        self._check_whole_numbers()
        for name in ("slo_tpot", "kv_capacity_tokens", "context_tokens"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name} is {value:g}: choose a number above 0, or leave it out")
        if self.kv_capacity_tokens is not None and self.context_tokens is None:
            raise InputError("kv_capacity_tokens needs context_tokens, the context of one sequence")
        weights = self.batch_weights
        if weights is not None and not are_shares(weights.values()):
            raise InputError("batch_weights must hold at least one share above 0 and none below")

    def _check_whole_numbers(self) -> None:
        allowed = self.allowed_draft_lens
        if allowed is not None and (not allowed or min(allowed) < 0):
            raise InputError("allowed_draft_lens must hold at least one draft length, none below 0")
        for name, least in (("floor", 0), ("max_batch", 1), ("max_ranges", 1), ("max_tokens_in_flight", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} is {value}: choose a whole number from {least}")
        if allowed is not None and max(allowed) < self.floor:
            raise InputError(
                f"floor {self.floor} is above every allowed draft length: lower it, or allow a longer draft"
            )


def are_shares(values: Iterable[float]) -> bool:
    """Tell whether shares are finite, none below 0, and one above."""
    shares = list(values)
    return all(0 <= share < math.inf for share in shares) and sum(shares) > 0
