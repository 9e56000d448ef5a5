"""What GPU exporters tell, joined to the windows of the engines that run on these GPUs.

Names and units: DCGM's ``DEV`` fields are percent and its ``PROF`` fields ratios (NVIDIA/dcgm-exporter
``etc/dcp-metrics-included.csv``), nvidia_gpu_exporter rescales percent to ``_ratio`` (its docs/METRICS.md),
Triton's ``nv_gpu_utilization`` is a ratio. vLLM and SGLang can count floating-point operations and bytes by a
model of their own (``--enable-mfu-metrics``); against what the hardware can do these are ratios too.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from tuner._exceptions import InputError
from tuner.fleet import Finding
from tuner.observe.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tuner.fleet import Target, Window
    from tuner.observe.exposition import SeriesKey, TimedScrape

Quantity = Literal["gpu_utilisation", "tensor_active", "dram_active"]
"""Fields of Gauges, ratios in 0..1."""

NAMES: Mapping[str, tuple[Quantity, float]] = {
    "DCGM_FI_DEV_GPU_UTIL": ("gpu_utilisation", 0.01),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("tensor_active", 1.0),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("dram_active", 1.0),
    "nvidia_smi_utilization_gpu_ratio": ("gpu_utilisation", 1.0),
    "nvidia_smi_mig_tensor_activity_ratio": ("tensor_active", 1.0),
    "nv_gpu_utilization": ("gpu_utilisation", 1.0),
}
"""Sample name -> what it says, and what it is multiplied by to become a ratio."""
INFO = "nvidia_smi_gpu_info"
"""Carries the labels (index, name) that nvidia_gpu_exporter leaves off its other series."""
EXPORTER_NAMES = frozenset({*NAMES, INFO})
FLOPS = ("vllm:estimated_flops_per_gpu_total", "sglang:estimated_flops_per_gpu_total")
BYTES = tuple(
    f"{engine}:estimated_{way}_bytes_per_gpu_total"
    for engine in ("vllm", "sglang")
    for way in ("read", "write")
)
ESTIMATE_NAMES = frozenset({*FLOPS, *BYTES})
"""Counters of an engine's own page; they stay 0 unless it was told to estimate."""
DEVICE_LABELS = ("UUID", "uuid", "gpu_uuid", "GPU_I_ID", "mig_uuid", "gpu_instance_id")
"""Labels that name a device, or a slice of one, whatever other labels its series carry."""
SLACK = 1.02
"""Ratios up to here are rounding; above, DCGM's marks for a blank field, 1.4e14 and more."""

Labels = dict[str, str]
Samples = list[tuple[float, float]]


@dataclass(slots=True)
class GpuTrack:
    """One device as one exporter tells it."""

    labels: Labels
    samples: dict[Quantity, Samples] = field(default_factory=dict)
    """Quantity -> (unix seconds, ratio in 0..1), by time."""

    @property
    def device(self) -> frozenset[tuple[str, str]]:
        """What names the device; all labels where none of them does."""
        named = {(name, value) for name, value in self.labels.items() if name in DEVICE_LABELS}
        return frozenset(named or self.labels.items())

    def mean(self, quantity: Quantity, start: float, end: float) -> float | None:
        """Return the mean over ``(start, end]``, ``None`` without a sample in it."""
        values = [value for time, value in self.samples.get(quantity, ()) if start < time <= end]
        return fmean(values) if values else None


@dataclass(slots=True)
class GpuMemory:
    """Devices as they are told round by round, for windows that become final some scrapes later."""

    _tracks: dict[frozenset[tuple[str, str]], GpuTrack] = field(default_factory=dict)

    @property
    def tracks(self) -> tuple[GpuTrack, ...]:
        """All devices that are known."""
        return tuple(self._tracks.values())

    def add(self, tracks: Iterable[GpuTrack]) -> None:
        """Take the news of a round; what was told before is kept once."""
        for new in tracks:
            held = self._tracks.setdefault(frozenset(new.labels.items()), GpuTrack(new.labels))
            for quantity, samples in new.samples.items():
                held.samples[quantity] = sorted({*held.samples.get(quantity, ()), *samples})

    def forget(self, before: float) -> None:
        """Drop what is older, and devices of which nothing is left."""
        for key, track in list(self._tracks.items()):
            for quantity, samples in track.samples.items():
                track.samples[quantity] = [sample for sample in samples if sample[0] >= before]
            if not any(track.samples.values()):
                del self._tracks[key]


@dataclass(frozen=True, slots=True)
class Joined:
    """Windows with what their GPUs did, and what could not be joined."""

    windows: tuple[Window, ...]
    findings: tuple[Finding, ...]


def tracks_of_scrapes(scrapes: Iterable[TimedScrape], labels: Mapping[str, str]) -> list[GpuTrack]:
    """Read the scrapes of one exporter.

    Args:
        scrapes: scrapes with :data:`EXPORTER_NAMES`; failed ones say nothing.
        labels: labels of the exporter itself, such as ``instance``; its series' own come first.
    """
    return tracks_of_series(
        (key.name, {**labels, **dict(key.labels)}, [(time, value)])
        for time, scrape in scrapes
        if not isinstance(scrape, InputError)
        for key, value in scrape.samples.items()
    )


def tracks_of_series(series: Iterable[tuple[str, Labels, Samples]]) -> list[GpuTrack]:
    """Sort series ``(name, labels, samples)`` into devices, with the labels of their info series."""
    tracks: dict[frozenset[tuple[str, str]], GpuTrack] = {}
    infos: dict[str, Labels] = {}
    for name, labels, samples in series:
        if name == INFO:
            infos.setdefault(labels.get("uuid", ""), labels)
            continue
        if name not in NAMES:
            continue
        quantity, scale = NAMES[name]
        kept = [(time, min(value * scale, 1.0)) for time, value in samples if 0 <= value * scale <= SLACK]
        track = tracks.setdefault(frozenset(labels.items()), GpuTrack(dict(labels)))
        track.samples.setdefault(quantity, []).extend(kept)
    for track in tracks.values():
        track.labels = {**infos.get(track.labels.get("uuid", ""), {}), **track.labels}
        for held in track.samples.values():
            held.sort()
    return list(tracks.values())


def track_of_estimates(
    scrapes: Sequence[TimedScrape], labels: Mapping[str, str], flops: float, bandwidth: float
) -> GpuTrack | None:
    """Read an engine's own estimates; ``None`` where it was not told to make them.

    Args:
        scrapes: scrapes of one engine with :data:`ESTIMATE_NAMES`, by time.
        labels: labels of the engine.
        flops: FLOP/s that one GPU can do.
        bandwidth: bytes/s that one GPU can read.
    """
    told = [(time, scrape.samples) for time, scrape in scrapes if not isinstance(scrape, InputError)]
    track = GpuTrack(dict(labels))
    peaks: tuple[tuple[Quantity, tuple[str, ...], float], ...] = (
        ("tensor_active", FLOPS, flops),
        ("dram_active", BYTES, bandwidth),
    )
    for quantity, names, peak in peaks:
        totals = [(time, _total(samples, names)) for time, samples in told]
        track.samples[quantity] = [
            (end, min((after - before) / (end - start) / peak, 1.0))
            for (start, before), (end, after) in pairwise(totals)
            if before is not None and after is not None and after > before and end > start
        ]
    return track if any(track.samples.values()) else None


def _total(samples: Mapping[SeriesKey, float], names: Sequence[str]) -> float | None:
    """Return the mean over ranks of the sum over names: the counters are per GPU already."""
    by_rank: dict[frozenset[tuple[str, str]], float] = {}
    for key, value in samples.items():
        if key.name in names and math.isfinite(value):
            by_rank[key.labels] = by_rank.get(key.labels, 0.0) + value
    return fmean(by_rank.values()) if by_rank else None


def join(
    windows: Sequence[Window],
    targets: Sequence[Target],
    tracks: Sequence[GpuTrack],
    labels: Mapping[str, str],
    estimates: Mapping[str, GpuTrack] | None = None,
) -> Joined:
    """Put what GPUs did into the windows of the engines on them.

    Args:
        windows: windows of one pool.
        targets: its engines; a label ``host`` or ``instance`` that one lacks is taken from its address.
        tracks: devices of all exporters of the pool.
        labels: label of an engine -> label of a GPU with the same value; all must agree.
        estimates: engine -> its own estimates, used for what no exporter tells.

    Returns:
        All windows in the same order; an engine with several GPUs gets their mean. A device that is shared,
        and an engine of several ranks, whose devices cannot be told apart, are left out with a finding.
    """
    by_engine = {target.engine: _devices_of(target, tracks, labels) for target in targets}
    owners = Counter(device for devices in by_engine.values() for device in {one.device for one in devices})
    shared = {device for device, engines in owners.items() if engines > 1}
    ranks: dict[str, set[str]] = {}
    for window in windows:
        ranks.setdefault(_engine_of(window, by_engine), set()).add(window.engine)
    several = {engine for engine, names in ranks.items() if len(names) > 1 and by_engine.get(engine)}
    usable = {
        engine: [one for one in devices if one.device not in shared]
        for engine, devices in by_engine.items()
        if engine not in several and not any(one.device in shared for one in devices)
    }
    told = estimates or {}
    out = tuple(
        _filled(window, usable.get(engine, ()), told.get(engine) if engine not in several else None)
        for window in windows
        for engine in [_engine_of(window, by_engine)]
    )
    pool = targets[0].pool if targets else ""
    return Joined(out, tuple(_notice(pool, by_engine, shared, several, tracks)))


def _engine_of(window: Window, engines: Mapping[str, object]) -> str:
    """Return the engine of a window, whose name may end in ``/rank``."""
    return window.engine if window.engine in engines else window.engine.rpartition("/")[0]


def _devices_of(target: Target, tracks: Sequence[GpuTrack], labels: Mapping[str, str]) -> list[GpuTrack]:
    """Return the devices whose labels agree with those of an engine."""
    if not labels:
        return []
    address = urlsplit(target.url)
    own = {"host": address.hostname or "", "instance": address.netloc, **dict(target.labels)}
    asked = {gpu_label: own.get(engine_label, "") for engine_label, gpu_label in labels.items()}
    if not all(asked.values()):
        return []
    return [
        track for track in tracks if all(_gpu_label(track, name) == value for name, value in asked.items())
    ]


def _gpu_label(track: GpuTrack, name: str) -> str:
    """Return a label of a device; ``host`` may be that of its exporter's address."""
    if name == "host" and name not in track.labels:
        return urlsplit(f"//{track.labels.get('instance', '')}").hostname or ""
    return track.labels.get(name, "")


def _filled(window: Window, devices: Sequence[GpuTrack], estimate: GpuTrack | None) -> Window:
    """Return a window with the means over its devices; what nobody tells stays ``None``."""
    found: dict[str, float] = {}
    quantities: tuple[Quantity, ...] = ("gpu_utilisation", "tensor_active", "dram_active")
    for quantity in quantities:
        means = [one.mean(quantity, window.start, window.end) for one in devices]
        known = [mean for mean in means if mean is not None]
        if not known and estimate is not None:
            guess = estimate.mean(quantity, window.start, window.end)
            known = [] if guess is None else [guess]
        if known:
            found[quantity] = fmean(known)
    return replace(window, gauges=replace(window.gauges, **found)) if found else window


def _notice(
    pool: str,
    by_engine: Mapping[str, Sequence[GpuTrack]],
    shared: set[frozenset[tuple[str, str]]],
    several: set[str],
    tracks: Sequence[GpuTrack],
) -> Iterable[Finding]:
    """Say which engines have no GPU of their own, and why."""
    sharing = sorted(
        engine for engine, devices in by_engine.items() if any(one.device in shared for one in devices)
    )
    if sharing:
        yield Finding(
            "gpu_shared",
            "warning",
            f"{counted(len(sharing), 'engine')}, {sharing[0]} first, join to GPUs of others: nothing is "
            "joined. Add labels to gpu.join, or take it that a shared GPU tells nothing of one engine.",
            {"pool": pool},
            {"engines": sharing[:5], "count": len(sharing)},
        )
    if several:
        yield Finding(
            "gpu_join_ambiguous",
            "warning",
            f"{counted(len(several), 'engine')}, {min(several)} first, run several ranks on their GPUs and "
            "it is not told which on which: nothing is joined.",
            {"pool": pool},
            {"engines": sorted(several)[:5], "count": len(several)},
        )
    without = sorted(engine for engine, devices in by_engine.items() if not devices)
    if without and tracks:
        yield Finding(
            "gpu_not_found",
            "warning",
            f"{counted(len(without), 'engine')}, {without[0]} first, join to none of "
            f"{counted(len(tracks), 'GPU')}: compare gpu.join with the labels of a GPU "
            f"({', '.join(sorted(tracks[0].labels)[:8])}).",
            {"pool": pool},
            {"engines": without[:5], "count": len(without)},
        )
