"""Rolling up and forgetting: each window in exactly one place, whatever happens in between."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.store.samples import SECONDS, T0, series, steps_of, window
from tuner._exceptions import FencedError, StoreError
from tuner.fleet import WindowState
from tuner.store import RollUp, open_store, rollup
from tuner.store.rollup import SETTLE_SECONDS
from tuner.store.windows import BY_HOUR, Tier, mark_stale

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy.engine import Connection

    from tuner.fleet import Window
    from tuner.store import Store

HOUR = 3600.0
DAY = 24 * HOUR
KEEP = {"raw": 6 * HOUR, "minute": 48 * HOUR, "hour": 400 * DAY}


def read_all(store: Store, pool: str = "chat") -> list[Window]:
    """Return all windows of a pool."""
    return store.recent_windows(pool, 0.0, 1_000_000)


def test_four_windows_make_a_minute_and_sixty_minutes_an_hour(store: Store) -> None:
    """Rows by minute and hour hold the sums; what is observed stays until it is told to go."""
    windows = series(480)
    store.add_windows(windows, fence=0)
    done = store.roll_up(T0 + 2 * HOUR + SETTLE_SECONDS, fence=0)
    assert done == RollUp(read=480 + 120, minutes=120, hours=2)
    assert read_all(store) == windows
    store.retain(T0 + 8 * HOUR, **KEEP, fence=0)
    minutes = read_all(store)
    assert [each.seconds for each in minutes] == [60.0] * 120
    assert minutes[1].counts.steps == 5 + 6 + 7 + 8
    assert minutes[1].start == T0 + 60
    store.retain(T0 + 50 * HOUR, **KEEP, fence=0)
    first, second = read_all(store)
    assert (first.start, first.end, second.end) == (T0, T0 + HOUR, T0 + 2 * HOUR)
    assert steps_of([first, second]) == steps_of(windows)


def test_an_hour_is_read_from_the_finest_that_is_left(store: Store) -> None:
    """Raw, minute and hour rows join without overlap and without a hole, in the order of time."""
    windows = [window(T0 + 30 * index, seconds=30.0, steps=1.0 + index) for index in range(60 * 120)]
    store.add_windows(windows, fence=0)
    now = windows[-1].end + SETTLE_SECONDS
    store.roll_up(now, fence=0)
    store.retain(now, 6 * HOUR, 48 * HOUR, 400 * DAY, fence=0)
    found = read_all(store)
    lengths = [each.seconds for each in found]
    assert sorted(lengths, reverse=True) == lengths
    assert {HOUR, 60.0, 30.0} == set(lengths)
    assert all(before.end == after.start for before, after in itertools.pairwise(found))
    assert steps_of(found) == steps_of(windows)
    assert store.recent_windows("chat", 0.0, 2000) == found[-2000:]


def test_rolling_up_again_changes_nothing(store: Store) -> None:
    """A second run finds nothing to do."""
    store.add_windows(series(240), fence=0)
    store.roll_up(T0 + 2 * HOUR, fence=0)
    assert store.roll_up(T0 + 2 * HOUR, fence=0) == RollUp()
    assert store.roll_up(T0, fence=0) == RollUp()


def test_a_minute_is_left_alone_until_it_has_settled(store: Store) -> None:
    """Windows that come a few scrapes late find their minute not merged yet."""
    store.add_windows(series(4), fence=0)
    assert store.roll_up(T0 + 60 + SETTLE_SECONDS - 1, fence=0) == RollUp()
    assert store.roll_up(T0 + 60 + SETTLE_SECONDS, fence=0) == RollUp(read=4, minutes=1)


def test_a_late_window_joins_its_minute_and_its_hour(store: Store) -> None:
    """A window that comes after its minute and hour were rolled up is counted there, once."""
    windows = series(480)
    late = windows.pop(7)
    store.add_windows(windows, fence=0)
    store.roll_up(T0 + 3 * HOUR, fence=0)
    assert store.add_windows([late, windows[6]], fence=0) == 1
    done = store.roll_up(T0 + 3 * HOUR, fence=0)
    assert done == RollUp(read=4 + 60, minutes=1, hours=1, late=2)
    store.retain(T0 + 50 * HOUR, **KEEP, fence=0)
    assert steps_of(read_all(store)) == steps_of([*windows, late])


def test_a_window_later_than_the_raw_ones_is_counted_once(store: Store) -> None:
    """Where raw windows are gone already, a new one is taken by minute, and one that was merged is not."""
    windows = series(480)
    late = windows.pop(200)
    store.add_windows(windows, fence=0)
    store.roll_up(T0 + 3 * HOUR, fence=0)
    store.retain(T0 + 8 * HOUR, **KEEP, fence=0)
    assert store.add_windows([windows[3]], fence=0) == 0
    lonely = window(T0 + 2 * HOUR - SECONDS * 300, engine="e9")
    assert store.add_windows([lonely, replace(lonely, reason="again")], fence=0) == 1
    store.roll_up(T0 + 8 * HOUR, fence=0)
    store.retain(T0 + 50 * HOUR, **KEEP, fence=0)
    assert store.add_windows([lonely, late], fence=0) == 0, "covered by the hour that they lie in"
    assert steps_of(read_all(store)) == steps_of([*windows, lonely])


def test_an_hour_is_not_read_beside_the_raw_windows_within_it(store: Store) -> None:
    """While a late window keeps raw rows of an hour, its minutes stay too, and its sum is not added."""
    early, late, after = (window(T0 + 60.0 * minute, steps=1.0 + minute) for minute in (2, 25, 26))
    store.add_windows([early, after], fence=0)
    store.roll_up(T0 + 2.5 * HOUR, fence=0)
    store.add_windows([late], fence=0)
    store.retain(T0 + 3 * HOUR, HOUR / 4, HOUR, 400 * DAY, fence=0)
    assert steps_of(read_all(store)) == steps_of([early, late, after])


def test_raw_windows_stay_until_they_are_rolled_up(store: Store) -> None:
    """Retention deletes nothing that the next tier has not taken, however old it is."""
    windows = series(10)
    store.add_windows(windows, fence=0)
    assert store.retain(T0 + 1000 * DAY, **KEEP, fence=0).raw == 0
    assert read_all(store) == windows


def test_the_last_tier_goes_too_and_takes_its_names_along(sqlite_store: Store, sqlite_file: Path) -> None:
    """After thirteen months nothing of a window is left, the engine's name included."""
    sqlite_store.add_windows(series(8, engine="pod-1"), fence=0)
    sqlite_store.roll_up(T0 + 2 * HOUR, fence=0)
    later = T0 + 401 * DAY
    sqlite_store.add_windows([window(later)], fence=0)
    sqlite_store.roll_up(later + 2 * HOUR, fence=0)
    deleted = sqlite_store.retain(later + 2 * HOUR, **KEEP, fence=0)
    assert (deleted.raw, deleted.minute, deleted.hour, deleted.series) == (8, 2, 1, 1)
    with closing(sqlite3.connect(sqlite_file)) as connection:
        assert connection.execute("select engine from series").fetchall() == [("e0",)]


def test_a_clock_that_was_ahead_loses_nothing(store: Store) -> None:
    """Roll-up and retention by a clock an hour ahead: windows of the true time are still taken and merged."""
    early, later = series(40), series(40, start=T0 + 600)
    store.add_windows(early, fence=0)
    store.roll_up(T0 + 600 + HOUR, fence=0)
    store.retain(T0 + 600 + HOUR, HOUR / 2, HOUR / 2, 400 * DAY, fence=0)
    assert store.add_windows(later, fence=0) == 40
    store.roll_up(T0 + 3 * HOUR, fence=0)
    store.retain(T0 + 30 * HOUR, **{**KEEP, "raw": HOUR, "minute": 2 * HOUR}, fence=0)
    assert steps_of(read_all(store)) == steps_of([*early, *later])


def test_ages_must_rise(sqlite_store: Store) -> None:
    """Minutes that go before the raw windows would leave a hole."""
    with pytest.raises(StoreError, match="must rise"):
        sqlite_store.retain(T0, 48 * HOUR, 6 * HOUR, 400 * DAY, fence=0)


def test_a_run_that_is_cut_off_leaves_each_window_once(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure within any of its writes undoes that write alone; the next run ends the work."""
    windows = series(480)
    sqlite_store.add_windows(windows, fence=0)

    def fail_at_hours(connection: Connection, tier: Tier, buckets: set[tuple[float, int]]) -> None:
        mark_stale(connection, tier, buckets)
        assert tier is not BY_HOUR, "cut off"

    monkeypatch.setattr(rollup, "mark_stale", fail_at_hours)
    with pytest.raises(AssertionError, match="cut off"):
        sqlite_store.roll_up(T0 + 3 * HOUR, fence=0)
    assert read_all(sqlite_store) == windows
    monkeypatch.undo()
    assert sqlite_store.roll_up(T0 + 3 * HOUR, fence=0) == RollUp(read=120, hours=2)
    sqlite_store.retain(T0 + 50 * HOUR, **KEEP, fence=0)
    assert steps_of(read_all(sqlite_store)) == steps_of(windows)


def test_windows_that_arrive_while_a_minute_is_merged_are_in_it(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was computed from rows that have changed since is thrown away and computed afresh."""
    windows = series(4)
    sqlite_store.add_windows(windows[:3], fence=0)
    computed = rollup._merge

    def interrupted(connection: Connection, job: rollup.Job) -> rollup.Merged:
        found = computed(connection, job)
        sqlite_store.add_windows(windows[3:], fence=0)
        return found

    monkeypatch.setattr(rollup, "_merge", interrupted)
    done = sqlite_store.roll_up(T0 + 10 * 60, fence=0)
    assert done.minutes == 1
    assert done.read == 4


def test_a_process_that_lost_the_lead_rolls_nothing_up(sqlite_store: Store) -> None:
    """Roll-up and retention are writes, and fenced as such."""
    sqlite_store.add_windows(series(40), fence=0)
    assert sqlite_store.lease("b", 20.0).try_acquire(0.0) == 1
    with pytest.raises(FencedError):
        sqlite_store.roll_up(T0 + HOUR, fence=0)
    with pytest.raises(FencedError):
        sqlite_store.retain(T0 + HOUR, **KEEP, fence=0)


@pytest.fixture(scope="module")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with its tables, to be copied: making the tables takes longer than a test."""
    file = tmp_path_factory.mktemp("empty") / "tuner.db"
    with closing(open_store(f"sqlite:///{file}")) as store:
        store.migrate()
    return file


MOMENTS = st.integers(0, 3 * 240 - 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(MOMENTS, min_size=1, max_size=12)),
        st.tuples(st.just("roll up"), st.integers(0, 6)),
        st.tuples(st.just("retain"), st.integers(0, 6)),
    ),
    min_size=3,
    max_size=14,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_no_window_is_counted_twice(
    empty_file: Path, tmp_path: Path, steps: list[tuple[str, list[int] | int]]
) -> None:
    """Added in any order and again, rolled up and trimmed at any time: none twice, none lost."""
    file = tmp_path / "tuner.db"
    shutil.copy(empty_file, file)
    taken: dict[float, Window] = {}
    with closing(open_store(f"sqlite:///{file}")) as store:
        for what, value in steps:
            if isinstance(value, list):
                batch = [_window_at(moment) for moment in value]
                new = {each.start: each for each in batch if each.start not in taken}
                count = store.add_windows(batch, fence=0)
                assert count <= len(new), "a window was taken for new that was there"
                if count == len(new):
                    taken |= new
                    continue
                # What the rows of coarser tiers cover is refused rather than counted twice.
                before = steps_of(taken.values())
                added = steps_of(read_all(store)) - before
                assert 0 <= added <= steps_of(new.values())
                return
            if what == "roll up":
                store.roll_up(T0 + value * HOUR / 2, fence=0)
            else:
                store.retain(T0 + value * HOUR / 2, HOUR / 4, HOUR, 400 * DAY, fence=0)
            assert steps_of(read_all(store)) == steps_of(taken.values())


def _window_at(moment: int) -> Window:
    """Return the window of a moment, a good one or an idle one."""
    state = WindowState.IDLE if moment % 7 == 0 else WindowState.GOOD
    return window(T0 + SECONDS * moment, steps=1.0 + moment, state=state, restarts=moment // 300)
