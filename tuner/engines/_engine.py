"""What every engine module provides, and the values it answers with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tuner.fleet import Capabilities, Finding, Schedule
    from tuner.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Rendered:
    """A schedule in the engine's own dialect, and what the engine will make of it."""

    engine: str
    engine_version: str
    config: Mapping[str, Any]
    dense: Schedule
    """The draft length that the engine really runs at each batch size."""
    notes: tuple[str, ...] = ()
    """Where the engine departs from what is written: gaps, tail, clamps; and its limits."""

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form of the contract."""
        return {
            "engine": self.engine,
            "engine_version": self.engine_version,
            "config": dict(self.config),
            "dense": {str(b): self.dense.draft_len_at(b) for b in range(1, self.dense.max_batch + 1)},
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class Setup:
    """What is known about how an engine was started; the defaults say nothing against it."""

    method: str = ""
    """Speculation method: draft_model, eagle3, mtp, ngram, suffix, ..."""
    data_parallel: int = 1
    runner: str = ""
    """Model runner or graph mode, in the engine's own word."""
    started_with_schedule: bool | None = None
    adaptive_verification: bool = False


@runtime_checkable
class Engine(Protocol):
    """One serving engine: its words, what its versions can do, its schedule dialect."""

    @property
    def name(self) -> str:
        """Name on the command line and in configuration."""

    @property
    def vocabulary(self) -> Vocabulary:
        """Names of the metrics it exposes."""

    def capabilities(self, version: str) -> Capabilities:
        """Say what this version can do with a schedule.

        Raises:
            UnsupportedError: the version is unknown, so nothing can be promised.
        """

    def limits(self, version: str, setup: Setup) -> tuple[Finding, ...]:
        """Say what this version, started this way, cannot do or does badly with a schedule."""

    def render(self, schedule: Schedule, *, max_batch: int, max_draft_len: int, version: str) -> Rendered:
        """Write a schedule in the engine's dialect, for every batch size up to ``max_batch``.

        Raises:
            ScheduleError: the schedule asks for more than ``max_draft_len``, or breaks an engine rule.
            UnsupportedError: this version has no schedules, or is unknown.
        """

    def parse(self, config: object, *, max_batch: int, max_draft_len: int | None, version: str) -> Rendered:
        """Read the engine's dialect and say what it would really run.

        Raises:
            ScheduleError: the engine would refuse this configuration.
            UnsupportedError: this version has no schedules, or is unknown.
        """
