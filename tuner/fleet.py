"""The nouns of the fleet: frozen values without I/O that every other package speaks in.

A count that an engine does not expose is ``None``. An *estimate* that cannot be given is
:class:`NotEnoughData` with its reason, never ``None``, ``0`` or NaN.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from tuner._exceptions import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

POOLED_ROUTE = "*"
"""Route label of evidence that is not split by route."""

SHORT_DRAFT_TOKENS = 0.03
"""Draft tokens that the drafts of a window may miss on average, and still count as wholly of their length.
Engines subtract draft tokens that a grammar made invalid (vLLM 0.32.0
``v1/core/sched/scheduler.py:2110-2149``). Of e missing tokens a draft, a share e/(K - i) of the drafts at
most was cut before position i, so the hazard there reads low by e/(K - i) of itself at most:
3 % at the last position of K, where it weighs least."""


@dataclass(frozen=True, slots=True)
class NotEnoughData:
    """An estimate that cannot be given, and why."""

    reason: str
    have: float | None = None
    need: float | None = None

    def __str__(self) -> str:
        """Return the reason followed by what there is and what it would take."""
        if self.have is None or self.need is None:
            return self.reason
        return f"{self.reason} (have {self.have:g}, need {self.need:g})"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % interval, ``low <= value <= high``."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a cost fit is valid for; costs are never shared across two of them.

    An empty string means that the engine did not say.
    """

    engine: str = ""
    engine_version: str = ""
    model: str = ""
    drafter: str = ""
    method: str = ""
    hardware: str = ""
    tensor_parallel: int = 0
    dtype: str = ""
    kv_cache_dtype: str = ""
    graph_mode: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that are known, for JSON."""
        return {name: value for name in self.__slots__ if (value := getattr(self, name))}


class ScheduleRange(NamedTuple):
    """Batch sizes ``first..last``, both inclusive, run with ``draft_len``."""

    first: int
    last: int
    draft_len: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """Batch size -> draft length over ``1..max_batch``, without gaps."""

    ranges: tuple[ScheduleRange, ...]

    def __post_init__(self) -> None:
        """Refuse a table with a gap, an overlap, a late start or a negative draft length."""
        expected = 1
        if not self.ranges:
            raise ScheduleError("schedule is empty: give at least one range [first, last, draft_len]")
        for first, last, draft_len in self.ranges:
            if first != expected:
                raise ScheduleError(
                    f"range [{first}, {last}, {draft_len}] starts at {first}, expected {expected}: "
                    "ranges start at 1 and follow each other without gap or overlap"
                )
            if last < first:
                raise ScheduleError(f"range [{first}, {last}, {draft_len}] ends before it starts")
            if draft_len < 0:
                raise ScheduleError(f"range [{first}, {last}, {draft_len}] has a negative draft length")
            expected = last + 1

    @classmethod
    def from_ranges(cls, ranges: Iterable[Sequence[int]]) -> Self:
        """Build from ``[[first, last, draft_len], ...]`` in any order.

        Raises:
            ScheduleError: a row is not three whole numbers, or the table breaks a rule.
        """
        rows: list[ScheduleRange] = []
        for row in ranges:
            if isinstance(row, str | bytes) or len(row) != len(ScheduleRange._fields):
                raise ScheduleError(f"range {row!r} is not [first, last, draft_len]")
            if any(isinstance(cell, bool) or not isinstance(cell, int) for cell in row):
                raise ScheduleError(f"range {list(row)!r} must hold whole numbers")
            rows.append(ScheduleRange(*row))
        return cls(tuple(sorted(rows)))

    @classmethod
    def from_dense(cls, draft_lens: Sequence[int]) -> Self:
        """Build from one draft length per batch size, ``draft_lens[0]`` being batch 1."""
        rows: list[ScheduleRange] = []
        for batch, draft_len in enumerate(draft_lens, start=1):
            if rows and rows[-1].draft_len == draft_len:
                rows[-1] = ScheduleRange(rows[-1].first, batch, draft_len)
            else:
                rows.append(ScheduleRange(batch, batch, draft_len))
        return cls(tuple(rows))

    @property
    def max_batch(self) -> int:
        """Largest batch size that the table covers."""
        return self.ranges[-1].last

    @property
    def draft_lens(self) -> frozenset[int]:
        """Every draft length that the table can choose."""
        return frozenset(row.draft_len for row in self.ranges)

    @property
    def version(self) -> str:
        """Content hash, equal for equal tables: the first 12 hex digits of a SHA-256."""
        text = json.dumps(self.as_lists(), separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def draft_len_at(self, batch: int) -> int:
        """Return the draft length at ``batch``.

        Raises:
            ScheduleError: ``batch`` lies outside the table.
        """
        for first, last, draft_len in self.ranges:
            if first <= batch <= last:
                return draft_len
        raise ScheduleError(f"batch {batch} lies outside the schedule 1..{self.max_batch}")

    def as_lists(self) -> list[list[int]]:
        """Return ``[[first, last, draft_len], ...]``, the form used in every JSON contract."""
        return [list(row) for row in self.ranges]


class WindowState(StrEnum):
    """What a window is worth; only ``GOOD`` windows are fitted."""

    GOOD = "good"
    IDLE = "idle"
    TRANSITION = "transition"
    PARTIAL = "partial"
    SUSPECT = "suspect"


@dataclass(frozen=True, slots=True)
class Counts:
    """What one engine counted in one window; ``None`` where the engine does not tell.

    A *request step* is one request's share of one verify step, so a step over a batch of B
    requests is B request steps.
    """

    steps: float | None = None
    """Engine steps."""
    request_steps: float | None = None
    """Request steps that produced output after the first token."""
    request_step_seconds: float | None = None
    """Sum over request steps of the seconds since that request's previous output."""
    drafts: float | None = None
    """Request steps that verified at least one draft token."""
    draft_tokens: float | None = None
    accepted: float | None = None
    """Accepted draft tokens, the bonus token excluded."""
    accepted_by_position: tuple[float, ...] = ()
    """``[i]``: drafts that accepted more than i tokens, so position i itself, unconditionally."""
    exposed_by_position: tuple[float, ...] = ()
    """``[i]``: drafts that reached position i *and* proposed it; empty where the engine does not tell."""
    joint: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """``[d, a]``: drafts that proposed d tokens and accepted a; empty where the engine does not tell."""
    emitted: float | None = None
    """Tokens given to users, first tokens included, tokens cut off after a stop excluded."""
    first_tokens: float | None = None
    """Requests that received their first token."""
    prompt_tokens: float | None = None
    """Prompt tokens computed."""
    finished: float | None = None
    """Requests that ended."""
    request_seconds: float | None = None
    """Sum of the end-to-end seconds of the requests that ended."""
    preemptions: float | None = None


@dataclass(frozen=True, slots=True)
class Gauges:
    """What held at the ends of a window: the mean of the two scrapes, ratios in 0..1."""

    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    kv_tokens: float | None = None
    """Context tokens held in the KV cache: usage times capacity."""
    gpu_utilisation: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """What one engine did between two scrapes: the evidence."""

    pool: str
    engine: str
    start: float
    """Unix seconds of the first scrape."""
    end: float
    state: WindowState
    reason: str
    """Why the state is not good; empty for good windows."""
    counts: Counts
    gauges: Gauges = Gauges()
    fingerprint: Fingerprint = Fingerprint()
    route: str = POOLED_ROUTE
    draft_lens: frozenset[int] | None = None
    """Draft lengths above 0 that steps of this window used, ``None`` where that is not known."""
    restarts: int = 0
    """Restarts of the engine seen up to the end of this window."""
    weight: float = 1.0
    """Windows that this one stands for, itself included, where others were left out of a bounded memory."""

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return self.end - self.start

    @property
    def batch(self) -> float | None:
        """Mean number of decoding requests per engine step, as measured."""
        return _ratio(self.counts.request_steps, self.counts.steps)

    @property
    def draft_len(self) -> float | None:
        """Mean draft tokens per request step: K where one K ran throughout, 0 without drafts."""
        return _ratio(self.counts.draft_tokens, self.counts.request_steps)

    @property
    def step_seconds(self) -> float | None:
        """Wall seconds per engine step; a step time only where the engine was never idle."""
        return _ratio(self.seconds, self.counts.steps)

    @property
    def tokens_in_flight(self) -> float | None:
        """Mean tokens per engine step: request steps, their draft tokens and prompt tokens."""
        counts = self.counts
        if counts.request_steps is None or counts.draft_tokens is None or counts.prompt_tokens is None:
            return None
        return _ratio(counts.request_steps + counts.draft_tokens + counts.prompt_tokens, counts.steps)

    @property
    def emitted_per_step(self) -> float | None:
        """Mean tokens that reach the user per request step, first tokens excluded."""
        counts = self.counts
        if counts.emitted is None or counts.first_tokens is None:
            return None
        return _ratio(counts.emitted - counts.first_tokens, counts.request_steps)

    @property
    def tokens_per_second(self) -> float | None:
        """Emitted tokens per wall second, all requests of the engine together."""
        return _ratio(self.counts.emitted, self.seconds)


@dataclass(frozen=True, slots=True)
class Target:
    """One engine as discovery knows it; equal targets are the same engine at the same address."""

    pool: str
    engine: str
    """Name that its windows carry. Kept through a change of address where labels identify it."""
    url: str
    """Address of its metrics page, without credentials."""
    admin_url: str = ""
    """Address of its admin API; empty where none is configured."""
    origin: str = "static"
    """What named it: ``static``, ``file_sd``, ``http_sd`` or ``prometheus:<source>``."""
    labels: tuple[tuple[str, str], ...] = ()
    """Labels of discovery, sorted; those that start with ``__`` are left out."""


SweepArm = Literal["static", "schedule", "none"]


class SweepRow(NamedTuple):
    """One run of a benchmark sweep: a batch size, a draft length, and the speed it reached.

    A plain tuple because a sweep may hold a million of them.
    """

    batch: int
    draft_len: int | None
    """``None`` on a ``schedule`` row that does not tell which draft length ran."""
    tokens_per_second: float
    """Emitted tokens per second, all requests of the batch together."""
    arm: SweepArm = "static"
    """``static``: one draft length throughout; ``schedule``: a batch -> draft length table was active;
    ``none``: an engine without a drafter."""
    context: float | None = None
    """Context tokens per request."""
    acceptance_length: float | None = None
    """Tokens per verify step and request, bonus token included."""
    tpot_ms: float | None = None
    """Milliseconds per output token and request."""


Severity = Literal["info", "warning", "critical"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something noticed: a stable code, who it concerns, the numbers, and what to do."""

    code: str
    severity: Severity
    message: str
    subject: Mapping[str, str] = field(default_factory=dict)
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form of the contract."""
        return {
            "code": self.code,
            "severity": self.severity,
            "subject": dict(self.subject),
            "message": self.message,
            "evidence": dict(self.evidence),
        }


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine at one version can do with a schedule."""

    engine: str
    engine_version: str
    batch_schedule: bool
    """A batch -> draft length table can be given at start-up."""
    live_schedule: bool
    """The table can be changed without a restart, with what the tuner ships."""
    zero_harms_drafter: bool
    """Draft length 0 leaves the drafter's state behind, so the floor is 1."""
    notes: tuple[str, ...] = ()


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    """Divide, or ``None`` where either side is untold or nothing was counted."""
    if numerator is None or not denominator:
        return None
    return numerator / denominator
