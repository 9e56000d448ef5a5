"""What an engine's windows give away: restarts, ranks, units, names, stuck gauges, ignored tables."""

from __future__ import annotations

import pytest

from tests.observe.bodies import HAZARDS, VOCABULARY, Server, busy, codes, scrape, windows_of
from tuner._exceptions import ExpositionError
from tuner.fleet import Fingerprint, Schedule, WindowState
from tuner.observe.exposition import TimedScrape, parse

LATENCY = "inter_token_latency_seconds"
SPECULATION = [
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "spec_decode_num_accepted_tokens_per_pos_total",
]


def test_a_restart_hidden_in_a_sum_is_found() -> None:
    """Two ranks, one restarted: 2630 accepted in 1250 drafts is 2.104 a draft, where sums say 0.52."""

    def lines(values: dict[str, tuple[int, int]]) -> list[str]:
        return [
            line
            for rank, (drafts, accepted) in values.items()
            for line in (
                f'vllm:spec_decode_num_drafts_total{{engine="{rank}"}} {drafts}',
                f'vllm:spec_decode_num_accepted_tokens_total{{engine="{rank}"}} {accepted}',
            )
        ]

    result = windows_of(
        [
            scrape(0, lines({"0": (1000, 2000), "1": (1000, 2500)})),
            scrape(15, lines({"0": (2200, 4520), "1": (50, 110)})),
        ]
    )
    drafts = sum(window.counts.drafts or 0 for window in result.windows)
    accepted = sum(window.counts.accepted or 0 for window in result.windows)
    assert (drafts, accepted, accepted / drafts) == (1250, 2630, 2.104)
    restarts = [finding for finding in result.findings if finding.code == "engine_restart"]
    assert [finding.subject["engine"] for finding in restarts] == ["1"]


def test_the_window_of_a_restart_is_partial_and_the_next_is_good() -> None:
    """Since when the new process counts is not known, so its first window is not fitted."""
    server = Server()
    scrapes = busy(server, 4)
    server.restart()
    server.run(10, 8, 2)
    scrapes.append(server.scrape())
    scrapes += busy(server, 3)[1:]
    states = [window.state for window in windows_of(scrapes).windows]
    assert states == [WindowState.GOOD] * 4 + [WindowState.PARTIAL] + [WindowState.GOOD] * 3


def test_a_clock_set_back_is_named_and_its_window_left_out() -> None:
    """The times of scrapes step back by ten minutes half-way: no restart, one window lost, one finding."""
    server = Server()
    scrapes = busy(server, 6)
    server.time -= 600
    scrapes += [TimedScrape(one.time, one.result) for one in busy(server, 6)[1:]]
    result = windows_of(scrapes)
    states = [window.state for window in result.windows]
    assert (states.count(WindowState.PARTIAL), states.count(WindowState.GOOD)) == (1, 11)
    assert codes(result) == {"counters_went_back"}
    assert {window.restarts for window in result.windows} == {0}


def test_an_older_body_served_again_costs_the_windows_it_touches() -> None:
    """The body of an interval ago comes again 0.8 s after a newer one: both sides of it are left out."""
    server = Server()
    scrapes = busy(server, 6)
    stale = TimedScrape(scrapes[3].time + 0.8, scrapes[2].result)
    result = windows_of([*scrapes, stale])
    states = [window.state for window in result.windows]
    good, partial = WindowState.GOOD, WindowState.PARTIAL
    assert states == [good, good, good, partial, partial, good, good]
    assert codes(result) == {"counter_interleaved"}


def test_ranks_are_engines_of_their_own_and_add_up() -> None:
    """Position 0 of two ranks: 7 of 10 and 21 of 30 are 28 of 40, not the last one over the sum."""

    def lines(scale: int) -> list[str]:
        name = "vllm:spec_decode_num"
        return [
            f'{name}_drafts_total{{engine="0"}} {10 * scale}',
            f'{name}_drafts_total{{engine="1"}} {30 * scale}',
            f'{name}_accepted_tokens_total{{engine="0"}} {7 * scale}',
            f'{name}_accepted_tokens_total{{engine="1"}} {21 * scale}',
            f'{name}_accepted_tokens_per_pos_total{{engine="0",position="0"}} {7 * scale}',
            f'{name}_accepted_tokens_per_pos_total{{engine="1",position="0"}} {21 * scale}',
        ]

    windows = windows_of([scrape(0, lines(0)), scrape(15, lines(1))]).windows
    assert [window.engine for window in windows] == ["0", "1"]
    assert [window.counts.accepted_by_position for window in windows] == [(7,), (21,)]
    drafts = sum(window.counts.drafts or 0 for window in windows)
    first = sum(window.counts.accepted_by_position[0] for window in windows)
    assert first / drafts == 0.70


def test_two_models_in_one_body_are_two_pools() -> None:
    """Each model gets windows of its own, named after it."""
    a, b = Server(model="a"), Server(model="b")
    scrapes = []
    for _ in range(3):
        scrapes.append(scrape(a.time, [*a.lines(), *(x for x in b.lines() if "process" not in x)]))
        a.run(15, 8, 2)
        b.run(15, 4, 3)
    result = windows_of(scrapes)
    assert {(w.pool, w.batch, w.draft_len) for w in result.windows} == {("a", 8, 2), ("b", 4, 3)}


def test_no_body_no_family_and_no_traffic_are_three_outcomes() -> None:
    """An empty body is invalid, a server before its first request and an idle one are idle: none is 0 %."""
    with pytest.raises(ExpositionError):
        parse("", wanted=VOCABULARY.sample_names)
    empty = windows_of(
        [TimedScrape(15.0 * i, ExpositionError("body is empty", reason="empty")) for i in range(3)]
    )
    assert (empty.windows, codes(empty)) == ((), {"scrape_invalid"})
    assert empty.findings[0].evidence["reasons"] == {"empty": 3}
    early = windows_of([scrape(15.0 * i, ['vllm:num_requests_running{model_name="m"} 0']) for i in range(5)])
    assert {window.state for window in early.windows} == {WindowState.IDLE}
    assert not codes(early)
    server = Server()
    idle = windows_of([TimedScrape(server.time + 15 * i, server.scrape().result) for i in range(5)])
    assert {window.state for window in idle.windows} == {WindowState.IDLE}
    assert not codes(idle)


def test_metrics_of_something_else_are_named() -> None:
    """Scrapes of another exporter hold metrics, none of them the engine's: that is said, with their names."""
    lines = ["process_start_time_seconds 1", "python_info 1", 'node_load1{cpu="0"} 1', "sglang:num_running 2"]
    result = windows_of([scrape(15.0 * i, lines) for i in range(3)])
    (finding,) = result.findings
    assert (finding.code, finding.severity) == ("engine_metrics_absent", "critical")
    assert "3 scrapes" in finding.message
    assert finding.evidence["names"] == ["node_load1", "sglang:num_running"]
    (bare,) = windows_of([scrape(0, lines[:2])]).findings
    assert "nothing but a process' own metrics" in bare.message


def test_traffic_without_speculation_counters_is_not_observed() -> None:
    """Requests finish and nothing is told of speculation: said once, after enough windows, no 0 %."""
    result = windows_of(busy(Server(), without=SPECULATION))
    assert codes(result) == {"speculation_not_observed"}
    assert {window.state for window in result.windows} == {WindowState.PARTIAL}
    assert "not observed" in result.windows[0].reason
    assert not codes(windows_of(busy(Server(), 2, without=SPECULATION)))


def test_a_stuck_gauge_is_no_batch() -> None:
    """106 running and no token in a minute: the batch is unknown, and a finding says so."""
    server = Server()
    server.run(15, 106, 2)
    scrapes = []
    for _ in range(5):
        scrapes.append(server.scrape())
        server.time += 15
    result = windows_of(scrapes)
    assert {window.state for window in result.windows} == {WindowState.SUSPECT}
    assert {window.gauges.running for window in result.windows} == {None}
    assert codes(result) == {"stuck_or_stale_gauge"}
    assert not codes(windows_of(scrapes[:3]))


def rename(scrapes_of: Server, old: str, new: str, *, keep: bool = False) -> TimedScrape:
    lines = scrapes_of.lines()
    changed = [line.replace(old, new) for line in lines if old in line]
    return scrape(scrapes_of.time, [line for line in lines if keep or old not in line] + changed)


@pytest.mark.parametrize("prefix", ["vllm_", "ray_vllm_", "ray_vllm:"])
def test_ray_spellings_are_the_same_metrics(prefix: str) -> None:
    """Ray Serve turns the colon into an underscore and may put its own prefix in front."""
    server = Server()
    server.running = 8
    scrapes = [rename(server, "vllm:", prefix)]
    for _ in range(3):
        server.run(15, 8, 2)
        scrapes.append(rename(server, "vllm:", prefix))
    result = windows_of(scrapes)
    assert [(window.batch, window.draft_len) for window in result.windows] == [(8, 2)] * 3
    assert result.findings == ()


def test_aliases_are_never_added_up() -> None:
    """Old and new name side by side tell one thing: 0.42 is 0.42, and tokens are not doubled."""
    old, new = "gpu_cache_usage_perc", "kv_cache_usage_perc"
    for keep in (False, True):
        server = Server()
        server.running = 8
        first = rename(server, new, old, keep=keep)
        server.run(15, 8, 2)
        window = windows_of([first, rename(server, new, old, keep=keep)]).windows[0]
        assert window.gauges.kv_usage == 0.25
    server = Server()
    server.running = 8
    scrapes = []
    for _ in range(3):
        scrapes.append(rename(server, LATENCY, "time_per_output_token_seconds", keep=True))
        server.run(15, 8, 2)
    assert windows_of(scrapes).windows[0].batch == 8


def test_a_change_of_alias_is_a_new_series() -> None:
    """Through a rolling upgrade the count moves to another name: no delta is carried across."""
    old = "time_per_output_token_seconds"
    server = Server()
    server.running = 8
    scrapes = [rename(server, LATENCY, old)]
    for i in range(4):
        server.run(15, 8, 2)
        scrapes.append(server.scrape() if i > 1 else rename(server, LATENCY, old))
    result = windows_of(scrapes)
    assert [w.state for w in result.windows] == [
        WindowState.GOOD,
        WindowState.GOOD,
        WindowState.PARTIAL,
        WindowState.GOOD,
    ]
    assert "alias_changed" in codes(result)
    assert "engine_restart" not in codes(result)


def test_an_optional_drafter_runs_what_it_was_asked_for() -> None:
    """400 draft tokens in 100 drafts of n-grams may hold padding: 4 was asked for, no more is said."""
    ngram = Fingerprint(engine="vllm", method="ngram")
    result = windows_of(busy(Server(), draft_len=4), fingerprint=ngram)
    assert {window.draft_lens for window in result.windows} == {frozenset({4})}
    assert {window.state for window in result.windows} == {WindowState.GOOD}
    assert result.windows[0].emitted_per_step == pytest.approx(
        1 + sum(HAZARDS[0] * x for x in (1, 0.72, 0.72 * 0.66, 0.72 * 0.66 * 0.60)), abs=1e-3
    )
    assert "optional_proposals" in codes(result)


def test_a_drafter_that_stays_silent_is_a_mix() -> None:
    """Where a part of the request steps drafts nothing, the draft length is not one number."""
    server = Server()
    server.running = 8
    scrapes = [server.scrape()]
    for _ in range(4):
        server.run(15, 8, 3)
        silent = {"spec_decode_num_drafts_total": -300, "spec_decode_num_draft_tokens_total": -900}
        server.add(silent)
        server.positions[0] -= 300
        server.add({"spec_decode_num_accepted_tokens_total": -300, "generation_tokens_total": -300})
        scrapes.append(server.scrape())
    result = windows_of(scrapes)
    assert {window.draft_lens for window in result.windows} == {None}
    assert {window.state for window in result.windows} == {WindowState.GOOD}


def test_a_schedule_that_is_not_drafted_is_ignored() -> None:
    """The table says 1 and 4 are drafted: critical, and no window is filed under 1."""
    schedule = Schedule.from_ranges([[1, 4, 4], [5, 64, 1]])
    server = Server()
    result = windows_of(busy(server, draft_len=4), schedule=schedule)
    found = {finding.code: finding for finding in result.findings}
    assert found["ignored"].severity == "critical"
    assert found["ignored"].evidence["drafted"] == 4
    assert {window.draft_lens for window in result.windows} == {frozenset({4})}


def test_a_schedule_that_drafts_nothing_is_inactive() -> None:
    """The table says 3, tokens flow and no draft is verified: speculation is inactive, K = 3 is not slow."""
    schedule = Schedule.from_ranges([[1, 64, 3]])
    result = windows_of(busy(Server(), draft_len=0), schedule=schedule)
    found = {finding.code: finding.severity for finding in result.findings}
    assert found == {"speculation_inactive": "critical"}
    assert {window.draft_lens for window in result.windows} == {frozenset()}


@pytest.mark.parametrize("rows", [[[1, 64, 2]], [[1, 4, 4], [5, 64, 2]], [[1, 7, 3], [8, 8, 2], [9, 64, 1]]])
def test_a_schedule_that_is_followed_raises_nothing(rows: list[list[int]]) -> None:
    """Between the draft lengths of the rows that the batch visits, no finding."""
    assert not codes(windows_of(busy(Server(), draft_len=2), schedule=Schedule.from_ranges(rows)))


def test_no_draft_at_all_without_a_schedule_is_only_information() -> None:
    """Nobody said what to draft: nothing drafted may be the table's will."""
    found = {f.code: f.severity for f in windows_of(busy(Server(), draft_len=0)).findings}
    assert found == {"speculation_inactive": "info"}


def test_a_server_that_wakes_between_two_scrapes_counts_from_its_birth() -> None:
    """Series created four seconds in bring all 400 and 120; created hours before, or unknown when, 120."""
    name = "vllm:spec_decode_num_drafts"
    for created, expected in ((4.0, 520), (-10800.0, 120), (None, 120)):
        birth = [] if created is None else [f"{name}_created {created}"]
        scrapes = [
            scrape(0, ["other 1"]),
            scrape(15, [f"{name}_total 400", *birth]),
            scrape(30, [f"{name}_total 520", *birth]),
        ]
        windows = windows_of(scrapes).windows
        assert sum(window.counts.drafts or 0 for window in windows) == expected
        assert all(window.state is not WindowState.GOOD for window in windows)


def test_two_readings_of_one_counter_are_no_restart() -> None:
    """A scrape that saw older values keeps the maximum, and is reported."""
    server = Server(started=None)
    scrapes = busy(server, 4)
    older = scrapes[-2].result
    scrapes.append(TimedScrape(server.time + 0.1, older))
    server.run(15, 8, 2)
    scrapes.append(server.scrape())
    result = windows_of(scrapes)
    assert "engine_restart" not in codes(result)
    assert "counter_interleaved" in codes(result)
    emitted = sum(window.counts.emitted or 0 for window in result.windows)
    assert emitted == server.totals["generation_tokens_total"]


def test_a_series_that_contradicts_itself_spoils_its_windows_only() -> None:
    """Two values for one series in one body: that series is missing there, and the window is partial."""
    server = Server()
    scrapes = busy(server, 3)
    server.run(15, 8, 2)
    extra = f"vllm:generation_tokens_total{{{server.labels}}} 1"
    scrapes.append(scrape(server.time, [*server.lines(), extra]))
    result = windows_of(scrapes)
    assert [window.state for window in result.windows] == [WindowState.GOOD] * 3 + [WindowState.PARTIAL]
    assert "series_contradicted" in codes(result)
