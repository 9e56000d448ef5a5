"""A daemon that reads engines and GPUs through a real Prometheus, on good days and bad ones."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.daemon.processes import Daemon, Fleet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers import StartsMetricsServer

POOL = "fixed"
CONFIG = """\
store: {{url: 'sqlite:///{folder}/tuner.db'}}
scrape: {{interval: 4s, timeout: 3s}}
cycle: {{interval: 8s}}
discovery: {{interval: 8s}}
web: {{listen: '127.0.0.1:0'}}
sources: {{prometheus: [{{name: main, url: '{server}', timeout: 1s}}]}}
pools:
  - name: fixed
    engine: vllm
    engines:
      identity: [pod]
      prometheus: {{source: main, selector: 'job="vllm"', read: prometheus}}
    gpu: {{prometheus: {{source: main, selector: 'job="dcgm"'}}, join: {{pod: Hostname}}}}
"""
UP = 'tuner_source_up{source="main"}'
GOOD = f'tuner_windows_total{{pool="{POOL}",state="good"}}'


@pytest.fixture(scope="module")
def fleet() -> Iterator[str]:
    """Return the address of a simulated fleet."""
    with Fleet() as running:
        yield running.url


def _jobs(fleet: str) -> list[dict[str, Any]]:
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


def test_a_server_that_goes_and_comes_back(
    fleet: str, tmp_path: Path, prometheus_server: StartsMetricsServer
) -> None:
    """Windows with GPU activity come through it; down or hanging it is told of, and work goes on after."""
    from tuner.store import open_store

    server = prometheus_server(_jobs(fleet), interval="2s")
    config = tmp_path / "tuner.yaml"
    config.write_text(CONFIG.format(folder=tmp_path, server=server.url))
    with Daemon(config) as daemon:
        daemon.until(GOOD, 8.0)
        assert daemon.metric(UP) == 1.0
        assert {engine["engine"] for engine in daemon.get("/api/v1/engines").json()["engines"]} == {
            f"{POOL}-{n}" for n in range(4)
        }
        for stop, start in ((server.stop, server.start), (server.process.pause, server.process.resume)):
            stop()
            daemon.until_is(UP, 0.0)
            assert daemon.get("/-/ready").status_code == 200
            daemon.until_told("source_down")
            counted = daemon.metric(GOOD) or 0.0
            start()
            daemon.until(UP, 1.0)
            daemon.until(GOOD, counted + 4.0)
            assert daemon.get("/-/healthy").status_code == 200
        daemon.signal(signal.SIGTERM)
        assert daemon.popen.wait(30.0) == 0
    store = open_store(f"sqlite:///{tmp_path}/tuner.db")
    windows = store.recent_windows(POOL, 0.0, 10_000)
    store.close()
    told = [w for w in windows if w.gauges.tensor_active is not None and w.gauges.dram_active is not None]
    assert len(told) >= 4
    assert {fit.source for fit in _fits(tmp_path)} == {"prometheus:main"}


def _fits(folder: Path) -> list[Any]:
    from tuner.store import open_store

    store = open_store(f"sqlite:///{folder}/tuner.db")
    fits = store.latest_fits(POOL)
    store.close()
    return list(fits)
