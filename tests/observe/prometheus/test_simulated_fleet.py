"""A simulated fleet in a process of its own, scraped by real servers, and read through them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from tests.servers import StartsMetricsServer, wait_until
from tuner.engines import get_engine
from tuner.fleet import POOLED_ROUTE, Fingerprint, Target, Window, WindowState
from tuner.observe.discovery import Directory, EnginesSpec
from tuner.observe.gpu import EXPORTER_NAMES, GpuMemory, join, tracks_of_series
from tuner.observe.live import LiveWindows
from tuner.observe.prometheus import PrometheusSource

if TYPE_CHECKING:
    from collections.abc import Iterator

POOL = "dense-70b"
ENGINES = 4
WINDOWS = 3
VOCABULARY = get_engine("vllm").vocabulary
SELECTOR = f'job="vllm",pool="{POOL}"'


@pytest.fixture(scope="module")
def fleet() -> Iterator[str]:
    """The address of a fleet that runs in real time."""
    command = [sys.executable, "-m", "tuner", "simulate", "fleet", "--preset", "demo", "--speed", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()
            process.wait(20)


def jobs(fleet: str) -> list[dict[str, Any]]:
    """Scrape the engines and their GPUs, as an operator would."""
    discovery = [{"url": f"{fleet}/targets/{POOL}"}]
    gpu_page = {
        "source_labels": ["path"],
        "regex": "/engines/(.*)",
        "target_label": "__metrics_path__",
        "replacement": "/gpu/$1/metrics",
    }
    return [
        {"job_name": "vllm", "http_sd_configs": discovery},
        {"job_name": "dcgm", "http_sd_configs": discovery, "relabel_configs": [gpu_page]},
    ]


class Reader:
    """Reads the pool from one server round by round, as the daemon does."""

    def __init__(self, url: str) -> None:
        self.source = PrometheusSource("main", url, scrape_interval=20.0)
        spec = EnginesSpec(POOL, prometheus=self.source, selector=SELECTOR, identity_labels=("pod",))
        self.directory = Directory(spec, httpx2.Client(trust_env=False))
        self.live = LiveWindows(VOCABULARY, pool=POOL, fingerprint=Fingerprint(engine="vllm"))
        self.memory = GpuMemory()
        self.windows: list[Window] = []
        self.targets: tuple[Target, ...] = ()
        self.since = time.time()

    @property
    def good(self) -> list[Window]:
        return [one for one in self.windows if one.state is WindowState.GOOD]

    def round(self) -> None:
        """Find engines, take their scrapes and those of their GPUs."""
        now = time.time()
        self.targets = self.directory.refresh(now).targets
        answer = self.source.scrapes(self.targets, SELECTOR, VOCABULARY.sample_names, self.since, now)
        assert answer.error is None
        for target, scrapes in answer.scraped.items():
            told = self.live.add(target, scrapes).windows
            self.windows += [window for window in told if window.route == POOLED_ROUTE]
        gpus = self.source.series(EXPORTER_NAMES, f'job="dcgm",pool="{POOL}"', self.since - 5, now)
        assert isinstance(gpus, tuple)
        self.memory.add(tracks_of_series(gpus))
        self.since = now

    def done(self) -> bool:
        """Whether every engine has a few good windows."""
        counts = Counter(one.engine for one in self.good)
        if len(counts) < ENGINES or min(counts.values()) < WINDOWS:
            self.round()
            return False
        return True


def test_a_fleet_through_servers(
    fleet: str, prometheus_server: StartsMetricsServer, victoria_metrics: StartsMetricsServer
) -> None:
    """Engines are found by selector, their windows are good, and each has what its own GPU did."""
    readers = [Reader(start(jobs(fleet)).url) for start in (prometheus_server, victoria_metrics)]
    wait_until(
        lambda: sum(reader.done() for reader in readers) == len(readers),
        f"{WINDOWS} good windows of {ENGINES} engines",
    )
    for reader in readers:
        assert [target.engine for target in reader.targets] == [f"{POOL}-{n}" for n in range(ENGINES)]
        joined = join(reader.good, reader.targets, reader.memory.tracks, {"pod": "Hostname"})
        assert joined.findings == ()
        told = [one.gauges for one in joined.windows if one.gauges.tensor_active is not None]
        assert len(told) >= len(reader.good) / 2
        assert all(0 < (gauges.tensor_active or 0) < 1 and gauges.dram_active for gauges in told)
        assert all(one.batch and one.batch > 1 for one in joined.windows)
