"""A page that tells of more ranks than an engine has."""

from __future__ import annotations

from itertools import accumulate, repeat
from typing import TYPE_CHECKING

from tests.observe.bodies import Server, scrape
from tests.observe.live_server import INTERVAL, TARGET, live
from tuner.observe.layouts import MOST_RANKS

if TYPE_CHECKING:
    from tuner.observe.live import LiveWindows


def _ranks(names: range, lines: list[str]) -> list[str]:
    """Add ranks with one counter each."""
    return lines + [f'vllm:generation_tokens_total{{engine="{n}",model_name="m"}} {n}' for n in names]


def _told(watched: LiveWindows, *ranks: range) -> set[str]:
    """Return the engines of the windows that scrapes give, one for each range of ranks."""
    server = Server()
    engines = set()
    for more in ranks:
        server.run(INTERVAL, 8, 2)
        told = watched.add(TARGET, [scrape(server.time, _ranks(more, server.lines()))])
        engines |= {window.engine for window in told.windows}
    return engines


def test_ranks_beyond_a_bound_are_not_followed() -> None:
    """Of 500 ranks the first 64 by number give windows, scrape after scrape; a finding says so."""
    watched = live()
    engines = _told(watched, *repeat(range(1, 500), 6))
    assert {name.rpartition("/")[2] for name in engines} <= {str(n) for n in range(MOST_RANKS)}
    assert len(engines) == MOST_RANKS
    (finding,) = [one for one in watched.findings if one.code == "ranks_capped"]
    assert finding.evidence == {"followed": MOST_RANKS, "left_out": 500 - MOST_RANKS}


def test_ranks_that_come_and_go_are_forgotten() -> None:
    """Names that no scrape repeats are not held; the rank that stays is followed throughout."""
    watched = live()
    starts = accumulate(repeat(40, 20), initial=1)
    engines = _told(watched, *(range(start, start + 40) for start in starts))
    assert any(name.endswith("/0") for name in engines)
    (held,) = watched._targets.values()
    assert len(held.groups) <= 2 * MOST_RANKS
    assert "ranks_capped" not in {one.code for one in watched.findings}
