"""GPU metrics join the engines they belong to, in ratios, or not at all and with a finding."""

from __future__ import annotations

import pytest

from tests.plan.engine_windows import engine_windows
from tuner._exceptions import InputError
from tuner.fleet import Gauges, Target, Window
from tuner.observe.exposition import TimedScrape, parse
from tuner.observe.gpu import (
    ESTIMATE_NAMES,
    EXPORTER_NAMES,
    GpuMemory,
    GpuTrack,
    Joined,
    join,
    track_of_estimates,
    tracks_of_scrapes,
    tracks_of_series,
)

DCGM = """# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",Hostname="n1",pod="chat-0"} 98
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0",UUID="GPU-a",Hostname="n1",pod="chat-0"} 0.2
DCGM_FI_PROF_DRAM_ACTIVE{gpu="0",UUID="GPU-a",Hostname="n1",pod="chat-0"} 0.7
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-b",Hostname="n1",pod="chat-0"} 100
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="1",UUID="GPU-b",Hostname="n1",pod="chat-0"} 0.4
DCGM_FI_PROF_DRAM_ACTIVE{gpu="1",UUID="GPU-b",Hostname="n1",pod="chat-0"} 140737488355328
DCGM_FI_DEV_GPU_UTIL{gpu="2",UUID="GPU-c",Hostname="n1",pod="code-0"} 7
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-a",Hostname="n1",pod="chat-0"} 1980
"""
NVIDIA = """nvidia_smi_utilization_gpu_ratio{uuid="x"} 0.93
nvidia_smi_gpu_info{uuid="x",index="0",name="NVIDIA L40S"} 1
nvidia_smi_utilization_gpu_ratio{uuid="y"} 0.10
nvidia_smi_gpu_info{uuid="y",index="1",name="NVIDIA L40S"} 1
"""
WINDOW: Window = engine_windows([1], [4], [0.8], lambda _tokens, _k: 0.05)[0]
BY_POD = {"pod": "pod"}


def engine(name: str, url: str = "http://n1:8000/metrics", **labels: str) -> Target:
    return Target("chat", name, url, labels=tuple(sorted(labels.items())))


def window(name: str) -> Window:
    return Window("chat", name, WINDOW.start, WINDOW.end, WINDOW.state, "", WINDOW.counts)


def scraped(body: str, *, times: tuple[float, ...] = (WINDOW.start + 5,), **labels: str) -> list[GpuTrack]:
    """Read one body at several times."""
    page = parse(body, wanted=EXPORTER_NAMES)
    return tracks_of_scrapes([TimedScrape(time, page) for time in times], labels)


def codes(joined: Joined) -> list[str]:
    return [finding.code for finding in joined.findings]


def test_several_gpus_of_one_engine_give_their_mean() -> None:
    """DCGM's percent and ratios both become ratios; a blank field is no number."""
    got = join([window("chat-0")], [engine("chat-0", pod="chat-0")], scraped(DCGM), BY_POD)
    gauges = got.windows[0].gauges
    assert gauges.gpu_utilisation == pytest.approx(0.99)
    assert gauges.tensor_active == pytest.approx(0.3)
    assert gauges.dram_active == pytest.approx(0.7)
    assert got.findings == ()


def test_only_samples_of_the_window_count() -> None:
    """A sample at its start belongs to the window before; without one nothing is said."""
    target = engine("chat-0", pod="chat-0")
    before = scraped(DCGM, times=(WINDOW.start, WINDOW.end + 1))
    assert join([window("chat-0")], [target], before, BY_POD).windows[0].gauges == Gauges()
    inside = scraped(DCGM, times=(WINDOW.start, WINDOW.end))
    assert join([window("chat-0")], [target], inside, BY_POD).windows[
        0
    ].gauges.tensor_active == pytest.approx(0.3)


def test_an_exporter_is_joined_by_host() -> None:
    """One engine a machine: the exporter's address and the engine's name the same host."""
    tracks = scraped(NVIDIA, instance="n1:9835")
    got = join([window("e")], [engine("e")], tracks, {"host": "host"})
    assert got.windows[0].gauges.gpu_utilisation == pytest.approx((0.93 + 0.10) / 2)
    assert got.windows[0].gauges.tensor_active is None


def test_labels_of_the_info_series_may_be_joined_by() -> None:
    """nvidia_gpu_exporter keeps index and name in a series of their own."""
    targets = [engine("e0", gpu="0"), engine("e1", gpu="1")]
    tracks = scraped(NVIDIA, instance="n1:9835")
    got = join([window("e0"), window("e1")], targets, tracks, {"host": "host", "gpu": "index"})
    assert [one.gauges.gpu_utilisation for one in got.windows] == [0.93, 0.10]


def test_a_shared_gpu_is_joined_to_nobody() -> None:
    """What two engines do together is evidence of neither; those with their own keep theirs."""
    targets = [engine("a", host="n1"), engine("b", host="n1"), engine("c", host="n2")]
    tracks = scraped(DCGM) + scraped(DCGM.replace("n1", "n2").replace("GPU-", "GPU-n2-"))
    got = join([window(n) for n in "abc"], targets, tracks, {"host": "Hostname"})
    assert [one.gauges.tensor_active for one in got.windows] == [None, None, pytest.approx(0.3)]
    assert codes(got) == ["gpu_shared"]
    assert got.findings[0].evidence["engines"] == ["a", "b"]


def test_one_gpu_told_under_two_pods_is_shared() -> None:
    """Time-slicing: the device's name counts, whatever labels its series carry."""
    tracks = scraped(DCGM) + scraped(DCGM.replace('pod="chat-0"', 'pod="chat-1"').replace("code-0", "code-1"))
    targets = [engine(name, pod=name) for name in ("chat-0", "chat-1")]
    got = join([window("chat-0"), window("chat-1")], targets, tracks, BY_POD)
    assert [one.gauges for one in got.windows] == [Gauges(), Gauges()]
    assert codes(got) == ["gpu_shared"]


def test_ranks_of_one_engine_are_ambiguous() -> None:
    """Which of the pod's GPUs runs which rank is not told."""
    names = ["chat-0/0", "chat-0/1"]
    got = join([window(n) for n in names], [engine("chat-0", pod="chat-0")], scraped(DCGM), BY_POD)
    assert [one.gauges for one in got.windows] == [Gauges(), Gauges()]
    assert codes(got) == ["gpu_join_ambiguous"]
    alone = join([window("chat-0/0")], [engine("chat-0", pod="chat-0")], scraped(DCGM), BY_POD)
    assert alone.windows[0].gauges.tensor_active == pytest.approx(0.3)


@pytest.mark.parametrize("labels", [BY_POD, {"missing": "pod"}, {}])
def test_engines_without_a_gpu_are_named(labels: dict[str, str]) -> None:
    """A join that finds nothing is said with the labels that there are."""
    got = join([window("e")], [engine("e", pod="other")], scraped(DCGM), labels)
    assert got.windows == (window("e"),)
    assert codes(got) == ["gpu_not_found"]
    assert "UUID" in got.findings[0].message


def test_without_any_gpu_metrics_nothing_is_said() -> None:
    """Most fleets have none: no finding, no change."""
    got = join([window("e")], [engine("e", pod="other")], [], BY_POD)
    assert got == Joined((window("e"),), ())


def test_series_of_a_metrics_server_are_read_alike() -> None:
    """All labels count there, those of the exporter's own scrape too."""
    labels = {"UUID": "GPU-a", "exported_pod": "chat-0", "instance": "10.1.1.1:9400", "job": "dcgm"}
    samples = [(WINDOW.start + t, 0.1 * t) for t in (1.0, 3.0)]
    tracks = tracks_of_series([("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", labels, samples)])
    got = join([window("e")], [engine("e", pod="chat-0")], tracks, {"pod": "exported_pod"})
    assert got.windows[0].gauges.tensor_active == pytest.approx(0.2)


def test_memory_of_rounds() -> None:
    """Windows become final rounds later: what was told is kept once, and dropped by age."""
    memory = GpuMemory()
    for times in ((WINDOW.start + 1, WINDOW.start + 5), (WINDOW.start + 5, WINDOW.start + 9)):
        memory.add(scraped(DCGM, times=times))
    assert len(memory.tracks) == 3
    assert len(memory.tracks[0].samples["tensor_active"]) == 3
    memory.forget(WINDOW.start + 6)
    assert len(memory.tracks[0].samples["tensor_active"]) == 1
    memory.forget(WINDOW.end)
    assert not memory.tracks


def estimates(*totals: tuple[float, float], rank: str = "0") -> str:
    """Return pages of an engine that counted floating-point operations and bytes."""
    flops, moved = totals[-1]
    return (
        f'vllm:estimated_flops_per_gpu_total{{engine="{rank}"}} {flops}\n'
        f'vllm:estimated_read_bytes_per_gpu_total{{engine="{rank}"}} {moved}\n'
        f'vllm:estimated_write_bytes_per_gpu_total{{engine="{rank}"}} 0\n'
    )


def test_an_engines_own_estimates_are_ratios_of_the_hardware() -> None:
    """Operations and bytes over what the GPU can do; an exporter, where there is one, is believed instead."""
    pages = [estimates((flops, moved)) for flops, moved in ((0, 0), (3e14, 2e12), (6e14, 4e12), (0, 0))]
    scrapes = [
        TimedScrape(WINDOW.start + i, parse(page, wanted=ESTIMATE_NAMES)) for i, page in enumerate(pages)
    ]
    scrapes.insert(2, TimedScrape(WINDOW.start + 1.5, InputError("failed")))
    track = track_of_estimates(scrapes, {}, 1e15, 4e12)
    assert track is not None
    got = join([window("e")], [engine("e")], [], {}, {"e": track})
    assert got.windows[0].gauges.tensor_active == pytest.approx(0.3)
    assert got.windows[0].gauges.dram_active == pytest.approx(0.5)
    both = join([window("e")], [engine("e", pod="chat-0")], scraped(DCGM), BY_POD, {"e": track})
    assert both.windows[0].gauges.dram_active == pytest.approx(0.7)


def test_estimates_that_were_not_switched_on_are_none() -> None:
    """Counters that stay 0 are no idle GPU."""
    scrapes = [TimedScrape(t, parse(estimates((0, 0)), wanted=ESTIMATE_NAMES)) for t in (1.0, 2.0, 3.0)]
    assert track_of_estimates(scrapes, {}, 1e15, 4e12) is None
