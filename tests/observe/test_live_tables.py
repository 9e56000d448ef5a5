"""Tables that are known to run pin the draft lengths of live windows, from the swap on, while they agree."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tests.observe.bodies import Server
from tests.observe.live_server import INTERVAL, TARGET, live, watch, whole
from tuner.fleet import Schedule, Window

if TYPE_CHECKING:
    from tuner.observe.exposition import TimedScrape

TABLE = Schedule.from_ranges([[1, 8, 4], [9, 32, 2], [33, 64, 1]])
OTHER = Schedule.from_ranges([[1, 64, 1]])
BOTH = frozenset({2, 4})


def mixed(n: int, server: Server | None = None) -> list[TimedScrape]:
    """Scrape an engine whose batch swings over the edge of the table's first row."""
    server = server or Server()
    server.running = 8
    out = [server.scrape()]
    for _ in range(n):
        server.run(INTERVAL / 2, 7, 4)
        server.run(INTERVAL / 2, 9, 2)
        out.append(server.scrape())
    return out


def lens(windows: list[Window]) -> list[frozenset[int] | None]:
    return [window.draft_lens for window in windows]


def test_without_a_table_a_mix_is_unknown() -> None:
    """Nobody said which lengths ran."""
    assert lens(watch(live(), mixed(5), flush=True)) == [None] * 5


def test_a_table_from_the_start_pins_as_a_recording_is_pinned() -> None:
    """Said to run since ever, it is what build_windows takes a table for."""
    scrapes = mixed(6)
    watched = live()
    watched.set_schedule(TARGET, TABLE, -math.inf)
    seen = watch(watched, scrapes, flush=True)
    assert seen == whole(scrapes, schedule=TABLE)
    assert lens(seen) == [BOTH] * 6


def test_a_table_holds_from_two_steps_after_the_swap() -> None:
    """The window in which it came, and one that begins before the second step after, are not pinned."""
    scrapes = mixed(8)
    third = scrapes[3].time
    for since, pinned in ((third - 0.1, 5), (third - 0.05, 4), (third, 4), (third + 1, 4)):
        watched = live()
        watched.set_schedule(TARGET, TABLE, since)
        seen = watch(watched, scrapes, flush=True)
        assert lens(seen) == [None] * (8 - pinned) + [BOTH] * pinned, since


def test_a_window_of_the_table_before_is_read_by_it() -> None:
    """A window that is judged after the next table came is still the old one's."""
    scrapes = mixed(8)
    watched = live()
    watched.set_schedule(TARGET, TABLE, -math.inf)
    seen = watch(watched, scrapes[:5])
    watched.set_schedule(TARGET, None, scrapes[4].time)
    seen += watch(watched, scrapes[5:], flush=True)
    assert lens(seen) == [BOTH] * 4 + [None] * 4


def test_a_contradicted_table_is_not_used_and_is_a_finding() -> None:
    """From the second window that drafts otherwise on nothing is read by the table, and it is told."""
    scrapes = mixed(8)
    watched = live()
    watched.set_schedule(TARGET, OTHER, -math.inf)
    seen = watch(watched, scrapes, flush=True)
    assert lens(seen) == [None] * 8
    (finding,) = watched.findings
    assert (finding.code, finding.severity) == ("ignored", "critical")


def test_saying_so_again_changes_nothing() -> None:
    """Read back every minute, a table holds since it was first told."""
    scrapes = mixed(8)
    watched = live()
    seen: list[Window] = []
    for one in scrapes:
        watched.set_schedule(TARGET, TABLE, one.time)
        seen += watched.add(TARGET, [one]).windows
    assert lens(seen) == [None] + [BOTH] * 6


def test_a_restart_ends_a_table_that_was_set_live() -> None:
    """The engine is back at what it was started with: the table of the start, or an unknown one."""
    for start, after in ((TABLE, BOTH), (None, None)):
        server = Server()
        scrapes = mixed(4, server)
        server.restart()
        scrapes += mixed(4, server)[1:]
        watched = live()
        if start is not None:
            watched.set_schedule(TARGET, start, -math.inf)
        watched.set_schedule(TARGET, Schedule.from_ranges([[1, 8, 4], [9, 64, 2]]), scrapes[1].time - 1)
        seen = watch(watched, scrapes, flush=True)
        assert seen[4].restarts == 1
        assert lens(seen[-3:]) == [after] * 3


def test_tables_of_two_engines_are_apart() -> None:
    """What one engine runs says nothing of another, and a table may be told before the first scrape."""
    watched = live()
    other = TARGET.__class__("p", "f", "http://10.0.0.9:8000/metrics")
    watched.set_schedule(other, TABLE, -math.inf)
    assert lens(watch(watched, mixed(4), flush=True)) == [None] * 4
    assert lens(watch(watched, mixed(4), flush=True, target=other)) == [BOTH] * 4
