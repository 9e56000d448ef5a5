"""A daemon that lives for hours in virtual time while its engines come and go: a program of its own.

``python -m tests.soak.life`` reads what to do as JSON from its input and prints a line of JSON each half
simulated hour, and one at the end. Engines are found by file_sd and named by their pod. Each hour some are
replaced under other names at the same addresses, as in a rolling deploy, and another one restarts.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2

from tuner.config import Config
from tuner.daemon.accelerated import Accelerated
from tuner.daemon.logs import configure
from tuner.daemon.parts import RealParts
from tuner.observe import scraping

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tuner.daemon.clock import SteadyClock
    from tuner.fleet import Target

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
HOUR = 3600.0
PATIENCE = 120.0
AT_ONCE = 1e6
"""Scrapes begun a second. In real time they are spread, by 0.1 s a round here; spread virtual rounds would
only wait, ten minutes in a day."""


class Ahead:
    """The fleet's time, one scrape interval ahead of the daemon's while nobody reads the fleet.

    Engines live through the next interval in their process while the daemon thinks about the last one in its
    own. At each round of scrapes the two are at the same time.
    """

    def __init__(self, advance: Callable[[float], None], interval: float) -> None:
        self._advance = advance
        self._interval = interval
        self._worker = ThreadPoolExecutor(1)
        self._under_way: Future[None] | None = None
        self._lead = 0.0
        """Seconds by which the fleet is ahead of the daemon."""

    def pass_time(self, seconds: float) -> None:
        """Let the daemon's time pass, and the fleet's where it is not there already."""
        self._lead -= seconds
        if self._lead < 0.0:
            self.wait()
            self._advance(-self._lead)
            self._lead = 0.0

    def wait(self) -> None:
        """Wait for the fleet."""
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None

    def read(self) -> None:
        """Go ahead: what is read of this moment was read."""
        self._lead += self._interval
        self._under_way = self._worker.submit(self._advance, self._interval)

    def close(self) -> None:
        """Let the worker go."""
        self.wait()
        self._worker.shutdown()


class Parts(RealParts):
    """The real parts; rounds of scrapes are told to those who keep the time."""

    def __init__(self, clock: SteadyClock, ahead: Ahead) -> None:
        super().__init__(clock)
        self._ahead = ahead

    def scraper(self, config: Config) -> scraping.Scraper:
        """Return the real one, which reads the fleet as of the daemon's time."""
        real, ahead = super().scraper(config), self._ahead
        round_of = real.round

        def read(targets: Sequence[Target], wanted: Callable[[Target], frozenset[str]]) -> scraping.Round:
            ahead.wait()
            done = round_of(targets, wanted)
            ahead.read()
            return done

        real.round = read  # type: ignore[method-assign]  # all else of it is as it is
        return real


class Churn:
    """Pods of a simulated fleet, which is told by files; engines are restarted where pods are replaced."""

    def __init__(self, fleet: dict[str, Any], folder: Path, client: httpx2.Client, now: float) -> None:
        self._address = str(fleet["url"]).partition("//")[2]
        self._url = fleet["url"]
        self._folder = folder
        self._client = client
        self._turn = 0
        self.pods: dict[tuple[str, int], str] = {
            (pool, n): f"{pool}-{n}-0" for pool, engines in fleet["pools"].items() for n in range(engines)
        }
        self.lives: dict[str, list[float]] = {pod: [now] for pod in self.pods.values()}
        """Pod -> from when it was told of, and until when if it is gone."""
        self.restarts: Counter[str] = Counter()
        self._write()

    def replace(self, count: int, now: float) -> None:
        """Put ``count`` engines into other pods."""
        places = list(self.pods)
        for _ in range(count):
            pool, n = place = places[self._turn % len(places)]
            self._turn += 1
            self.lives[self.pods[place]].append(now)
            self.pods[place] = pod = f"{pool}-{n}-{self._turn}"
            self.lives[pod] = [now]
            self._restart(pool, n)
        self._write()

    def restart(self) -> None:
        """Let an engine restart in its pod."""
        pool, n = place = list(self.pods)[-1 - self._turn % len(self.pods)]
        self.restarts[self.pods[place]] += 1
        self._restart(pool, n)

    def _restart(self, pool: str, n: int) -> None:
        fault = {"kind": "restart", "pool": pool, "engine": n}
        self._client.post(f"{self._url}/sim/fault", json=fault).raise_for_status()

    def _write(self) -> None:
        for pool in {pool for pool, _ in self.pods}:
            groups = [
                {
                    "targets": [self._address],
                    "labels": {"__metrics_path__": f"/engines/{name}/{n}/metrics", "pod": pod},
                }
                for (name, n), pod in self.pods.items()
                if name == pool
            ]
            written = self._folder / f"{pool}.new"
            written.write_text(json.dumps(groups))
            written.replace(self._folder / f"{pool}.json")


def settings(fleet: dict[str, Any], folder: Path, sections: dict[str, Any]) -> Config:
    """Return the settings of a daemon for these pools."""
    pools = [
        {
            "name": name,
            "mode": "advise",
            "engine": "vllm",
            "engines": {"file_sd": [f"{folder}/{name}.json"], "identity": ["pod"]},
        }
        for name in fleet["pools"]
    ]
    return Config.model_validate(
        {"store": {"url": f"sqlite:///{folder}/tuner.db"}, "pools": pools, **sections}
    )


def live(task: dict[str, Any]) -> None:
    """Live through what ``task`` asks for."""
    fleet, folder = task["fleet"], Path(task["folder"])
    scraping.STARTS_PER_SECOND = AT_ONCE
    with httpx2.Client(timeout=PATIENCE, trust_env=False) as client:

        def advance(seconds: float) -> None:
            reply = client.post(f"{fleet['url']}/sim/advance", json={"seconds": seconds})
            reply.raise_for_status()

        now = fleet["now"]
        churn = Churn(fleet, folder, client, now)
        config = settings(fleet, folder, task["sections"])
        ahead = Ahead(advance, config.scrape.interval)
        daemon = Accelerated(
            config,
            lambda clock: Parts(clock, ahead),
            configure("error", "logfmt"),
            now=now,
            advance=ahead.pass_time,
        )
        passed = 0.0
        while passed < task["seconds"]:
            daemon.run_for(task["report"])
            passed += task["report"]
            tell(daemon, folder, passed)
            if passed % task["churn"] == 0.0 and passed < task["seconds"]:
                churn.replace(task["replaced"], daemon.clock.now())
                churn.restart()
        daemon.close()
        ahead.close()
        daemon.service.publish()
        view = daemon.service.view()
        end = {
            "end": daemon.clock.now(),
            "lives": churn.lives,
            "jobs": {
                job.name: {"runs": job.runs, "errors": job.errors, "missed": job.missed + job.skipped}
                for job in view.jobs
            },
            "windows": {f"{pool} {state}": n for (pool, state), n in view.windows_total.items()},
            "schedules": [status.pool for status in view.schedules],
            "findings": sorted({finding.code for finding in view.findings}),
        }
        say(end)


def tell(daemon: Accelerated, folder: Path, passed: float) -> None:
    """Say what is held now."""
    service = daemon.service
    view = service.view()
    say(
        {
            "hours": passed / HOUR,
            "rss": int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES / 1e6,
            "cpu": sum(os.times()[:2]),
            "held": {pool.name: pool.windows_held for pool in view.pools},
            "series": view.series_state,
            "targets": len(view.targets),
            "up": sum(status.up for status in view.targets),
            "waiting": view.buffered,
            "dropped": view.dropped_total,
            "findings": len(view.findings),
            "bytes": sum(file.stat().st_size for file in folder.glob("tuner.db*")),
        }
    )


def say(line: dict[str, Any]) -> None:
    """Print a line at once."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    live(json.loads(sys.stdin.read()))
