"""Windows: what each state means, told by counters of known origin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.observe.bodies import PER_POSITION, Server, codes, scrape, windows_of
from tuner.fleet import Schedule, WindowState

if TYPE_CHECKING:
    from tuner.fleet import Window
    from tuner.observe.exposition import TimedScrape

GOOD, IDLE, PARTIAL = WindowState.GOOD, WindowState.IDLE, WindowState.PARTIAL
SUSPECT, TRANSITION = WindowState.SUSPECT, WindowState.TRANSITION


def serve(*cells: tuple[float, int], windows: int = 4) -> tuple[list[TimedScrape], Server]:
    """Scrape a server every 4 s through cells of (batch, draft length)."""
    server = Server()
    server.running = cells[0][0]
    scrapes = [server.scrape()]
    for batch, draft_len in cells:
        for _ in range(windows):
            server.run(4, batch, draft_len)
            scrapes.append(server.scrape())
    return scrapes, server


def states(windows: tuple[Window, ...]) -> list[WindowState]:
    return [window.state for window in windows]


def test_a_steady_window_tells_what_was_served() -> None:
    """Batch, draft length, step time and tokens come back as they were served."""
    scrapes, _ = serve((8, 2))
    result = windows_of(scrapes)
    assert states(result.windows) == [GOOD] * 4
    assert not codes(result)
    window = result.windows[0]
    assert (window.batch, window.draft_len, window.step_seconds) == (8, 2, 0.05)
    assert window.draft_lens == frozenset({2})
    assert (window.pool, window.engine, window.fingerprint.model) == ("m", "0", "m")
    assert list(window.counts.accepted_by_position) == [512, 369, 0, 0]
    counts = window.counts
    assert counts.emitted is not None
    assert counts.request_steps is not None
    assert counts.emitted - (counts.first_tokens or 0) == counts.request_steps + (counts.accepted or 0)


def test_a_window_without_speculation_is_pure_zero() -> None:
    """K = 0 throughout: no draft, an empty set of draft lengths, still a good window."""
    scrapes, _ = serve((8, 0))
    window = windows_of(scrapes).windows[0]
    assert (window.state, window.draft_len, window.draft_lens) == (GOOD, 0, frozenset())


@pytest.mark.parametrize(("before", "after"), [(3, 4), (4, 3), (0, 2), (2, 0), (1, 4), (2, 4)])
def test_a_change_of_draft_length_inside_a_window_is_a_transition(before: int, after: int) -> None:
    """A window that holds both draft lengths is no evidence on either, its neighbours are."""
    scrapes, server = serve((8, before))
    server.run(1.6, 8, before)
    server.run(2.4, 8, after)
    scrapes.append(server.scrape())
    for _ in range(4):
        server.run(4, 8, after)
        scrapes.append(server.scrape())
    windows = windows_of(scrapes).windows
    assert states(windows) == [GOOD] * 4 + [TRANSITION] + [GOOD] * 4
    assert windows[4].draft_lens is None


def test_a_mix_that_averages_to_a_whole_number_is_seen_through() -> None:
    """Half the steps at 1 and half at 3 make 2 on average: acceptance at position 2 gives it away."""
    server = Server()
    server.running = 8
    scrapes = [server.scrape()]
    for _ in range(4):
        server.run(2, 8, 1)
        server.run(2, 8, 3)
        scrapes.append(server.scrape())
    windows = windows_of(scrapes).windows
    assert [window.draft_len for window in windows] == [2.0] * 4
    assert [window.draft_lens for window in windows] == [None] * 4


def test_a_change_of_draft_length_at_a_scrape_is_a_transition() -> None:
    """The first window after a change may hold the tail of the old one, even if its numbers are pure."""
    scrapes, _ = serve((8, 2), (8, 3))
    assert states(windows_of(scrapes).windows) == [GOOD] * 4 + [TRANSITION] + [GOOD] * 3


def test_a_lasting_mix_is_evidence_of_unknown_draft_lengths() -> None:
    """Under a table that flaps between rows every window is a mix: good, its draft lengths unknown."""
    server = Server()
    server.running = 8
    scrapes = [server.scrape()]
    for _ in range(5):
        server.run(2, 8, 2)
        server.run(2, 8, 4)
        scrapes.append(server.scrape())
    result = windows_of(scrapes)
    assert states(result.windows) == [GOOD] * 5
    assert {window.draft_lens for window in result.windows} == {None}


def test_a_known_schedule_names_the_draft_lengths_of_a_mix() -> None:
    """With the table that ran, a mix is told by the rows that the batch can have visited."""
    server = Server()
    server.running = 8
    scrapes = [server.scrape()]
    for _ in range(5):
        server.run(2, 7, 4)
        server.run(2, 9, 2)
        scrapes.append(server.scrape())
    schedule = Schedule.from_ranges([[1, 8, 4], [9, 32, 2], [33, 64, 1]])
    result = windows_of(scrapes, schedule=schedule)
    assert {window.draft_lens for window in result.windows} == {frozenset({2, 4})}
    assert not codes(result)


@pytest.mark.parametrize(("low", "high"), [(8, 16), (16, 8), (2, 60), (60, 2), (16, 20), (1, 2)])
def test_a_change_of_load_inside_a_window_is_a_transition(low: int, high: int) -> None:
    """The window in which the batch moved is dropped; those that ended before or began after stay."""
    scrapes, server = serve((low, 2))
    server.run(1.2, low, 2)
    server.run(2.8, high, 2)
    scrapes.append(server.scrape())
    for _ in range(4):
        server.run(4, high, 2)
        scrapes.append(server.scrape())
    assert states(windows_of(scrapes).windows) == [GOOD] * 4 + [TRANSITION] + [GOOD] * 4


def test_load_that_begins_or_ends_inside_a_window_is_a_transition() -> None:
    """From an idle engine to a busy one and back: the windows that hold the edges are dropped."""
    server = Server()
    scrapes = [server.scrape()]
    for batch in (0, 8, 8, 8, 0):
        if batch:
            server.run(4, batch, 2)
        else:
            server.time += 4
            server.running = 0
        scrapes.append(server.scrape())
    assert states(windows_of(scrapes).windows) == [IDLE, TRANSITION, GOOD, GOOD, IDLE]


def test_prefills_alone_do_not_drop_a_window() -> None:
    """Prompt tokens are part of a step's work, not a fault: they are counted and the window is good."""
    server = Server()
    server.running = 8
    scrapes = [server.scrape()]
    for _ in range(4):
        server.run(4, 8, 2)
        server.add({"iteration_tokens_total_sum": 5000, "prompt_tokens_total": 5000})
        scrapes.append(server.scrape())
    windows = windows_of(scrapes).windows
    assert states(windows) == [GOOD] * 4
    assert all((window.counts.prompt_tokens or 0) > 5000 for window in windows)


def test_prompt_tokens_are_those_computed() -> None:
    """A prefix cache hit costs nothing: step tokens less emitted ones tell what was computed."""
    scrapes, server = serve((8, 2))
    server.run(4, 8, 2)
    server.add({"prompt_tokens_total": 7000})
    scrapes.append(server.scrape())
    windows = windows_of(scrapes).windows
    assert windows[-1].counts.prompt_tokens == windows[0].counts.prompt_tokens


def test_preempted_windows_are_partial() -> None:
    """A preempted request waits between two outputs: its interval is no step time."""
    scrapes, server = serve((8, 2))
    server.run(4, 8, 2)
    server.add({"num_preemptions_total": 2})
    scrapes.append(server.scrape())
    last = windows_of(scrapes).windows[-1]
    assert (last.state, last.reason) == (PARTIAL, "2 preemptions")


def test_an_engine_idle_for_part_of_a_window_is_not_timed() -> None:
    """Wall time per step of an engine that waited is no step time: a third of the window was idle."""
    server = Server()
    server.running = 1
    scrapes = [server.scrape()]
    for _ in range(4):
        server.run(4, 1, 2)
        server.time += 2
        scrapes.append(server.scrape())
    assert states(windows_of(scrapes).windows) == [IDLE] * 4


def test_a_batch_in_motion_is_seen_by_its_weights() -> None:
    """The batch falls slowly through a window: the batch-weighted step time leaves wall time behind."""
    server = Server()
    server.running = 40
    scrapes = [server.scrape()]
    for _ in range(3):
        server.run(2, 40, 2, step_seconds=0.2)
        server.run(2, 4, 2, step_seconds=0.05)
        scrapes.append(server.scrape())
    windows = windows_of(scrapes).windows
    assert states(windows) == [TRANSITION] * 3
    assert "wall time per step" in windows[0].reason


def test_a_short_scrape_gap_is_one_longer_window() -> None:
    """After a pause of three intervals there is one window with its true length, not three."""
    scrapes, server = serve((8, 2))
    server.run(12, 8, 2)
    scrapes.append(server.scrape())
    last = windows_of(scrapes).windows[-1]
    assert (last.state, last.seconds, last.batch) == (GOOD, 12, 8)
    assert last.tokens_per_second == pytest.approx(windows_of(scrapes).windows[0].tokens_per_second)


def test_a_long_scrape_gap_is_partial() -> None:
    """Nobody knows what an hour without scrapes held: it is no window to fit."""
    scrapes, server = serve((8, 2))
    server.run(3600, 8, 2)
    scrapes.append(server.scrape())
    last = windows_of(scrapes).windows[-1]
    assert last.state is PARTIAL
    assert "scrape gap" in last.reason


def test_missing_families_make_a_window_partial() -> None:
    """Without the latency count nothing says how many request steps there were."""
    server = Server()
    server.running = 8
    scrapes = []
    for _ in range(5):
        scrapes.append(server.scrape(without=["inter_token_latency_seconds_count"]))
        server.run(4, 8, 2)
    result = windows_of(scrapes)
    assert states(result.windows) == [PARTIAL] * 4
    assert "request_steps" in result.windows[0].reason
    (finding,) = result.findings
    assert finding.code == "metric_missing"
    assert "vllm:inter_token_latency_seconds_count" in finding.evidence["tried"]


def test_positions_that_do_not_add_up_are_suspect() -> None:
    """Accepted by position and in all disagree: the window is inconsistent and not fitted."""
    scrapes, server = serve((8, 2))
    server.run(4, 8, 2)
    server.positions[0] -= 5
    scrapes.append(server.scrape())
    last = windows_of(scrapes).windows[-1]
    assert last.state is SUSPECT
    assert last.reason.startswith("inconsistent")


@pytest.mark.parametrize(
    "amounts",
    [
        {"spec_decode_num_draft_tokens_total": -1000},
        {"spec_decode_num_drafts_total": 5000},
        {"spec_decode_num_drafts_total": 100},
        {"spec_decode_num_drafts_total": -200},
        {"iteration_tokens_total_count": -80},
        {"generation_tokens_total": 1000},
        {"generation_tokens_total": -1060},
    ],
)
def test_impossible_counts_are_suspect_and_never_clamped(amounts: dict[str, float]) -> None:
    """More accepted than drafted, more drafts than steps, a position above its drafts."""
    scrapes, server = serve((8, 2))
    server.run(4, 8, 2)
    server.add(amounts)
    scrapes.append(server.scrape())
    result = windows_of(scrapes)
    assert states(result.windows)[-1] is SUSPECT
    assert "counters_inconsistent" in codes(result)


@pytest.mark.parametrize("text", ["NaN", "+Inf", "-3", "1e15", "9.1e15"])
def test_impossible_values_are_quarantined(text: str) -> None:
    """NaN, infinite, negative and absurd counters: suspect windows, a finding, no number."""
    scrapes, server = serve((8, 2))
    server.run(4, 8, 2)
    name = "vllm:spec_decode_num_drafts_total"
    lines = [f"{line.rsplit(' ', 1)[0]} {text}" if line.startswith(name) else line for line in server.lines()]
    scrapes.append(scrape(server.time, lines))
    result = windows_of(scrapes)
    assert states(result.windows) == [GOOD] * 4 + [SUSPECT]
    assert result.windows[-1].counts.drafts is None
    assert "impossible_value" in codes(result)


def test_a_window_of_prefills_alone_is_idle() -> None:
    """Prompts were read and first tokens came, but nothing was decoded: nothing to time a step by."""
    server = Server()
    scrapes = []
    for _ in range(3):
        scrapes.append(server.scrape())
        server.time += 4
        server.add(
            {
                "iteration_tokens_total_count": 5,
                "iteration_tokens_total_sum": 5005,
                "generation_tokens_total": 5,
                "time_to_first_token_seconds_count": 5,
            }
        )
    assert states(windows_of(scrapes).windows) == [IDLE] * 2


def test_holes_between_positions_are_suspect() -> None:
    """Positions 0, 2, 3 without 1: no profile can be read off them."""
    server = Server()
    server.running = 8
    scrapes = []
    for _ in range(3):
        lines = [line for line in server.lines() if 'position="1"' not in line]
        scrapes.append(scrape(server.time, lines))
        server.run(4, 8, 2)
    assert states(windows_of(scrapes).windows) == [SUSPECT] * 2


def test_positions_are_sorted_as_numbers() -> None:
    """Position 10 comes after 9, not after 1."""
    server = Server(max_draft_len=12)
    server.running = 8
    first = server.scrape()
    server.run(4, 8, 4)
    server.positions = [float(100 - i) for i in range(12)]
    server.totals["spec_decode_num_accepted_tokens_total"] = sum(server.positions)
    window = windows_of([first, server.scrape()]).windows[0]
    assert window.counts.accepted_by_position == tuple(float(100 - i) for i in range(12))


def test_kv_tokens_are_usage_times_capacity() -> None:
    """Context tokens held come from the usage gauge and the capacity in the info metric."""
    server = Server()
    info = 'vllm:cache_config_info{engine="0",kv_cache_size_tokens="102272",cache_dtype="fp8"} 1'
    first = scrape(server.time, [*server.lines(), info])
    server.run(4, 8, 2)
    window = windows_of([first, scrape(server.time, [*server.lines(), info])]).windows[0]
    assert (window.gauges.kv_tokens, window.fingerprint.kv_cache_dtype) == (25568, "fp8")


def test_windows_do_not_depend_on_the_order_of_scrapes() -> None:
    """Scrapes handed over in any order are the same evidence; a time told twice is used once."""
    scrapes, _ = serve((8, 2))
    result = windows_of([*reversed(scrapes), scrapes[1]])
    assert result.windows == windows_of(scrapes).windows
    assert codes(result) == {"scrape_time_repeated"}


def test_a_spec_family_without_positions_is_partial() -> None:
    """Totals alone do not give acceptance by position."""
    server = Server()
    server.running = 8
    scrapes = []
    for _ in range(3):
        scrapes.append(server.scrape(without=[PER_POSITION]))
        server.run(4, 8, 2)
    assert states(windows_of(scrapes).windows) == [PARTIAL] * 2
