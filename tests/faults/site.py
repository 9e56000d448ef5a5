"""A whole daemon in virtual time with everything around it real: engines, database, web server."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import httpx2

from tests.daemon.conftest import Events
from tuner.config import load_config
from tuner.daemon.accelerated import Accelerated
from tuner.daemon.notify import Notifier
from tuner.daemon.opening import OpenedHistory
from tuner.daemon.parts import RealParts
from tuner.daemon.reload import Reloader
from tuner.serve.app import build_app
from tuner.serve.server import WebServer
from tuner.simulate import Fleet, FleetSpec, preset

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.faults.fleet_server import ServedFleet
    from tuner.daemon.clock import SteadyClock, VirtualClock
    from tuner.serve.snapshot import Snapshot

POOL = "dense-70b"
ENGINES = 2
START = 1_800_000_000.0
SLOWER = 5.0
"""Steps take five times as long as those of the demonstration, so that a minute is simulated in a second."""
STARTUP = [[1, 10, 1], [11, 22, 2], [23, 64, 4]]
LEARN = 300.0
"""Seconds in which the load has visited every range of the table that engines are started with."""
SCRAPE, CYCLE = 5.0, 30.0


def slow_fleet(engines: int = ENGINES, start: float = START) -> Fleet:
    """Return a pool of the demonstration on slow machines, its day four minutes long."""
    found = next(each for each in preset("demo").pools if each.name == POOL)
    cost = replace(
        found.cost,
        **{
            name: getattr(found.cost, name) * SLOWER
            for name in ("overhead", "floor", "per_token", "draft_base", "draft_slope")
        },
    )
    pool = replace(
        found,
        engines=engines,
        cost=cost,
        load=replace(found.load, period=240.0),
        routes=(replace(found.routes[0], output=120.0),),
    )
    return Fleet(FleetSpec(pools=(pool,)), seed=1, start=start)


def settings(folder: Path, targets: str, **sections: Any) -> dict[str, Any]:
    """Return the settings of the daemon; ``sections`` replace whole ones, ``pool`` adds to the pool."""
    pool = {
        "name": POOL,
        "engine": "vllm",
        "mode": "advise",
        "engines": {"http_sd": targets, "identity": ["pod"]},
        "startup_schedule": STARTUP,
        "max_batch": 96,
        **sections.pop("pool", {}),
    }
    return {
        "store": {"url": f"sqlite:///{folder}/tuner.db"},
        "scrape": {"interval": f"{SCRAPE:g}s", "timeout": "1s"},
        "cycle": {"interval": f"{CYCLE:g}s"},
        "discovery": {"interval": "10s"},
        "web": {"listen": "127.0.0.1:0"},
        "pools": [pool],
        **sections,
    }


@dataclass(frozen=True)
class Learnt:
    """A fleet that was watched long enough, and the database that remembers it."""

    fleet: Fleet
    database: Path

    def copied(self, folder: Path) -> Fleet:
        """Put a copy of the database into a folder, and return a fleet of its own."""
        shutil.copy(self.database, folder / "tuner.db")
        return copy.deepcopy(self.fleet)


class Site:
    """The daemon, its engines, and what an operator sees of it over HTTP."""

    def __init__(self, served: ServedFleet, folder: Path, document: dict[str, Any]) -> None:
        """Start the daemon at the fleet's time."""
        self.served = served
        self.file = folder / "tuner.yaml"
        self.document = document
        self.log = Events()
        self.started = served.fleet.now
        self.passing: Callable[[], None] = lambda: None
        """Called after time passed in the world."""
        self.write_settings(document)
        config = load_config(self.file)
        self._parts: list[RealParts] = []
        self.daemon = Accelerated(
            config, self._made_of, self.log, now=served.fleet.now, advance=self._advance
        )
        service, clock = self.daemon.service, self.daemon.clock
        notifier = Notifier({}, clock.monotonic, 1)
        self.reloader = Reloader(self.file, service, self.daemon.driver, clock, notifier, self.log)
        app = build_app(
            service.view, auth=None, token_file=None, reload=None, history=OpenedHistory(self.daemon.leader)
        )
        self.web = WebServer(app, "127.0.0.1:0", None)
        self.web.start()
        self._client = httpx2.Client(base_url=self.web.url, timeout=30.0, trust_env=False)

    def __enter__(self) -> Self:
        """Run."""
        return self

    def __exit__(self, *_: object) -> None:
        """End in order."""
        self._client.close()
        self.web.stop()
        self.daemon.close()
        for parts in self._parts:
            if parts._client is not None:
                parts._client.close()

    def _made_of(self, clock: SteadyClock) -> RealParts:
        self._parts.append(RealParts(clock))
        return self._parts[-1]

    def write_settings(self, document: dict[str, Any]) -> None:
        """Write the settings file; JSON is YAML."""
        self.file.write_text(json.dumps(document))

    def _advance(self, seconds: float) -> None:
        self.served.advance(seconds)
        self.passing()

    @property
    def wall(self) -> VirtualClock:
        """The host's clock, to be stepped."""
        return self.daemon.driver._virtual

    @property
    def view(self) -> Snapshot:
        """What the daemon knows."""
        return self.daemon.service.view()

    def run_for(self, seconds: float) -> None:
        """Let time pass."""
        self.daemon.run_for(seconds)

    def run_until(self, done: Callable[[], bool], most: float) -> None:
        """Let time pass until something is so; fail after ``most`` seconds."""
        until = self.daemon.clock.monotonic() + most
        while not done():
            assert self.daemon.clock.monotonic() < until, (sorted(self.codes()), self.log.all[-10:])
            self.run_for(SCRAPE)

    def get(self, path: str) -> httpx2.Response:
        """Ask the daemon's web server."""
        return self._client.get(path)

    def metric(self, sample: str) -> float | None:
        """Return one sample of ``/metrics`` by name and labels as they are written."""
        reply = self.get("/metrics")
        assert reply.status_code == 200
        for line in reply.text.splitlines():
            name, _, value = line.rpartition(" ")
            if name == sample:
                return float(value)
        return None

    def codes(self) -> set[str]:
        """Return the codes of the findings that ``/metrics`` shows as active."""
        lines = self.get("/metrics").text.splitlines()
        active = [line for line in lines if line.startswith("tuner_finding_active{")]
        assert len(active) <= len(self.view.findings)
        return {line.partition('code="')[2].partition('"')[0] for line in active}

    def severities(self, code: str) -> set[str]:
        """Return how grave the active findings of a code are."""
        return {finding.severity for finding in self.view.findings if finding.code == code}

    def schedule(self) -> tuple[str, list[list[int]]]:
        """Return version and content of the pool's schedule, as the API tells it."""
        told = {each.pool: each for each in self.view.schedules if each.state == "proposed"}
        info = f'tuner_schedule_info{{pool="{POOL}",state="proposed",version="{told[POOL].version}"}}'
        assert self.metric(info) == 1.0
        return told[POOL].version, told[POOL].schedule.as_lists()

    def windows(self, state: str = "good") -> float:
        """Return the windows of a state since the start."""
        return self.metric(f'tuner_windows_total{{pool="{POOL}",state="{state}"}}') or 0.0

    def all_windows(self) -> int:
        """Return the windows of any state since the start."""
        return sum(self.view.windows_total.values())

    def decided_at(self) -> float:
        """Return when the last cycle was, unix seconds."""
        decision = self.view.decision
        return 0.0 if decision is None else decision.at

    def up(self) -> bool:
        """Tell whether health and readiness both answer 200."""
        return self.get("/-/healthy").status_code == self.get("/-/ready").status_code == 200

    def stored(self) -> int:
        """Return how many schedule versions the database holds."""
        store = self.daemon.leader.store
        assert store is not None
        return len(store.schedules(POOL, 1000))


def endure(
    site: Site,
    begin: Callable[[], object],
    end: Callable[[], object],
    *,
    code: str,
    sample: str,
    bad: float,
    seconds: float = 35.0,
    patience: float = 150.0,
    held: bool = True,
) -> None:
    """Hold a daemon to what is promised of every fault: up, says so, holds, recovers.

    Args:
        site: a daemon that is well.
        begin: begins the fault.
        end: ends it.
        code: of the finding that names it.
        sample: of ``/metrics`` that shows it.
        bad: value of the sample while the fault lasts.
        seconds: how long it lasts.
        patience: seconds after which it must be over for the daemon too.
        held: whether no evidence comes meanwhile, so that nothing but the last schedule may stand; where
            evidence comes it is planned with, and some schedule stands all the time.
    """
    before = site.schedule()
    assert site.up()
    assert code not in site.codes()
    assert site.metric(sample) != bad
    begun = site.daemon.clock.monotonic()
    begin()
    while site.daemon.clock.monotonic() < begun + seconds:
        site.run_for(SCRAPE)
        assert site.up(), site.get("/-/ready").text
        assert site.schedule() == before or not held
    assert code in site.codes()
    assert site.metric(sample) == bad
    assert site.decided_at() >= site.daemon.clock.now() - CYCLE - SCRAPE
    end()
    recovers(site, code=code, sample=sample, bad=bad, patience=patience)


def recovers(site: Site, *, code: str, sample: str, bad: float, patience: float = 150.0) -> None:
    """Hold a daemon to being well again by itself, observing and planning."""
    site.run_until(lambda: code not in site.codes() and site.metric(sample) != bad, patience)
    good = site.windows()
    site.run_for(CYCLE + SCRAPE)
    assert site.windows() >= good + ENGINES
    assert site.up()
    assert site.decided_at() >= site.daemon.clock.now() - CYCLE - SCRAPE
    assert site.schedule()
    assert site.view.buffered == site.view.dropped_total == 0
    assert site.daemon.service.book.errors() == {}
