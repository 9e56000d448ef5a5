"""Engines that come, go and move, from discovery to windows: churn is never read as a drop of traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.observe.bodies import VOCABULARY, Server
from tests.observe.discovery.helper import directory, groups, write
from tuner.fleet import Fingerprint, WindowState
from tuner.observe.discovery import EnginesSpec
from tuner.observe.live import LiveWindows

if TYPE_CHECKING:
    from pathlib import Path

    from tuner.fleet import Window

INTERVAL = 15.0
PODS = 4
BATCH = 8.0
START = 2_000_000_000.0


class Fleet:
    """Pods behind a file of discovery, each a server at an address of its own, scraped in rounds."""

    def __init__(self, path: Path, *, identity: tuple[str, ...]) -> None:
        self.path = path
        self.time = START
        self.pods: dict[str, tuple[str, Server]] = {}
        self.windows: list[Window] = []
        self._starts = 0
        self._book = directory(EnginesSpec("p", file_sd=(str(path),), identity_labels=identity))
        self._live = LiveWindows(VOCABULARY, pool="p", fingerprint=Fingerprint(), interval=INTERVAL)

    def start(self, pod: str) -> None:
        """Start a pod, or start it anew at another address."""
        self._starts += 1
        server = Server(started=self.time)
        server.time = self.time
        self.pods[pod] = (f"10.0.{self._starts}.1:8000", server)

    def rounds(self, count: int) -> None:
        """Let every pod serve, and find and scrape them all, ``count`` times."""
        for _ in range(count):
            self.time += INTERVAL
            listed = [{"address": address, "pod": pod} for pod, (address, _) in self.pods.items()]
            write(self.path, groups(*listed))
            by_url = {f"http://{address}/metrics": server for address, server in self.pods.values()}
            for server in by_url.values():
                server.run(INTERVAL, BATCH, 4)
            for target in self._book.refresh(self.time).targets:
                self.windows += self._live.add(target, [by_url[target.url].scrape()]).windows

    def good(self) -> list[Window]:
        """Return the windows that fits take."""
        return [window for window in self.windows if window.state is WindowState.GOOD]


def rolling_deploy(tmp_path: Path, *, identity: tuple[str, ...]) -> Fleet:
    """Return a fleet whose pods were replaced one after the other, then scaled up and down."""
    fleet = Fleet(tmp_path / "a.json", identity=identity)
    for number in range(PODS):
        fleet.start(f"vllm-{number}")
    fleet.rounds(6)
    for number in range(PODS):
        fleet.start(f"vllm-{number}")
        fleet.rounds(3)
    fleet.start("vllm-new")
    fleet.rounds(4)
    del fleet.pods["vllm-new"]
    fleet.rounds(6)
    return fleet


def names(fleet: Fleet) -> set[str]:
    """Return the engines of all windows; one with a rank is named after it too."""
    return {window.engine.removesuffix("/0") for window in fleet.windows}


def speeds(fleet: Fleet) -> set[int]:
    """Return the tokens per second of good windows, rounded to tens."""
    return {round((window.tokens_per_second or 0.0) / 10.0) for window in fleet.good()}


def test_a_rolling_deploy_is_no_drop(tmp_path: Path) -> None:
    """With identity labels each pod keeps its name, restarts once, and every good window shows full speed."""
    fleet = rolling_deploy(tmp_path, identity=("pod",))

    assert names(fleet) == {*fleet.pods, "vllm-new"}
    restarts = {name: {w.restarts for w in fleet.good() if w.engine == f"{name}/0"} for name in fleet.pods}
    assert all(seen == {0, 1} for seen in restarts.values())
    assert len(speeds(fleet)) == 1
    assert all(window.seconds <= 2 * INTERVAL for window in fleet.good())


def test_without_identity_labels_engines_come_and_go(tmp_path: Path) -> None:
    """Named by addresses, a replaced pod is a new engine without restarts; no good window is any slower."""
    fleet = rolling_deploy(tmp_path, identity=())

    assert len(names(fleet)) == 2 * PODS + 1
    assert max(window.restarts for window in fleet.windows) == 0
    assert speeds(fleet) == speeds(rolling_deploy(tmp_path, identity=("pod",)))
