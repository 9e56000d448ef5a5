"""Windows come back as they went in, once each."""

from __future__ import annotations

import itertools
import math
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings

from tests.store.samples import SECONDS, T0, any_window, counts, series, window
from tuner._exceptions import StoreError
from tuner.fleet import Counts, Gauges, Window
from tuner.store import open_store
from tuner.store.codec import (
    WINDOW_COLUMNS,
    decode_fingerprint,
    decode_window,
    encode_fingerprint,
    encode_window,
)
from tuner.store.tables import COUNT_COLUMNS, LIST_COLUMNS

if TYPE_CHECKING:
    from tuner.store import Store

NUMBERS = itertools.count()


@given(any_window())
def test_a_window_survives_its_row(drawn: Window) -> None:
    """Window -> row -> Window changes nothing, whatever the window."""
    row = encode_window(drawn, 1, 1)
    fingerprint = decode_fingerprint(encode_fingerprint(drawn.fingerprint))
    back = decode_window(
        [row[name] for name in WINDOW_COLUMNS], drawn.pool, drawn.engine, drawn.route, fingerprint
    )
    assert drawn == back


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(any_window())
def test_a_window_survives_the_database(store: Store, drawn: Window) -> None:
    """What is read from a real database equals what was added, to the last bit of each number."""
    own = replace(drawn, pool=f"{next(NUMBERS)} {drawn.pool}")
    assert store.add_windows([own], fence=0) == 1
    assert store.recent_windows(own.pool, -math.inf, 10) == [own]


def test_every_field_of_a_window_is_kept() -> None:
    """A field added to a window needs a column and a migration; this test is where one learns so."""
    assert {*COUNT_COLUMNS, *LIST_COLUMNS} == set(Counts.__slots__)
    elsewhere = {"pool", "engine", "route", "fingerprint", "counts", "gauges", "start", "end", "weight"}
    assert set(Window.__slots__) - elsewhere <= set(WINDOW_COLUMNS)


def test_a_sampled_window_is_refused(sqlite_store: Store) -> None:
    """A window that stands for others would be counted once where they are read, so it is not stored."""
    with pytest.raises(StoreError, match="stands for 3 windows"):
        sqlite_store.add_windows([replace(window(), weight=3.0)], fence=0)


def test_a_window_is_counted_once(store: Store) -> None:
    """The same pool, engine, route and start are one window, in one call and in many."""
    windows = series(4)
    assert store.add_windows([*windows, windows[0]], fence=0) == 4
    assert store.add_windows(windows, fence=0) == 0
    assert store.add_windows([replace(windows[0], reason="told otherwise")], fence=0) == 0
    assert store.recent_windows("chat", T0, 100) == windows


def test_engines_routes_and_pools_are_kept_apart(store: Store) -> None:
    """Windows of one moment differ by pool, engine and route."""
    windows = [
        window(engine="e0"),
        window(engine="e1"),
        window(engine="e0", route="tools"),
        window(pool="code"),
    ]
    assert store.add_windows(windows, fence=0) == 4
    assert {(each.engine, each.route) for each in store.recent_windows("chat", T0, 10)} == {
        ("e0", "*"),
        ("e1", "*"),
        ("e0", "tools"),
    }


def test_the_newest_windows_come_oldest_first(store: Store) -> None:
    """A limit keeps the newest, and ``since`` bounds the start."""
    windows = series(10)
    store.add_windows(windows, fence=0)
    assert store.recent_windows("chat", T0, 3) == windows[-3:]
    assert store.recent_windows("chat", T0 + 8 * SECONDS, 100) == windows[8:]
    assert store.recent_windows("nobody", T0, 100) == []


def test_who_begins_to_remember_sees_all_of_the_span(store: Store) -> None:
    """Of six hours too large for the limit each stretch is there, the newest most densely, none twice."""
    windows = series(1440)
    store.add_windows(windows, fence=0)
    now = windows[-1].end
    newest = store.recent_windows("chat", 0.0, 100)
    seen = store.spread_windows("chat", now - 6 * 3600.0, now, 100)
    assert now - newest[0].start < 1600.0
    assert now - seen[0].start > 4 * 3600.0
    starts = [w.start for w in seen]
    assert starts == sorted(set(starts))
    assert 100 < len(seen) <= 50 * 14
    everything = store.spread_windows("chat", now - 6 * 3600.0, now, 10_000)
    assert [w.start for w in everything] == [w.start for w in windows]


@pytest.mark.parametrize("limit", [0, -1, -(10**30)])
def test_a_limit_of_nothing_gives_nothing(store: Store, limit: int) -> None:
    """A negative limit is not taken for no limit, as SQLite would."""
    store.add_windows(series(3), fence=0)
    store.add_event("me", "do", {}, now=T0, fence=0)
    assert store.recent_windows("chat", 0.0, limit) == []
    assert store.events(limit) == []


def test_what_is_asked_for_may_be_anything(store: Store) -> None:
    """Huge limits, names that no database can hold: an answer or one line, never a driver's own error."""
    store.add_windows(series(3), fence=0)
    assert len(store.recent_windows("chat", -math.inf, 10**30)) == 3
    assert store.recent_windows("chat", math.nan, 10) == []
    with pytest.raises(StoreError, match="cannot hold such a value"):
        store.recent_windows("\ud800", 0.0, 10)


def test_windows_outlive_the_store(url: str) -> None:
    """Another process, or the same after a restart, finds what was added, under the same numbers."""
    for start in (T0, T0 + SECONDS):
        with closing(open_store(url)) as store:
            store.migrate()
            assert store.add_windows([window(start)], fence=0) == 1
    with closing(open_store(url)) as store:
        assert store.recent_windows("chat", T0, 100) == [window(T0), window(T0 + SECONDS)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "broken",
    [
        lambda x: window(counts=replace(counts(), steps=x)),
        lambda x: window(counts=replace(counts(), accepted_by_position=(1.0, x))),
        lambda x: window(counts=replace(counts(), joint={(4, 2): x})),
        lambda x: window(gauges=Gauges(kv_usage=x)),
        lambda x: replace(window(), end=x),
    ],
    ids=["count", "position", "joint", "gauge", "end"],
)
def test_what_is_no_number_is_refused(sqlite_store: Store, broken: object, value: float) -> None:
    """NaN and infinity never reach the database: the call is refused, and none of its windows is kept."""
    assert callable(broken)
    with pytest.raises(StoreError, match=r"chat/e0 at .* is -?(nan|inf)") as refused:
        sqlite_store.add_windows([window(T0 + 60), broken(value)], fence=0)
    assert not refused.value.retryable
    assert sqlite_store.recent_windows("chat", 0.0, 10) == []


@pytest.mark.parametrize("text", ["a\x00b", "\ud800"])
def test_text_that_postgresql_cannot_hold_is_refused_on_both(store: Store, text: str) -> None:
    """A NUL or half a surrogate pair is named and refused before it reaches a database."""
    with pytest.raises(StoreError, match=r"NUL|Unicode"):
        store.add_windows([window(reason=text)], fence=0)
    with pytest.raises(StoreError, match=r"NUL|Unicode"):
        store.add_windows([window(engine=text)], fence=0)


def test_a_window_that_ends_before_it_starts_is_refused(sqlite_store: Store) -> None:
    """Negative durations are a defect of whoever made the window."""
    with pytest.raises(StoreError, match="ends before it starts"):
        sqlite_store.add_windows([replace(window(), end=T0 - 1)], fence=0)
