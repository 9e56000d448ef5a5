"""A table that is named as having run: used where what was drafted agrees, and nowhere once it is refuted."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from tests.observe.bodies import Server, codes, windows_of
from tests.replay.conftest import RECORDINGS, replay_json
from tuner.fleet import Schedule

if TYPE_CHECKING:
    from tuner.observe.exposition import TimedScrape


def mixed(*pairs: tuple[int, int]) -> list[TimedScrape]:
    """Scrape windows of a load of 8 that drafts two lengths, half of the time each."""
    server = Server()
    server.running = 8
    scrapes = [server.scrape()]
    for first, second in pairs:
        server.run(7.5, 8, first)
        server.run(7.5, 8, second)
        scrapes.append(server.scrape())
    return scrapes


def table(*rows: list[int]) -> Schedule:
    return Schedule.from_ranges(rows)


def test_a_table_that_fits_pins_mixes() -> None:
    """Two draft lengths within the rows that the batch visits: those are what ran."""
    result = windows_of(mixed(*[(4, 2)] * 5), schedule=table([1, 7, 4], [8, 64, 2]))
    assert {window.draft_lens for window in result.windows} == {frozenset({2, 4})}
    assert not codes(result)


def test_a_refuted_table_pins_nothing() -> None:
    """4 and 2 are drafted where the table says 1: no window is filed under 1, and one finding says so."""
    result = windows_of(mixed(*[(4, 2)] * 5), schedule=table([1, 64, 1]))
    assert {window.draft_lens for window in result.windows} == {None}
    assert codes(result) == {"ignored"}


def test_windows_that_happen_to_fit_a_refuted_table_are_not_read_by_it() -> None:
    """Where two windows refute the table, a third that would fit it is no evidence for its draft lengths."""
    scrapes = mixed((4, 2), (4, 2), (1, 2), (1, 2))
    assert {w.draft_lens for w in windows_of(scrapes, schedule=table([1, 7, 1], [8, 64, 2])).windows} == {
        None
    }


def test_a_single_odd_window_is_left_out_alone() -> None:
    """One window may hold a change of the table: it alone is not filed under its draft lengths."""
    scrapes = mixed((4, 2), (4, 2), (1, 1), (4, 2), (4, 2))
    result = windows_of(scrapes, schedule=table([1, 7, 4], [8, 64, 2]))
    assert [window.draft_lens for window in result.windows] == [
        frozenset({2, 4}), frozenset({2, 4}), frozenset({1}), frozenset({2, 4}), frozenset({2, 4}),
    ]  # fmt: skip
    assert "ignored" not in codes(result)
    odd = mixed((4, 2), (4, 2), (1, 0), (4, 2))
    lens = [w.draft_lens for w in windows_of(odd, schedule=table([1, 7, 4], [8, 64, 2])).windows]
    assert lens == [frozenset({2, 4}), frozenset({2, 4}), None, frozenset({2, 4})]


def test_one_mistake_is_one_finding_that_names_both_causes() -> None:
    """Too many drafts in some windows and none in others: one critical, and the table itself is a suspect."""
    server = Server()
    server.running = 8
    scrapes = [server.scrape()]
    for draft_len in (4, 4, 4, 0, 0, 0):
        server.run(15, 8, draft_len)
        scrapes.append(server.scrape())
    critical = [
        f for f in windows_of(scrapes, schedule=table([1, 64, 2])).findings if f.severity == "critical"
    ]
    assert [finding.code for finding in critical] == ["ignored"]
    assert critical[0].evidence["windows"] == 3
    assert critical[0].evidence["windows_without_drafts"] == 3
    assert "another table ran" in critical[0].message
    assert "ignores it" in critical[0].message


def test_a_draft_length_that_changes_is_seen_in_spite_of_a_wrong_table() -> None:
    """A known table explains mixes; a refuted one must not hide a change of the draft length."""
    server = Server()
    server.running = 8
    scrapes = [server.scrape()]
    for first, second in ((4, 4), (4, 4), (4, 2), (2, 2), (2, 2)):
        server.run(7.5, 8, first)
        server.run(7.5, 8, second)
        scrapes.append(server.scrape())
    plain = windows_of(scrapes).windows
    assert plain[2].reason.startswith("draft length changed inside")
    wrong = windows_of(scrapes, schedule=table([1, 64, 1])).windows
    assert [(w.state, w.draft_lens) for w in wrong] == [(w.state, w.draft_lens) for w in plain]
    assert all(a.end == b.start for a, b in pairwise(wrong))


def test_a_wrong_table_changes_no_fit_of_a_recording() -> None:
    """A replay under a table that did not run answers as without one, and says so once."""
    folder = RECORDINGS / "vllm-0.32-cpu-short"
    plain, wrong = replay_json(folder), replay_json(folder, "--schedule", "[[1,8,4],[9,64,2]]")
    for part in ("windows", "acceptance", "step_time", "crossover", "schedule"):
        assert wrong[part] == plain[part], part
    assert [f["code"] for f in wrong["findings"] if f["severity"] == "critical"] == ["ignored"]
