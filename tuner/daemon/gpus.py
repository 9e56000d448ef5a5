"""What GPUs of a pool do, read beside its engines and put into their windows."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tuner._exceptions import InputError
from tuner.fleet import Target
from tuner.observe.exposition import Scrape, TimedScrape
from tuner.observe.gpu import (
    ESTIMATE_NAMES,
    EXPORTER_NAMES,
    GpuMemory,
    GpuTrack,
    join,
    track_of_estimates,
    tracks_of_scrapes,
    tracks_of_series,
)
from tuner.observe.outcomes import SourceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.config import Pool
    from tuner.daemon.ports import Server
    from tuner.fleet import Finding, Window

REMEMBERED = 8.0
"""Scrape intervals of GPU samples that are kept: a window is final one or two scrapes after it ended."""
ORIGIN = "gpu"
"""Origin of the targets that are exporters."""


@dataclass(slots=True)
class Gpus:
    """Exporters and metrics of one pool's GPUs, and the engines' own estimates."""

    pool: Pool
    interval: float
    _memory: GpuMemory = field(default_factory=GpuMemory)
    _estimates: dict[str, deque[TimedScrape]] = field(default_factory=dict)
    _read_until: float | None = None
    findings: tuple[Finding, ...] = ()
    """What could not be joined in the last round."""

    @property
    def targets(self) -> tuple[Target, ...]:
        """Exporters, to be scraped with the engines."""
        gpu = self.pool.gpu
        urls = () if gpu is None else gpu.exporters
        return tuple(Target(self.pool.name, f"gpu {url}", url, origin=ORIGIN) for url in urls)

    @property
    def wanted(self) -> frozenset[str]:
        """Names to read of an engine besides its own: estimates, where the hardware is known."""
        return ESTIMATE_NAMES if self._estimating else frozenset()

    @property
    def _estimating(self) -> bool:
        return self.pool.gpu is not None and self.pool.hardware is not None

    def take(self, target: Target, scrape: TimedScrape) -> None:
        """Take a scrape of an exporter."""
        self._memory.add(tracks_of_scrapes([scrape], {"instance": urlsplit(target.url).netloc}))

    def estimate(self, target: Target, scrapes: Sequence[TimedScrape]) -> None:
        """Keep what an engine estimates of its own GPU."""
        if not self._estimating:
            return
        for time, result in scrapes:
            if isinstance(result, InputError):
                continue
            told = {key: value for key, value in result.samples.items() if key.name in ESTIMATE_NAMES}
            if told:
                held = self._estimates.setdefault(target.engine, deque(maxlen=int(REMEMBERED)))
                held.append(TimedScrape(time, Scrape(told)))

    def read(self, server: Server, now: float) -> str:
        """Ask a metrics server for GPU metrics; return why it could not tell, empty if it could."""
        gpu = self.pool.gpu
        if gpu is None or gpu.prometheus is None:
            return ""
        since = now - REMEMBERED * self.interval if self._read_until is None else self._read_until
        said = server.series(EXPORTER_NAMES, gpu.prometheus.selector, since, now)
        if isinstance(said, SourceError):
            return said.reason
        self._read_until = now
        self._memory.add(tracks_of_series(said))
        return ""

    def fill(self, windows: Sequence[Window], targets: Sequence[Target], now: float) -> Sequence[Window]:
        """Return windows of this pool with what their GPUs did."""
        gpu = self.pool.gpu
        if gpu is None:
            return windows
        self._memory.forget(now - REMEMBERED * self.interval)
        names = {target.engine for target in targets}
        self._estimates = {name: held for name, held in self._estimates.items() if name in names}
        joined = join(windows, targets, self._memory.tracks, gpu.join, self._estimated(targets))
        if windows:
            self.findings = joined.findings
        return joined.windows

    def _estimated(self, targets: Sequence[Target]) -> dict[str, GpuTrack]:
        hardware = self.pool.hardware
        if hardware is None:
            return {}
        labels = {target.engine: dict(target.labels) for target in targets}
        tracks = {
            name: track_of_estimates(tuple(held), labels.get(name, {}), hardware.flops, hardware.bandwidth)
            for name, held in self._estimates.items()
        }
        return {name: track for name, track in tracks.items() if track is not None}
