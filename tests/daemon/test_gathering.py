"""A round asks engines and metrics servers side by side, and one that is slow or down hinders nobody."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.daemon.settings import config as settings
from tuner._exceptions import InputError
from tuner.daemon.clock import SteadyClock, SystemClock
from tuner.daemon.gathering import Gatherer, servers_up
from tuner.daemon.notices import Notices
from tuner.daemon.watching import Watched
from tuner.engines import get_engine
from tuner.fleet import Finding, Schedule, Target
from tuner.observe.discovery import Roster
from tuner.observe.exposition import Scrape, TimedScrape
from tuner.observe.outcomes import SourceError
from tuner.observe.prometheus import SourceAnswer
from tuner.observe.scraping import Round, Scraped
from tuner.observe.windows import WindowSet
from tuner.pool_settings import settings_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tuner.config import Pool

NOW = 1_800_000_000.0
MAIN = {"prometheus": [{"name": "main", "url": "http://127.0.0.1:1"}]}
HELD = Target("served", "b", "http://b/metrics", origin="prometheus:main")


class Live:
    """Notes what it is given."""

    series_state = 0
    findings: tuple[Finding, ...] = ()

    def __init__(self) -> None:
        self.taken: list[tuple[str, int]] = []
        self.schedules: list[tuple[str, Schedule | None, float]] = []
        self.flushed: list[str] = []

    def add(self, target: Target, scrapes: Sequence[TimedScrape]) -> WindowSet:
        self.taken.append((target.engine, len(scrapes)))
        return WindowSet((), ())

    def flush(self, target: Target) -> WindowSet:
        self.flushed.append(target.engine)
        return WindowSet((), ())

    def forget(self, before: float) -> int:
        del before
        return 0

    def set_schedule(self, target: Target, schedule: Schedule | None, since: float) -> None:
        self.schedules.append((target.engine, schedule, since))


class Direct:
    """Answers for every engine."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def round(self, targets: Sequence[Target], wanted: Callable[[Target], frozenset[str]]) -> Round:
        self.asked.append([target.engine for target in targets])
        assert all(wanted(target) for target in targets)
        good = [Scraped(target, TimedScrape(NOW, Scrape()), 0.1, "") for target in targets]
        return Round(tuple(good), (), 0.1)

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class Server:
    """A metrics server that answers as it is told."""

    name: str = "main"
    up: bool = True
    error: SourceError | None = None
    hold: threading.Event = field(default_factory=threading.Event)
    asked: int = 0

    def __post_init__(self) -> None:
        """Answer at once."""
        self.hold.set()

    def targets(self, selector: str, now: float, /) -> tuple[dict[str, str], ...] | SourceError:
        raise NotImplementedError

    def series(self, *_: Any) -> tuple[Any, ...] | SourceError:
        return self.error or ()

    def scrapes(self, targets: Sequence[Target], *_: Any) -> SourceAnswer:
        self.asked += 1
        self.hold.wait(30.0)
        if self.error is not None:
            return SourceAnswer(error=self.error)
        return SourceAnswer({target: (TimedScrape(NOW, Scrape()),) * 2 for target in targets})


def _pools(**served: Any) -> tuple[Pool, ...]:
    """Return one pool that is scraped and one that a server scrapes."""
    way = {"source": "main", "selector": 'job="x"', **served}
    pools = [
        {"name": "direct", "engine": "vllm", "engines": {"static": ["http://a"]}},
        {"name": "served", "engine": "vllm", "engines": {"prometheus": way}},
    ]
    return settings(sources=MAIN, pools=pools).pools


def _watched(pool: Pool, live: Live, *targets: Target) -> Watched:
    directory = SimpleNamespace(refresh=lambda _: Roster(targets))
    vocabulary = get_engine("vllm").vocabulary
    watched = Watched(pool, settings_of(pool), vocabulary, directory, lambda: live, 15.0)
    watched.refresh(NOW)
    return watched


class World:
    """Two pools, one scraper, one server."""

    def __init__(self, *, interval: float = 15.0, parallel: bool = False, **served: Any) -> None:
        self.scraper, self.server = Direct(), Server()
        self.live = {"direct": Live(), "served": Live()}
        direct, by_server = _pools(**served)
        self.watched = {
            "direct": _watched(direct, self.live["direct"], Target("direct", "a", "http://a/metrics")),
            "served": _watched(by_server, self.live["served"], HELD),
        }
        self.notices = Notices(SteadyClock(SystemClock()).monotonic)
        self.gatherer = Gatherer(
            self.scraper, {"main": self.server}, self.notices, interval=interval, parallel=parallel
        )

    def round(self) -> None:
        self.gatherer.round(self.watched, NOW)

    def codes(self) -> list[str]:
        return [finding.code for finding in self.notices.active()]


@pytest.mark.parametrize("parallel", [False, True])
def test_each_pool_is_read_where_the_settings_say(*, parallel: bool) -> None:
    """One pool is scraped, the other read from the server, several scrapes at once."""
    world = World(parallel=parallel)
    world.round()
    assert world.scraper.asked == [["a"]]
    assert world.live["direct"].taken == [("a", 1)]
    assert world.live["served"].taken == [("b", 2)]
    assert world.codes() == []
    assert servers_up({"main": world.server}) == {"main": True}


def test_read_direct_only_finds_engines_by_the_server() -> None:
    """With ``read: direct`` engines that a server names are scraped themselves."""
    world = World(read="direct")
    world.round()
    assert world.scraper.asked == [["a", "b"]]
    assert world.server.asked == 0


def test_a_server_that_is_down_is_told_of_until_it_is_back() -> None:
    """An error is a finding, costs the other pool nothing, and goes with the first answer."""
    world = World()
    world.server.error = SourceError("answers 503", retryable=True)
    world.round()
    (finding,) = world.notices.active()
    assert (finding.code, finding.subject) == ("source_down", {"source": "main"})
    assert "answers 503" in finding.message
    assert world.live["direct"].taken == [("a", 1)]
    assert world.live["served"].taken == []
    world.server.error = None
    world.round()
    assert world.codes() == []


def test_a_server_that_hangs_holds_up_nobody() -> None:
    """A round ends without it, the next does not ask again while the answer is awaited, then it is read."""
    world = World(interval=0.5, parallel=True)
    world.server.hold.clear()
    world.round()
    world.round()
    assert world.server.asked == 1
    assert world.live["direct"].taken == [("a", 1)] * 2
    assert world.codes() == ["source_down"]
    world.server.hold.set()
    pending = world.gatherer._errands["served"]
    assert pending.done.wait(30.0)
    world.round()
    assert world.live["served"].taken == [("b", 2)] * 2
    assert world.codes() == []


def test_a_fallback_scrapes_while_the_server_is_down() -> None:
    """With ``fallback`` engines are scraped directly until the server is up; each change begins anew."""
    world = World(fallback=True)
    world.round()
    world.server.up = False
    world.round()
    assert world.scraper.asked[-1] == ["a", "b"]
    assert world.live["served"].taken == [("b", 2), ("b", 1)]
    world.server.up = True
    world.round()
    assert world.scraper.asked[-1] == ["a"]
    assert world.live["served"].taken[-1] == ("b", 2)


def test_the_table_that_an_engine_runs_is_told() -> None:
    """``startup_schedule`` holds from the start; what is read back replaces it from now on."""
    live = Live()
    start = [[1, 8, 4]]
    pools = settings(
        pools=[
            {"name": "a", "engine": "vllm", "engines": {"static": ["http://a"]}, "startup_schedule": start}
        ]
    ).pools
    target = Target("a", "e", "http://a/metrics")
    watched = _watched(pools[0], live, target)
    for _ in range(3):
        watched.take(target, [TimedScrape(NOW, Scrape())])
    assert live.schedules == [("e", Schedule.from_ranges(start), float("-inf"))]
    other = Schedule.from_ranges([[1, 8, 2]])
    for _ in range(2):
        watched.runs(target, other, NOW)
    assert live.schedules[1:] == [("e", other, NOW)] * 2, "told each time: a restart drops what was told"
    assert watched.read == {"e": other}


def test_engines_that_do_not_answer_are_one_finding() -> None:
    """Ten engines down are told in one sentence with a few names; critical if none is left."""
    targets = tuple(Target("direct", f"e{n}", f"http://e{n}/metrics") for n in range(10))
    watched = _watched(_pools()[0], Live(), *targets)
    for target in targets:
        watched.answered(target, NOW, 0.1, "refuses connections")
    finding = watched.unreachable()
    assert finding is not None
    assert (finding.severity, finding.evidence) == ("critical", {"down": 10, "engines": 10})
    assert "and 7 more" in finding.message
    watched.answered(targets[0], NOW, 0.1, "")
    finding = watched.unreachable()
    assert finding is not None
    assert finding.severity == "warning"


def test_findings_of_one_kind_are_bounded() -> None:
    """A fault of a whole fleet is told for twenty engines, not for a thousand."""
    live = Live()
    live.findings = tuple(
        Finding(code, "info", "x", {"engine": f"e{n:03d}"}) for n in range(100) for code in ("one", "two")
    )
    codes = [finding.code for finding in _watched(_pools()[0], live).findings]
    assert codes == ["one"] * 20 + ["two"] * 20


def test_an_error_of_a_scrape_is_its_text() -> None:
    """Failed scrapes go to the windows too, which a later one spans."""
    live = Live()
    target = Target("direct", "a", "http://a/metrics")
    watched = _watched(_pools()[0], live, target)
    watched.take(target, [TimedScrape(NOW, InputError("is HTML"))])
    assert live.taken == [("a", 1)]
