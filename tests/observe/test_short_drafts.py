"""Drafts that a grammar cut short, drafters that propose only what they find: what is said to have run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.observe.bodies import Server, codes, windows_of
from tuner.fleet import Fingerprint, Schedule, WindowState

if TYPE_CHECKING:
    from tuner.observe.exposition import TimedScrape

NGRAM = Fingerprint(engine="vllm", method="ngram")
DRAFT_TOKENS = "spec_decode_num_draft_tokens_total"
DRAFTS = "spec_decode_num_drafts_total"


def cut_short(missing: float, *, draft_len: int = 4, batch: int = 8, windows: int = 5) -> list[TimedScrape]:
    """Scrape a steady load whose drafts miss some tokens each, on average."""
    server = Server()
    server.running = batch
    scrapes = [server.scrape()]
    for _ in range(windows):
        before = server.totals[DRAFTS]
        server.run(15, batch, draft_len)
        server.add({DRAFT_TOKENS: -round(missing * (server.totals[DRAFTS] - before))})
        scrapes.append(server.scrape())
    return scrapes


def silent(share: float, *, draft_len: int = 4) -> list[TimedScrape]:
    """Scrape a load of 8 in which a share of the request steps drafts nothing."""
    server = Server()
    server.running = 8
    scrapes = [server.scrape()]
    for _ in range(5):
        server.run(15 * (1 - share), 8, draft_len)
        server.run(15 * share, 8, 0)
        scrapes.append(server.scrape())
    return scrapes


@pytest.mark.parametrize("missing", [0.001, 0.01, 0.03])
def test_a_few_shortened_drafts_leave_the_draft_length_known(missing: float) -> None:
    """3.97 draft tokens a draft at K = 4 is K = 4: no finding, and nothing called a mix."""
    result = windows_of(cut_short(missing))
    assert {window.draft_lens for window in result.windows} == {frozenset({4})}
    assert {window.state for window in result.windows} == {WindowState.GOOD}
    assert not codes(result)


@pytest.mark.parametrize("missing", [0.04, 0.1, 0.2])
def test_more_shortened_drafts_are_named_with_their_remedy(missing: float) -> None:
    """What ran is then not known; the finding gives the draft tokens per draft and what to do."""
    result = windows_of(cut_short(missing))
    assert {window.draft_lens for window in result.windows} == {None}
    (finding,) = result.findings
    assert finding.code == "drafts_shortened"
    assert finding.evidence["draft_tokens_per_draft"] == pytest.approx(4 - missing, abs=0.001)
    assert "--schedule" in finding.message


def test_drafts_that_miss_too_much_may_as_well_be_a_mix() -> None:
    """At 3.4 of 4 nobody can say whether drafts were cut, lengths took turns or a drafter found less."""
    (finding,) = windows_of(cut_short(0.6)).findings
    assert finding.code == "draft_lens_unknown"
    assert "--schedule" in finding.message
    assert "drafter.method" in finding.message


@pytest.mark.parametrize("missing", [0.04, 0.2, 0.6, 1.2])
def test_a_named_table_tells_the_draft_length_of_shortened_drafts(missing: float) -> None:
    """While the batch stays in one row, its draft length was asked for, however much was cut off."""
    schedule = Schedule.from_ranges([[1, 32, 4], [33, 64, 2]])
    result = windows_of(cut_short(missing), schedule=schedule)
    assert {window.draft_lens for window in result.windows} == {frozenset({4})}
    assert codes(result) == {"drafts_shortened"}


@pytest.mark.parametrize(("before", "after"), [(3, 4), (4, 3), (2, 4), (4, 2)])
def test_a_change_in_the_first_or_last_steps_of_a_window_is_no_shortening(before: int, after: int) -> None:
    """A few steps of another draft length beside a neighbour that runs it: a transition, as any change."""
    server = Server()
    server.running = 8
    scrapes = [server.scrape()]
    for seconds in (15.0, 15.0, 14.9):
        server.run(seconds, 8, before)
        scrapes.append(server.scrape())
    server.time -= 0.1
    scrapes.pop()
    server.run(0.2, 8, after)
    scrapes.append(server.scrape())
    for _ in range(3):
        server.run(15, 8, after)
        scrapes.append(server.scrape())
    windows = windows_of(scrapes).windows
    assert [w.state for w in windows].count(WindowState.GOOD) == len(windows) - 1
    assert windows[2].state is WindowState.TRANSITION
    assert "draft length changed" in windows[2].reason


@pytest.mark.parametrize("share", [0.2, 0.6])
def test_silent_steps_of_an_optional_drafter_are_no_other_draft_length(share: float) -> None:
    """An n-gram drafter was asked for 4 in every step, whichever of them it found nothing in."""
    result = windows_of(silent(share), fingerprint=NGRAM)
    assert {window.draft_lens for window in result.windows} == {frozenset({4})}
    assert {window.state for window in result.windows} == {WindowState.GOOD}


def test_an_optional_drafter_is_asked_for_what_its_table_says() -> None:
    """It proposes 2.5 of 4 tokens on average: the table's row tells what it was asked for, and stands."""
    schedule = Schedule.from_ranges([[1, 64, 4]])
    result = windows_of(cut_short(1.5), schedule=schedule, fingerprint=NGRAM)
    assert {window.draft_lens for window in result.windows} == {frozenset({4})}
    assert codes(result) == {"optional_proposals"}


def test_an_optional_drafter_that_found_nothing_does_not_refute_its_table() -> None:
    """Windows without a single match are how such a drafter is, not a table that was ignored."""
    schedule = Schedule.from_ranges([[1, 64, 4]])
    result = windows_of(cut_short(0, draft_len=0), schedule=schedule, fingerprint=NGRAM)
    assert codes(result) == {"optional_proposals"}
