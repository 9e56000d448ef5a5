"""A simulated fleet in this process, and a whole daemon in virtual time that watches it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tests.daemon.settings import config as settings
from tuner._exceptions import ExpositionError, StoreError
from tuner.daemon.clock import SteadyClock, VirtualClock
from tuner.daemon.drive import Runner, VirtualDriver
from tuner.daemon.leader import Leader
from tuner.daemon.parts import RealParts
from tuner.daemon.service import Service
from tuner.fleet import Schedule, Target
from tuner.observe.discovery import Roster
from tuner.observe.exposition import TimedScrape, parse
from tuner.observe.scraping import Round, Scraped
from tuner.simulate import Fleet, FleetSpec, preset
from tuner.store import Store, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from tests.daemon.conftest import Events
    from tuner.config import Config, Pool
    from tuner.daemon.ports import Live, Server
    from tuner.fleet import Fingerprint, Window
    from tuner.vocabulary import Vocabulary

START = 1_800_000_000.0
ENGINES = 2


def small_fleet(pool: str = "dense-70b", engines: int = ENGINES) -> Fleet:
    """Return one pool of the demonstration, small."""
    found = next(each for each in preset("demo").pools if each.name == pool)
    return Fleet(FleetSpec(pools=(replace(found, engines=engines),)), seed=1, start=START)


def pool_settings(name: str = "dense-70b", **more: Any) -> dict[str, Any]:
    """Return the settings of a simulated pool."""
    return {
        "name": name,
        "engine": "vllm",
        "engines": {"static": [f"http://{name}.example:1"]},
        "startup_schedule": [[1, 14, 4], [15, 30, 2], [31, 96, 1]],
        "max_batch": 96,
        **more,
    }


class FleetClock(VirtualClock):
    """Time in which a fleet lives."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(now=START)
        self.fleet = fleet

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        self.fleet.advance(seconds)


class FleetScraper:
    """Reads the fleet's pages without a network."""

    def __init__(self, fleet: Fleet, clock: SteadyClock) -> None:
        self.fleet = fleet
        self.clock = clock
        self.down: set[str] = set()
        """Engines that do not answer."""
        self.during: Callable[[], None] = lambda: None
        """Called in the middle of each round."""
        self.rounds = 0
        self.closed = False

    def round(self, targets: Sequence[Target], wanted: Callable[[Target], frozenset[str]]) -> Round:
        self.rounds += 1
        self.during()
        return Round(tuple(self._one(target, wanted(target)) for target in targets), (), 0.01)

    def _one(self, target: Target, wanted: frozenset[str]) -> Scraped:
        pool, _, number = target.engine.rpartition("-")
        if target.engine in self.down:
            error = ExpositionError(f"{target.url} refused the connection", reason="refused")
            return Scraped(target, TimedScrape(self.clock.now(), error), 0.0, str(error))
        body = self.fleet.body(pool, int(number))
        return Scraped(target, TimedScrape(self.clock.now(), parse(body, wanted=wanted)), 0.001, "")

    def close(self) -> None:
        self.closed = True


@dataclass(frozen=True)
class Told:
    """What an engine says it runs."""

    schedule: Schedule | None
    source: str


@dataclass
class FleetReader:
    """Asks plugins of the fleet without a network."""

    fleet: Fleet

    def read(self, target: Target) -> Told | None:
        pool, _, number = target.engine.rpartition("-")
        if pool not in self.fleet.pools:
            return None
        code, said = self.fleet.get_schedule(pool, int(number))
        assert code == 200, said
        return Told(Schedule.from_ranges(said["schedule"]), said["source"])


@dataclass
class FleetDirectory:
    """Knows the engines of a pool."""

    pool: str
    engines: int
    asked: int = 0

    def refresh(self, now: float) -> Roster:
        del now
        self.asked += 1
        names = [f"{self.pool}-{number}" for number in range(self.engines)]
        targets = tuple(Target(self.pool, name, f"http://{name}/metrics", f"http://{name}") for name in names)
        return Roster(targets, (), {"static": True})


class FleetParts(RealParts):
    """The real parts, except for those that need a network."""

    def __init__(self, fleet: Fleet, clock: SteadyClock) -> None:
        super().__init__(clock)
        self.fleet = fleet
        self.fleet_scraper = FleetScraper(fleet, clock)
        self.made: list[str] = []

    def scraper(self, config: Config) -> FleetScraper:  # type: ignore[override]  # a stand-in
        self.made.append(f"scraper {config.scrape.interval:g}")
        return self.fleet_scraper

    def directory(  # type: ignore[override]  # a stand-in
        self, config: Config, pool: Pool, servers: Mapping[str, Server]
    ) -> FleetDirectory:
        del config, servers
        self.made.append(f"directory {pool.name}")
        known = self.fleet.pools.get(pool.name)
        return FleetDirectory(pool.name, 0 if known is None else known.engines)

    def live(self, config: Config, pool: Pool, vocabulary: Vocabulary, fingerprint: Fingerprint) -> Live:
        self.made.append(f"live {pool.name}")
        return super().live(config, pool, vocabulary, fingerprint)

    def reader(self, pool: Pool) -> FleetReader | None:
        return None if pool.admin is None else FleetReader(self.fleet)


class FlakyStore(Store):
    """The real database, which refuses while told to."""

    broken: str = ""

    def add_windows(self, new: Sequence[Window], *, fence: int) -> int:
        self._check()
        return super().add_windows(new, fence=fence)

    def save_decision(self, *args: Any, **kwargs: Any) -> tuple[int, ...]:
        self._check()
        return super().save_decision(*args, **kwargs)

    def _check(self) -> None:
        if self.broken:
            raise StoreError(self.broken, retryable=True)


@dataclass
class World:
    """A daemon, its fleet, its clock and its database."""

    service: Service
    driver: VirtualDriver
    wall: FleetClock
    clock: SteadyClock
    parts: FleetParts
    leader: Leader
    log: Events
    stores: list[FlakyStore] = field(default_factory=list)

    @property
    def store(self) -> FlakyStore:
        return self.stores[-1]

    def run_for(self, seconds: float) -> None:
        self.driver.run_for(seconds)

    def codes(self) -> set[str]:
        """Return the codes of what is active."""
        return {finding.code for finding in self.service.view().findings}

    def restarted(self, config: Config, file: Path, log: Events) -> World:
        """Return another daemon on the same fleet, clock and database."""
        return make_world(config, file, log, fleet=self.parts.fleet, wall=self.wall)


def make_world(
    config: Config,
    file: Path,
    log: Events,
    *,
    fleet: Fleet | None = None,
    wall: FleetClock | None = None,
    opened: Callable[[], None] = lambda: None,
) -> World:
    """Return a started daemon. ``opened`` is called before the database is opened and may raise."""
    fleet = small_fleet() if fleet is None else fleet
    wall = FleetClock(fleet) if wall is None else wall
    clock = SteadyClock(wall)
    parts = FleetParts(fleet, clock)
    stores: list[FlakyStore] = []

    def open_it() -> Store:
        opened()
        store = FlakyStore(open_store(f"sqlite:///{file}")._database)
        store.migrate()
        stores.append(store)
        return store

    leader = Leader(open_it, "test", 20.0, clock.monotonic, log)
    service = Service(config, parts, clock, leader, log, threaded=False)
    runner = Runner(service.functions, clock, service.book, log, service.publish)

    def tick() -> None:
        step = service.tick()
        if step:
            driver.shift(step, clock.now())

    driver = VirtualDriver(runner.run, clock, wall, tick)
    service.hasten = driver.hasten
    driver.start(service.cadence, clock.now())
    return World(service, driver, wall, clock, parts, leader, log, stores)


def world_settings(**sections: Any) -> Config:
    """Return settings for the small fleet: windows of 5 s, so that minutes of its life are enough."""
    quick = {"scrape": {"interval": "5s", "timeout": "2s"}, "cycle": {"interval": "20s"}}
    return settings(**{"pools": [pool_settings(mode="advise")], **quick, **sections})
