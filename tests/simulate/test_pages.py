"""Metrics pages: a real vLLM's names, labels and semantics, the plugin's, DCGM's."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.simulate.helper import BEARER, TOKEN, held, one_pool, series, value, vllm
from tuner.simulate import CostSpec, Fleet, LoadSpec, preset

RECORDING = Path("tests/data/recordings/vllm-0.32-cpu")


@pytest.fixture(scope="module")
def demo() -> Fleet:
    """Return a fleet that has run for a minute."""
    fleet = Fleet(preset("demo"), seed=4)
    fleet.advance(60)
    return fleet


def names(page: str) -> dict[str, frozenset[str]]:
    """Return the label names of every sample name."""
    found: dict[str, frozenset[str]] = {}
    for name, labels, _ in series(page):
        found[name] = found.get(name, frozenset()) | labels.keys()
    return found


def test_names_and_labels_are_those_of_a_recorded_server(demo: Fleet) -> None:
    """Each of vLLM's names that is served has the labels that a real 0.32.0 gave it."""
    real = names(gzip.decompress(max(RECORDING.glob("*.gz")).read_bytes()).decode())
    mine = names(demo.body("dense-70b", 0))
    shared = {name for name in mine if name.startswith(("vllm:", "process_", "python_"))}
    assert len(shared) > 35
    assert {name: mine[name] for name in shared if name != "vllm:cache_config_info"} == {
        name: real[name] for name in shared if name != "vllm:cache_config_info"
    }
    assert mine["vllm:cache_config_info"] <= real["vllm:cache_config_info"]
    assert "model_name" not in mine["vllm:cache_config_info"]


@pytest.mark.parametrize("name", ["demo", "scale"])
def test_pages_are_valid_exposition(name: str) -> None:
    """A strict parser reads every page, and no series appears twice."""
    fleet = Fleet(preset(name, 50 if name == "scale" else None), seed=1)
    fleet.advance(20)
    pool = next(iter(fleet.pools))
    for page in (fleet.body(pool, 0), fleet.gpu_body(pool, 0)):
        assert len(list(text_string_to_metric_families(page))) > 5
        keys = [(n, tuple(sorted(labels.items()))) for n, labels, _ in series(page)]
        assert len(set(keys)) == len(keys)


def test_padded_pages_have_the_size_of_a_real_one() -> None:
    """With padding a page has 55 KB, as the recorded server's."""
    fleet = Fleet(one_pool(pad=True))
    fleet.advance(30)
    assert 52_000 < len(fleet.body("p", 0)) < 60_000


def test_histograms_are_cumulative_and_end_at_their_count(demo: Fleet) -> None:
    """Buckets never fall, and the last one is the count."""
    page = demo.body("moe-a22b", 1)
    for name in ("iteration_tokens_total", "time_to_first_token_seconds", "inter_token_latency_seconds"):
        buckets = [v for n, _, v in series(page) if n == f"vllm:{name}_bucket"]
        assert buckets == sorted(buckets)
        assert buckets[-1] == vllm(page, f"{name}_count") > 0


def test_creation_times_follow_the_start(demo: Fleet) -> None:
    """Creation times stand a moment after the start of the process."""
    page = demo.body("dense-70b", 2)
    started = value(page, "process_start_time_seconds")
    created = [v for n, _, v in series(page) if n.endswith("_created")]
    assert len(created) == 10
    assert all(0 < time - started < 10 for time in created)


def test_the_plugin_counts_what_the_engine_counts(demo: Fleet) -> None:
    """The plugin's counters sum to the engine's own, by draft length and by route."""
    page = demo.body("mixed-8b", 0)
    drafts = vllm(page, "spec_decode_num_drafts_total")
    assert value(page, "tuner:spec_exposed_total", position="0") == drafts
    assert value(page, "tuner:route_accepted_total") == drafts
    accepted = vllm(page, "spec_decode_num_accepted_tokens_total")
    assert value(page, "tuner:spec_accepted_total") == accepted
    by_route = [
        (labels["route"], int(labels["accepted"]) * count)
        for name, labels, count in series(page)
        if name == "tuner:route_accepted_total"
    ]
    assert sum(tokens for _, tokens in by_route) == accepted
    assert {route for route, _ in by_route} == {"tools", "chat"}
    steps = value(page, "tuner:step_seconds_count")
    assert steps >= vllm(page, "iteration_tokens_total_count")
    assert value(page, "tuner:step_seconds_sum") / steps == pytest.approx(60 / steps, rel=0.1)


def test_exposure_of_a_position_is_acceptance_of_the_one_before() -> None:
    """At one draft length position i is exposed as often as i-1 was accepted."""
    fleet = held(8, 3)
    fleet.advance(10)
    page = fleet.body("p", 0)
    for position in (1, 2):
        exposed = value(page, "tuner:spec_exposed_total", draft_len="3", position=str(position))
        assert exposed == value(page, "tuner:spec_accepted_total", draft_len="3", position=str(position - 1))


def test_a_stock_engine_has_no_plugin() -> None:
    """Without the plugin there are no series of the tuner and no admin API."""
    fleet = Fleet(one_pool(plugin=False), token=TOKEN)
    fleet.advance(10)
    assert "tuner:" not in fleet.body("p", 0)
    assert fleet.get_schedule("p", 0)[0] == 404
    assert fleet.put_schedule("p", 0, b"{}", BEARER)[0] == 404


def test_labels_are_escaped() -> None:
    """A model's name with quotes, a backslash and a percent sign comes back whole."""
    fleet = Fleet(one_pool(model='a"b\\c 50%', pad=True))
    fleet.advance(1)
    families = text_string_to_metric_families(fleet.body("p", 0))
    models = {s.labels.get("model_name") for family in families for s in family.samples}
    assert models == {None, 'a"b\\c 50%'}


def test_gpu_activity_tells_memory_from_compute() -> None:
    """A small batch at K = 0 keeps the memory busy, a large one at K = 4 the tensor pipes."""

    def active(batch: int, draft_len: int) -> tuple[float, float, float]:
        fleet = held(batch, draft_len, CostSpec(per_context_token=0.0))
        fleet.advance(90)
        page = fleet.gpu_body("p", 0)
        tensor = value(page, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")
        return tensor, value(page, "DCGM_FI_PROF_DRAM_ACTIVE"), value(page, "DCGM_FI_DEV_GPU_UTIL")

    tensor, dram, used = active(2, 0)
    assert tensor < 0.15
    assert dram > 0.5
    assert used == 100
    tensor, dram, _ = active(60, 4)
    assert tensor > 0.6
    assert dram < 0.3


def test_an_idle_gpu_is_idle() -> None:
    """An engine that waits most of the time shows a GPU that does."""
    pool = preset("demo").pools[0]
    fleet = Fleet(one_pool(routes=pool.routes, load=LoadSpec(profile="constant", rate=0.05)))
    fleet.advance(120)
    assert value(fleet.gpu_body("p", 0), "DCGM_FI_DEV_GPU_UTIL") < 60
