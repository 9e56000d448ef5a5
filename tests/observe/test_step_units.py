"""What a build means by a step: events per output or per token, steps counted once or more."""

from __future__ import annotations

import pytest

from tests.observe.bodies import Server, busy, codes, windows_of
from tuner.fleet import WindowState

LATENCY = "inter_token_latency_seconds"


def test_latency_per_output_is_request_steps() -> None:
    """One event per output: the count is request steps, its sum over tokens is time per token."""
    window = windows_of(busy(Server(), draft_len=3)).windows[0]
    assert (window.batch, window.draft_len) == (8, 3)


@pytest.mark.parametrize("draft_len", [0, 1, 2, 4])
def test_latency_per_token_is_never_read_as_request_steps(draft_len: int) -> None:
    """A build with one event per token gives the same batch and draft length as one per output."""
    per_output, per_token = Server(), Server()
    windows = []
    for server in (per_output, per_token):
        server.running = 8
        scrapes = [server.scrape()]
        for k in (2, draft_len, draft_len, draft_len):
            server.run(15, 8, k)
            if server is per_token:
                later = (
                    server.totals["generation_tokens_total"]
                    - server.totals["time_to_first_token_seconds_count"]
                )
                server.totals[f"{LATENCY}_count"] = later
            scrapes.append(server.scrape())
        windows.append(windows_of(scrapes))
    assert "latency_per_token" in codes(windows[1])
    for one, other in zip(windows[0].windows, windows[1].windows, strict=True):
        assert (other.batch, other.draft_len, other.draft_lens) == (one.batch, one.draft_len, one.draft_lens)
        assert other.state is one.state


def test_time_per_token_is_the_same_by_either_unit() -> None:
    """40 s over 2980 tokens after the first ones is 13.4 ms a token in both builds, not 40 ms."""
    for events in (1000, 2980):
        server = Server()
        server.running = 8
        scrapes = [server.scrape()]
        for _ in range(4):
            server.time += 15
            server.add(
                {
                    f"{LATENCY}_sum": 40,
                    f"{LATENCY}_count": events,
                    "generation_tokens_total": 3000,
                    "time_to_first_token_seconds_count": 20,
                    "iteration_tokens_total_count": 125,
                    "iteration_tokens_total_sum": 3600,
                    "spec_decode_num_drafts_total": 1000,
                    "spec_decode_num_draft_tokens_total": 3000,
                    "spec_decode_num_accepted_tokens_total": 1980,
                }
            )
            server.positions = [p + x for p, x in zip(server.positions, (800, 650, 530, 0), strict=True)]
            scrapes.append(server.scrape())
        counts = windows_of(scrapes).windows[0].counts
        assert counts.emitted is not None
        assert counts.request_step_seconds is not None
        per_token = counts.request_step_seconds / (counts.emitted - (counts.first_tokens or 0))
        assert per_token == pytest.approx(0.0134, abs=5e-5)
        assert counts.request_steps == 1000


def test_an_unknown_latency_unit_gives_no_request_steps() -> None:
    """Events that fit neither outputs nor tokens: partial windows and a finding, no guess."""
    server = Server()
    server.running = 8
    scrapes = [server.scrape()]
    for _ in range(4):
        server.run(15, 8, 4)
        server.add({f"{LATENCY}_count": 2000})
        scrapes.append(server.scrape())
    result = windows_of(scrapes)
    assert "latency_unit_unknown" in codes(result)
    assert {window.counts.request_steps for window in result.windows} == {None}


@pytest.mark.parametrize("batch", [2, 8, 40])
def test_steps_counted_by_several_servers_are_set_right(batch: int) -> None:
    """Two API servers count every step twice: batch and step time come from latency sums instead."""
    server = Server(started=None)
    server.running = batch
    scrapes = [server.scrape()]
    for _ in range(5):
        server.run(15, batch, 2)
        server.add({"iteration_tokens_total_count": 300})
        scrapes.append(server.scrape())
    result = windows_of(scrapes)
    assert "steps_inflated" in codes(result)
    assert [window.batch for window in result.windows] == pytest.approx([batch] * 5)
    assert [window.step_seconds for window in result.windows] == pytest.approx([0.05] * 5)


@pytest.mark.parametrize("factor", [1.2, 1.3, 1.5, 1.7])
@pytest.mark.parametrize("batch", [2, 8, 40])
def test_steps_that_some_servers_count_twice_are_set_right(batch: int, factor: float) -> None:
    """Of two API servers often only one has an output to deliver: steps are inflated by less than two."""
    server = Server(started=None)
    server.running = batch
    scrapes = [server.scrape()]
    for _ in range(5):
        server.run(15, batch, 2)
        server.add({"iteration_tokens_total_count": 300 * (factor - 1)})
        scrapes.append(server.scrape())
    result = windows_of(scrapes)
    assert "steps_inflated" in codes(result)
    assert {window.state for window in result.windows} == {WindowState.GOOD}
    assert [window.batch for window in result.windows] == pytest.approx([batch] * 5)


@pytest.mark.parametrize("gauge", ["untold", "restless"])
def test_steps_that_only_look_inflated_are_named(gauge: str) -> None:
    """Without gauges that stand still nothing is set right: the windows are lost, and a finding says why."""
    server = Server(started=None)
    gone = ["num_requests_running"] if gauge == "untold" else []
    scrapes = [server.scrape(without=gone)]
    for i in range(8):
        server.run(15, 8, 2)
        server.add({"iteration_tokens_total_count": 90})
        server.running = (4, 8, 12)[i % 3]
        scrapes.append(server.scrape(without=gone))
    result = windows_of(scrapes)
    assert "steps_maybe_inflated" in codes(result)
    assert "steps_inflated" not in codes(result)
    assert {window.state for window in result.windows} == {WindowState.TRANSITION}


def test_bursts_are_not_taken_for_several_servers() -> None:
    """A batch that swings within every window reads alike, but its gauges do not stand at its mean."""
    server = Server(started=None)
    server.running = 4
    scrapes = [server.scrape()]
    for _ in range(6):
        server.run(2, 40, 2, step_seconds=0.2)
        server.run(2, 4, 2, step_seconds=0.05)
        scrapes.append(server.scrape())
    result = windows_of(scrapes)
    assert "steps_inflated" not in codes(result)
    assert {window.state for window in result.windows} == {WindowState.TRANSITION}


def test_one_process_never_counts_a_step_twice() -> None:
    """A start time is told by a single process only: inter-token and wall time differ for other reasons."""
    server = Server(started=1000.0)
    server.running = 8
    scrapes = [server.scrape()]
    for _ in range(5):
        server.run(15, 8, 2)
        server.add({"iteration_tokens_total_count": 300})
        scrapes.append(server.scrape())
    assert "steps_inflated" not in codes(windows_of(scrapes))
