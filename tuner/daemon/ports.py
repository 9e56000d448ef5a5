"""What the daemon needs of the parts that it wires, as far as tests put something else in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tuner.fleet import Finding, Schedule, Target
    from tuner.observe.exposition import TimedScrape
    from tuner.observe.outcomes import SourceError
    from tuner.observe.prometheus.streams import Series
    from tuner.observe.windows import WindowSet


class Live(Protocol):
    """Turns scrapes of the engines of one pool into windows, as they come."""

    @property
    def series_state(self) -> int:
        """Series that state is held for."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything that is noticed now, of all engines."""

    def add(self, target: Target, scrapes: Sequence[TimedScrape]) -> WindowSet:
        """Take scrapes of one engine, and return the windows that became final."""

    def flush(self, target: Target) -> WindowSet:
        """Return the windows of an engine that are still open."""

    def forget(self, before: float) -> int:
        """Drop what was not heard of since; return how many engines."""

    def set_schedule(self, target: Target, schedule: Schedule | None, since: float) -> None:
        """Say which table an engine runs from some moment on."""


class Found(Protocol):
    """What discovery found."""

    @property
    def targets(self) -> tuple[Target, ...]:
        """The engines of a pool."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong with sources or targets."""

    @property
    def sources_up(self) -> Mapping[str, bool]:
        """Source -> whether it answered."""


class Directory(Protocol):
    """Finds the engines of one pool."""

    def refresh(self, now: float) -> Found:
        """Ask every source once."""


class Answer(Protocol):
    """What one engine answered."""

    @property
    def target(self) -> Target:
        """Who was asked."""

    @property
    def scrape(self) -> TimedScrape:
        """The samples, or what was wrong with them."""

    @property
    def seconds(self) -> float:
        """How long it took."""

    @property
    def error(self) -> str:
        """What was wrong; empty if nothing."""


class Answers(Protocol):
    """What came of one round."""

    @property
    def scraped(self) -> Sequence[Answer]:
        """One for each engine that was asked."""

    @property
    def backing_off(self) -> Sequence[Target]:
        """Engines that were not asked, since they failed several times."""

    @property
    def seconds(self) -> float:
        """Wall seconds of the round."""


class Scraper(Protocol):
    """Reads metrics pages."""

    def round(self, targets: Sequence[Target], wanted: Callable[[Target], frozenset[str]]) -> Answers:
        """Ask every engine once, within bounds."""

    def close(self) -> None:
        """Drop connections and whatever is under way."""


class Answered(Protocol):
    """What a metrics server said of the engines it scrapes."""

    @property
    def scraped(self) -> Mapping[Target, tuple[TimedScrape, ...]]:
        """Scrapes by engine, oldest first."""

    @property
    def error(self) -> SourceError | None:
        """Why there is no answer."""

    @property
    def findings(self) -> Sequence[Finding]:
        """What is wrong with what it holds."""


class Server(Protocol):
    """A metrics server."""

    @property
    def name(self) -> str:
        """Name of the source in the settings."""

    @property
    def up(self) -> bool:
        """Whether it answered last."""

    def targets(self, selector: str, now: float, /) -> tuple[dict[str, str], ...] | SourceError:
        """Return the label sets of the engines that it scrapes; raises nothing."""

    def series(
        self, names: frozenset[str], selector: str, since: float, until: float
    ) -> tuple[Series, ...] | SourceError:
        """Return raw samples of any series; raises nothing."""

    def scrapes(
        self, targets: Sequence[Target], selector: str, wanted: frozenset[str], since: float, until: float
    ) -> Answered:
        """Return the samples after ``since`` up to ``until``; raises nothing."""


class Running(Protocol):
    """What one engine says it runs."""

    @property
    def schedule(self) -> Schedule | None:
        """The table, ``None`` where it runs without one."""

    @property
    def source(self) -> str:
        """``startup``, ``pushed`` or ``reverted``."""


class Reader(Protocol):
    """Asks engines which schedule they run."""

    def read(self, target: Target) -> Running | SourceError | None:
        """Ask one engine; ``None`` where it has no admin API. Raises nothing."""
