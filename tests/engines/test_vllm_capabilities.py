"""What a version of vLLM can do, and what the way it was started rules out."""

from __future__ import annotations

import pytest

from tuner._exceptions import ScheduleError, UnsupportedError
from tuner.engines import Engine, Setup, engine_names, get_engine
from tuner.fleet import Schedule

VLLM = get_engine("vllm")


@pytest.mark.parametrize(
    ("version", "schedules", "live"),
    [
        ("0.32.0", True, True),
        ("v0.32.1", True, True),
        ("0.32", True, True),
        ("0.33.0rc1", True, True),
        ("0.32.0+cu129", True, True),
        ("0.24.0", True, False),
        ("0.26.1rc1.dev251", True, False),
        ("0.23.0", False, False),
        ("0.8.5.post1", False, False),
    ],
)
def test_capabilities_by_version(version: str, schedules: bool, live: bool) -> None:
    """Tables from 0.24 on, live tables where they were seen to work; K = 0 never harms the drafter."""
    found = VLLM.capabilities(version)
    assert (found.batch_schedule, found.live_schedule, found.zero_harms_drafter) == (schedules, live, False)


@pytest.mark.parametrize(
    "version", ["", "latest", "main", "32", "1.0.0", "9.9.9", "0.99.0", "0,32", "0.32.0 0.33"]
)
def test_an_unknown_version_is_refused(version: str) -> None:
    """What cannot be read, or came after what is known, promises nothing."""
    with pytest.raises(UnsupportedError):
        VLLM.capabilities(version)


def test_a_version_newer_than_what_was_read_says_so() -> None:
    """Two minor versions ahead are trusted with a note, as vLLM warns that long before a removal."""
    assert any("newer than 0.32" in note for note in VLLM.capabilities("0.34.0").notes)
    assert not any("newer than 0.32" in note for note in VLLM.capabilities("0.32.0").notes)


def test_a_version_without_tables_renders_and_parses_nothing() -> None:
    """Both ways are refused with the remedy: one draft length."""
    schedule = Schedule.from_ranges([[1, 4, 1]])
    with pytest.raises(UnsupportedError, match="num_speculative_tokens"):
        VLLM.render(schedule, max_batch=4, max_draft_len=1, version="0.20.0")
    with pytest.raises(UnsupportedError, match="num_speculative_tokens"):
        VLLM.parse([[1, 4, 1]], max_batch=4, max_draft_len=1, version="0.20.0")


@pytest.mark.parametrize(
    ("setup", "codes"),
    [
        (Setup(), set()),
        (Setup(data_parallel=2), {"unsupported_data_parallel"}),
        (Setup(adaptive_verification=True), {"adaptive_verification"}),
        (Setup(started_with_schedule=False), {"started_without_schedule"}),
        (Setup(runner="v1", method="eagle3"), {"graph_mode_piecewise"}),
        (Setup(runner="v2", method="eagle3"), set()),
        (Setup(runner="V2", method="draft_model"), {"draft_cost_constant"}),
        (Setup(runner="v2", method="suffix"), {"graph_mode_piecewise"}),
    ],
)
def test_limits_of_the_way_of_starting(setup: Setup, codes: set[str]) -> None:
    """Each limit is a finding of its own, and an engine of which nothing is known has none."""
    assert {finding.code for finding in VLLM.limits("0.32.0", setup)} == codes


def test_data_parallel_with_a_table_is_unsupported() -> None:
    """The table is dropped silently where ranks run in parallel: said before anything is pushed."""
    (finding,) = VLLM.limits("0.32.0", Setup(data_parallel=2))
    assert finding.severity == "critical"
    assert finding.message.startswith("unsupported: dp>1 with dynamic schedule")


def test_an_old_version_is_limited_first() -> None:
    """The lack of tables comes before what the way of starting adds."""
    found = VLLM.limits("0.20.0", Setup(data_parallel=2))
    assert [finding.code for finding in found] == ["no_batch_schedule", "unsupported_data_parallel"]


def test_engines_are_found_by_their_module() -> None:
    """Every public module of the package is an engine that keeps the contract under its own name."""
    assert "vllm" in engine_names()
    for name in engine_names():
        engine = get_engine(name)
        assert isinstance(engine, Engine)
        assert (engine.name, engine.vocabulary.engine) == (name, name)


@pytest.mark.parametrize("name", ["sglang", "trtllm", "llamacpp", "", "VLLM", "_engine", "../vllm"])
def test_other_engines_are_refused_by_name(name: str) -> None:
    """An engine that is not there yet is one line that says which are."""
    with pytest.raises(UnsupportedError, match="vllm"):
        get_engine(name)


def test_a_refused_engine_is_a_schedule_error() -> None:
    """Callers that handle schedule errors handle these."""
    assert issubclass(UnsupportedError, ScheduleError)


def test_vocabulary_names_are_exact_and_unique() -> None:
    """No name serves two logical metrics: a sample is read for one thing."""
    vocabulary = VLLM.vocabulary
    metrics = [*vocabulary.counters.values(), *vocabulary.gauges.values()]
    names = [name for metric in metrics for name in metric.names]
    assert len(names) == len(set(names))
    assert vocabulary.required <= set(vocabulary.counters)
    assert "vllm:spec_decode_num_drafts_created" in vocabulary.sample_names
    assert "vllm:iteration_tokens_total_created" in vocabulary.sample_names
