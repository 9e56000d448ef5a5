"""Scrape series of all kinds for live observation, and the windows that they must give."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

from tests.observe.bodies import VOCABULARY, Server, scrape
from tuner._exceptions import ExpositionError
from tuner.fleet import Fingerprint, Target, Window, WindowState
from tuner.observe.exposition import Scrape, SeriesKey, TimedScrape
from tuner.observe.live import LiveWindows
from tuner.observe.windows import build_windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.fleet import Schedule

INTERVAL = 15.0
TARGET = Target("p", "e", "http://10.0.0.1:8000/metrics")
KNOWN = Fingerprint(engine="vllm")
Kind = Literal["good", "restart", "older", "failed", "gap", "nan", "twice", "back", "forward", "load", "idle"]


class Event(NamedTuple):
    """What happens in one interval."""

    kind: Kind
    batch: int = 8
    draft_len: int = 2


def live(interval: float | None = INTERVAL, fingerprint: Fingerprint = KNOWN) -> LiveWindows:
    """Watch a pool of vLLM engines."""
    return LiveWindows(VOCABULARY, pool="p", fingerprint=fingerprint, interval=interval)


def watch(
    watched: LiveWindows, scrapes: Sequence[TimedScrape], *, flush: bool = False, target: Target = TARGET
) -> list[Window]:
    """Hand over scrapes one by one and return the windows that came of them."""
    windows = [window for one in scrapes for window in watched.add(target, [one]).windows]
    return [*windows, *watched.flush(target).windows] if flush else windows


def whole(scrapes: Sequence[TimedScrape], *, schedule: Schedule | None = None) -> list[Window]:
    """Return the windows of a whole recording."""
    built = build_windows(scrapes, VOCABULARY, pool="p", engine="e", fingerprint=KNOWN, schedule=schedule)
    return list(built.windows)


def failed(time: float) -> TimedScrape:
    """Return a scrape that gave nothing."""
    return TimedScrape(time, ExpositionError("body is HTML, not metrics", reason="html"))


def series(events: Sequence[Event], *, told: bool) -> list[TimedScrape]:
    """Return what is scraped while things happen.

    Args:
        events: one an interval.
        told: the server tells its start time.
    """
    server = Server(started=1000.0 if told else None)
    server.running = 8
    out = [server.scrape()]
    older = out[0]
    for event in events:
        before = server.scrape()
        if event.kind == "idle":
            server.time += INTERVAL
        elif event.kind == "gap":
            server.run(10 * INTERVAL, event.batch, event.draft_len)
        else:
            server.run(INTERVAL, event.batch, event.draft_len)
        if event.kind == "restart":
            server.restart()
            server.run(INTERVAL / 3, event.batch, event.draft_len)
        if event.kind == "back":
            server.time -= 3600.0
        if event.kind == "forward":
            server.time += 3600.0
        out += _told(event.kind, server, older)
        older = before
    return out


def _told(kind: Kind, server: Server, older: TimedScrape) -> list[TimedScrape]:
    """Return the scrapes at the end of an interval."""
    now = server.scrape()
    if kind == "failed":
        return [failed(server.time)]
    if kind == "older":
        assert isinstance(older.result, Scrape)
        return [TimedScrape(server.time, older.result)]
    if kind == "twice":
        return [now, now]
    if kind == "nan":
        lines = server.lines()
        return [scrape(server.time, [*lines[:5], f"{lines[5].rsplit(' ', 1)[0]} NaN", *lines[6:]])]
    return [now]


def value(one: TimedScrape, name: str) -> float:
    """Return a counter of a scrape."""
    assert isinstance(one.result, Scrape)
    return next(v for key, v in one.result.samples.items() if key.name == name)


def sane(windows: Sequence[Window]) -> None:
    """Check what must hold of any windows, whatever was scraped."""
    seen = [(window.engine, window.route, window.start) for window in windows]
    assert len(seen) == len(set(seen)), "a window was counted twice"
    for window in windows:
        assert 0 < window.seconds <= 4.05 * INTERVAL
        counts = window.counts
        for number in (counts.steps, counts.emitted, counts.drafts, counts.accepted):
            assert number is None or 0 <= number < math.inf
        if window.state is WindowState.GOOD:
            assert (window.tokens_per_second or 0.0) < 1e4


def key(name: str, **labels: str) -> SeriesKey:
    """Return the identity of a series."""
    return SeriesKey(name, frozenset(labels.items()))
