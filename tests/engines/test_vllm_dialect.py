"""vLLM's schedule dialect: what is written, and what the engine makes of what others wrote."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner._exceptions import ScheduleError
from tuner.engines import Rendered, get_engine
from tuner.fleet import Schedule

VLLM = get_engine("vllm")
VERSION = "0.32.0"
KEY = "num_speculative_tokens_per_batch_size"


def parse(config: object, *, max_batch: int = 64, max_draft_len: int | None = 3) -> Rendered:
    return VLLM.parse(config, max_batch=max_batch, max_draft_len=max_draft_len, version=VERSION)


def render(rows: list[list[int]], *, max_batch: int = 64, max_draft_len: int = 4) -> Rendered:
    schedule = Schedule.from_ranges(rows)
    return VLLM.render(schedule, max_batch=max_batch, max_draft_len=max_draft_len, version=VERSION)


def dense(rendered: Rendered) -> list[int]:
    return [rendered.dense.draft_len_at(b) for b in range(1, rendered.dense.max_batch + 1)]


def notes(rendered: Rendered, *words: str) -> list[str]:
    return [note for note in rendered.notes if note.startswith(words)]


def test_gap_tail_and_clamp_at_every_batch() -> None:
    """[[1,4,4],[9,16,2]] at a maximum of 3: 3 up to batch 8, 2 from there to 64, and each is named."""
    answer = parse([[1, 4, 4], [9, 16, 2]])
    assert dense(answer) == [3] * 8 + [2] * 56
    assert [note.split(":")[0] for note in notes(answer, "clamp", "gap", "tail")] == ["clamp", "gap", "tail"]
    assert "5-8" in notes(answer, "gap")[0]
    assert "17-64" in notes(answer, "tail")[0]


@pytest.mark.parametrize("max_batch", [1, 2, 16, 17, 64])
def test_what_is_written_leaves_nothing_to_the_engine(max_batch: int) -> None:
    """Rows follow each other from 1 to the maximum: no gap, no tail, no clamp, no row beyond."""
    answer = render([[1, 4, 4], [5, 16, 2], [17, 32, 0]], max_batch=max_batch)
    rows = answer.config[KEY]
    assert rows[0][0] == 1
    assert rows[-1][1] == max_batch
    assert all(after[0] == before[1] + 1 for before, after in pairwise(rows))
    again = parse(dict(answer.config), max_batch=max_batch, max_draft_len=None)
    assert not notes(again, "clamp", "gap", "tail", "range")
    assert again.dense == answer.dense


@pytest.mark.parametrize(
    ("rows", "max_draft_len", "message"),
    [
        ([[1, 4, 5]], 4, "clamp it silently"),
        ([[1, 4, 3], [4, 8, 1]], 4, "starts at 4, expected 5"),
        ([[2, 4, 3]], 4, "starts at 2, expected 1"),
        ([[1, 4, 1], [9, 16, 1]], 4, "starts at 9, expected 5"),
        ([[1, 4, 1]], 0, "below 1"),
    ],
)
def test_what_would_mislead_is_not_written(rows: list[list[int]], max_draft_len: int, message: str) -> None:
    """K over the maximum, overlaps, late starts and gaps are refused here, not left to the engine."""
    with pytest.raises(ScheduleError, match=message):
        render(rows, max_draft_len=max_draft_len)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ([], "empty"),
        ([[2, 4, 3]], "start at 1"),
        ([[1, 4, 3], [4, 8, 1]], "overlaps"),
        ([[0, 4, 3]], "above 0"),
        ([[-1, 4, 3]], "above 0"),
        ([[4, 1, 3]], "ends before"),
        ([[1, 4, -1]], "negative"),
        ([[1, 4]], "not \\[start, end, K\\]"),
        ([[1, 4, 1, 2048, 3]], "not \\[start, end, K\\]"),
        (["1-4"], "not \\[start, end, K\\]"),
        ([[1, 4, "three"]], "whole number"),
        ([[1, 4, None]], "whole number"),
        ([[1, 4, float("nan")]], "whole number"),
        ([[1, 4, float("inf")]], "whole number"),
        ({KEY: {"1-16": 3}}, "takes a list"),
        ({"1-16": 3}, "did you mean num_speculative_tokens_per_batch_size: \\[\\[1, 16, K"),
        ({"method": "eagle3", "17+": 0}, "did you mean"),
        ({"num_speculative_tokens": 3, "32": 2}, "range of batch sizes"),
        (
            {"num_speculative_tokens_per_batchsize": [[1, 64, 2]]},
            "did you mean num_speculative_tokens_per_batch",
        ),
        ({"num_speculative_token": 3, "method": "mtp"}, "did you mean num_speculative_tokens\\?"),
        ({"speculative_config": {"metod": "mtp", "num_speculative_tokens": 3}}, "did you mean method"),
        ({"foo": 1}, "no key of a speculative config"),
        ({}, "no key of a speculative config"),
        ({"schedule": [[1, 64, 2]]}, "without --parse"),
        ({"num_speculative_tokens": 0}, "below 1"),
        ({"num_speculative_tokens": "4"}, "whole number"),
        ({"num_speculative_tokens": True}, "whole number"),
        ("eagle", "neither"),
        (None, "neither"),
    ],
)
def test_what_the_engine_refuses_is_refused(config: object, message: str) -> None:
    """A table with which vLLM would not start is an error of one line."""
    with pytest.raises(ScheduleError, match=message) as caught:
        parse(config)
    assert "\n" not in str(caught.value)


def test_rows_are_sorted_and_read_as_whole_numbers() -> None:
    """The engine sorts by start and passes every cell through int: "4", 4.7 and true are numbers to it."""
    answer = parse([["9", 16.9, 1], [True, "8", 2]])
    assert dense(answer) == [2] * 8 + [1] * 56
    assert len(notes(answer, "row")) == 2


def test_rows_beyond_the_maximum_batch_are_cut() -> None:
    """What lies beyond the engine's batch is never used, and says so."""
    answer = parse([[1, 4, 2], [5, 100, 1], [101, 200, 3]], max_batch=8)
    assert dense(answer) == [2] * 4 + [1] * 4
    assert len(notes(answer, "range")) == 2
    assert dense(parse([[1, 4, 2], [100, 200, 3]], max_batch=8)) == [2] * 8


def test_a_config_clamps_at_its_own_maximum() -> None:
    """The number of speculative tokens in the config wins over the one on the command line."""
    config = {"method": "eagle3", "num_speculative_tokens": 2, KEY: [[1, 64, 4]]}
    assert dense(parse(config, max_draft_len=4)) == [2] * 64
    assert dense(parse({"speculative_config": config}, max_draft_len=None)) == [2] * 64


def test_a_config_without_a_table_runs_one_draft_length() -> None:
    """No table: the maximum at every batch size."""
    assert dense(parse({"num_speculative_tokens": 3}, max_draft_len=None)) == [3] * 64


def test_keys_that_say_nothing_about_the_draft_length_are_fine() -> None:
    """Method, model and the like are passed over; a key that is not known at all is noted."""
    config = {"method": "eagle3", "model": "a/b", "prompt_lookup_max": 4, "num_speculative_tokens": 3}
    assert not notes(parse(config), "key")
    answer = parse({**config, "foo": 1})
    assert dense(answer) == [3] * 64
    assert len(notes(answer, "key foo")) == 1


def test_zero_is_annotated_only_where_it_is_used() -> None:
    """K = 0 is not free on this engine, which matters to tables that use it."""
    assert notes(render([[1, 8, 4], [9, 64, 0]]), "K = 0")
    assert not notes(render([[1, 64, 4]]), "K = 0")


def test_keys_that_change_the_draft_length_elsewhere_are_named() -> None:
    """A schedule by sequence length or adaptive verification means the table is not all."""
    config = {
        "num_speculative_tokens": 3, KEY: [[1, 64, 3]],
        "num_speculative_tokens_per_seq_len": [[1, 4096, 3]], "enable_adaptive_verification": True,
    }  # fmt: skip
    text = " ".join(parse(config).notes)
    assert "seq_len" in text
    assert "adaptive" in text


def test_a_bare_table_needs_to_know_where_it_is_clamped() -> None:
    """Without the maximum nobody can say what would run."""
    with pytest.raises(ScheduleError, match="--max-draft-len"):
        parse([[1, 4, 2]], max_draft_len=None)


@pytest.mark.parametrize("max_batch", [0, -1, 10**9])
def test_impossible_batches_are_refused(max_batch: int) -> None:
    """A maximum batch below 1 or beyond reason is an error before anything is built."""
    with pytest.raises(ScheduleError, match="max batch"):
        parse([[1, 4, 2]], max_batch=max_batch)


def engine_lookup(rows: list[tuple[int, int, int]], max_batch: int, highest: int) -> list[int]:
    """Say what runs at each batch, written from the rules alone: the latest row begun so far holds."""
    return [
        min(highest, next(k for first, _, k in sorted(rows, reverse=True) if first <= batch))
        for batch in range(1, max_batch + 1)
    ]


@st.composite
def tables(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Draw a table that vLLM accepts: from 1, no overlap, gaps allowed, any order."""
    rows: list[tuple[int, int, int]] = []
    start = 1
    for gap, width, k in draw(
        st.lists(st.tuples(st.integers(0, 9), st.integers(1, 20), st.integers(0, 8)), min_size=1, max_size=6)
    ):
        first = start + (gap if rows else 0)
        rows.append((first, first + width - 1, k))
        start = first + width
    return draw(st.permutations(rows))


@given(tables(), st.integers(1, 80), st.integers(1, 8))
def test_any_accepted_table_runs_as_the_rules_say(
    rows: list[tuple[int, int, int]], max_batch: int, highest: int
) -> None:
    """Every batch of every table agrees with the rules restated: gap, tail, clamp, cut."""
    answer = parse([list(row) for row in rows], max_batch=max_batch, max_draft_len=highest)
    assert dense(answer) == engine_lookup(rows, max_batch, highest)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=80), st.integers(1, 90))
def test_writing_and_reading_give_the_schedule_back(draft_lens: list[int], max_batch: int) -> None:
    """Render then parse is the schedule, cut or carried on to the engine's maximum batch."""
    schedule = Schedule.from_dense(draft_lens)
    written = VLLM.render(schedule, max_batch=max_batch, max_draft_len=6, version=VERSION)
    read = parse(dict(written.config), max_batch=max_batch, max_draft_len=6)
    expected = (draft_lens + [draft_lens[-1]] * max_batch)[:max_batch]
    assert dense(read) == dense(written) == expected
    assert read.config == written.config


def test_the_json_form_follows_the_contract() -> None:
    """Engine, version, config and the dense truth, batch sizes as strings from "1"."""
    document: dict[str, Any] = render([[1, 2, 4], [3, 4, 0]], max_batch=4).as_dict()
    assert document["engine"] == "vllm"
    assert document["engine_version"] == VERSION
    assert document["config"] == {"num_speculative_tokens": 4, KEY: [[1, 2, 4], [3, 4, 0]]}
    assert document["dense"] == {"1": 4, "2": 4, "3": 0, "4": 0}
