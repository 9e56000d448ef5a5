"""The memory of a cycle: bounded, the same for any order, blocks whole, rare cells and every route kept."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recall.pool_world import SECONDS, START, good
from tuner._exceptions import InputError
from tuner.fleet import Fingerprint, WindowState
from tuner.recall import Recall
from tuner.recall.sampling import BLOCK_SECONDS, cell_of

if TYPE_CHECKING:
    from tuner.fleet import Window

LATER = START + 86_400.0


def _recall(windows: list[Window], room: int = 400, chunk: int = 97) -> Recall:
    recall = Recall(room)
    for first in range(0, len(windows), chunk):
        recall.add(windows[first : first + chunk])
    return recall


def _busy(engines: int = 12, windows: int = 200) -> list[Window]:
    return [good(f"e{e}", i, batch=4.0 + 8 * (e % 3)) for i in range(windows) for e in range(engines)]


def test_what_fits_is_given_back_as_it_came() -> None:
    """Below its bound the memory is complete, and every window stands for itself."""
    windows = _busy(2, 50)
    kept = Recall(400).windows("p", LATER)
    assert kept == ()
    kept = _recall(windows).windows("p", LATER)
    assert sorted(kept, key=id) == sorted(windows, key=id)


def test_more_than_fits_is_thinned_by_whole_blocks() -> None:
    """Each engine's windows of five minutes and one cell are there or not there, none cut."""
    windows = _busy()
    kept = _recall(windows).windows("p", LATER)
    assert 200 < len(kept) <= 400

    def blocks(some: list[Window]) -> Counter[tuple[object, ...]]:
        return Counter((w.engine, w.start // BLOCK_SECONDS, cell_of(w)) for w in some)

    whole, left = blocks(windows), blocks(list(kept))
    assert {name: count for name, count in left.items() if count != whole[name]} == {}


@given(seed=st.integers(0, 2**32 - 1), chunk=st.integers(1, 500))
def test_the_order_of_arrival_does_not_matter(seed: int, chunk: int) -> None:
    """Any order and any portions leave the same windows with the same weights."""
    windows = _busy(8, 100)
    shuffled = [windows[i] for i in np.random.default_rng(seed).permutation(len(windows))]
    assert _recall(shuffled, 300, chunk).windows("p", LATER) == _recall(windows, 300).windows("p", LATER)


def test_a_window_that_comes_twice_is_held_once() -> None:
    """What a store brings back after a restart beside what was just scraped changes nothing."""
    windows = _busy(2, 50)
    recall = _recall([*windows, *windows])
    assert recall.held("p") == len(windows)
    assert len(recall.windows("p", LATER)) == len(windows)


def test_of_windows_that_overlap_one_is_given() -> None:
    """A sum over a minute beside the windows that went into it does not count their drafts twice."""
    windows = [good("e", i) for i in range(8)]
    minute = replace(windows[0], end=windows[3].end)
    kept = _recall([*windows, minute]).windows("p", LATER)
    assert [(w.start, w.end) for w in kept] == [
        (minute.start, minute.end),
        *((w.start, w.end) for w in windows[4:]),
    ]


def test_sums_of_kinds_that_took_turns_are_all_given() -> None:
    """Two draft lengths in turn: their sums over a minute overlap in time and hold different drafts."""
    windows = [good("e", i) for i in range(2)]
    other = frozenset({2}) if windows[0].draft_lens != frozenset({2}) else frozenset({4})
    length = float(next(iter(other)))
    counts = replace(windows[1].counts, draft_tokens=length * (windows[1].counts.request_steps or 0.0))
    first = replace(windows[0], end=windows[0].start + 2 * SECONDS)
    second = replace(windows[1], end=windows[1].start + 2 * SECONDS, draft_lens=other, counts=counts)
    assert len(_recall([first, second]).windows("p", LATER)) == 2


@given(
    st.lists(
        st.tuples(
            st.integers(0, 40),
            st.integers(0, 4000),
            st.floats(0.0, 1e9, allow_nan=False),
            st.integers(0, 60),
            st.sampled_from(["*", "a", "b", "c"]),
            st.sampled_from(["1", "2", "3", "4", "5"]),
        ),
        max_size=300,
    )
)
def test_whatever_comes_in_memory_is_bounded(rows: list[tuple[int, int, float, int, str, str]]) -> None:
    """Engines, batches, draft lengths, routes and versions without end: never more than was allowed."""
    recall = Recall(40)
    for engine, index, batch, draft_len, route, version in rows:
        window = good(f"e{engine}", index, batch=batch, draft_len=draft_len, route=route)
        recall.add([replace(window, fingerprint=Fingerprint(engine_version=version))])
        assert recall.held("p") <= 3 * 1.1 * 40 + 40
    assert len(recall.windows("p", LATER)) <= 40


def test_a_rare_cell_is_not_crowded_out() -> None:
    """Twenty windows at K = 4 an hour ago stay beside 20 000 of K = 2; each stands for itself."""
    rare = [good("e0", i, batch=60.0, draft_len=4) for i in range(20)]
    common = [good(f"e{e}", 20 + i) for i in range(1000) for e in range(20)]
    kept = _recall([*rare, *common], 1000).windows("p", LATER)
    still = [w for w in kept if w.draft_lens == frozenset({4})]
    assert len(still) == len(rare)
    assert {w.weight for w in still} == {1.0}
    assert len(kept) <= 1000


def test_weights_add_up_to_what_came() -> None:
    """Kept windows stand for those left out: the sum of weights is the number that came, to 15 %."""
    windows = _busy(40, 400)
    kept = _recall(windows, 1000).windows("p", LATER)
    assert sum(w.weight for w in kept) == pytest.approx(len(windows), rel=0.15)
    by_batch: defaultdict[float | None, float] = defaultdict(float)
    for window in kept:
        by_batch[window.batch] += window.weight
    assert len(by_batch) == 3


def test_no_route_starves_another() -> None:
    """A route with one window in fifty keeps as many as one that comes with all of them."""
    windows = _busy(10, 200)
    busy = [replace(w, route="chat") for w in windows]
    quiet = [replace(w, route="tools") for w in windows[::10]]
    kept = Counter(w.route for w in _recall([*windows, *busy, *quiet], 600).windows("p", LATER))
    assert kept["tools"] > 60
    assert kept["chat"] > 60
    assert kept["*"] > 120
    assert kept.total() <= 600


def test_another_fingerprint_takes_the_room() -> None:
    """After a change of the set-up most of what is looked at is of the new one; a rollback finds its own."""
    before = _busy(10, 100)
    after = [
        replace(w, start=w.start + 3000, end=w.end + 3000, fingerprint=Fingerprint(engine="new"))
        for w in before
    ]
    recall = _recall([*before, *after], 400)
    kept = Counter(w.fingerprint.engine for w in recall.windows("p", LATER))
    assert kept["new"] > 200
    assert 0 < kept["vllm"] <= 50
    again = Counter(w.fingerprint.engine for w in recall.windows("p", before[-1].end))
    assert again["vllm"] > 200


def test_old_windows_age_out() -> None:
    """After eight half-lives nothing is given, and after forgetting nothing is held."""
    recall = Recall(400, half_life=600.0)
    recall.add(_busy(2, 50))
    last = START + 50 * SECONDS
    assert len(recall.windows("p", last)) == 100
    assert len(recall.windows("p", last + 4800 - 10 * SECONDS)) == 20
    assert recall.windows("p", last + 4801) == ()
    recall.forget(last + 4801 + BLOCK_SECONDS)
    assert recall.held("p") == 0
    assert recall.pools == ()


def test_windows_of_the_future_wait() -> None:
    """After a clock that was set back, windows dated ahead are not looked at before their time."""
    recall = _recall(_busy(1, 40))
    assert len(recall.windows("p", START + 20 * SECONDS)) == 20
    assert len(recall.windows("p", LATER)) == 40


def test_bad_windows_are_counted_and_the_newest_kept() -> None:
    """Of a thousand suspect windows the newest say what is wrong; all are in the counts."""
    bad = [replace(good("e", i), state=WindowState.SUSPECT, reason="said so") for i in range(1000)]
    recall = _recall([*bad, *_busy(1, 10)])
    kept = recall.windows("p", LATER)
    assert [w.end for w in kept if w.state is WindowState.SUSPECT] == [w.end for w in bad[-50:]]
    assert recall.states("p") == {WindowState.SUSPECT: 1000, WindowState.GOOD: 10}


def test_the_newest_window_of_every_engine_is_known() -> None:
    """Thinning may leave out an engine's last window; what it delivers now is told all the same."""
    windows = _busy(30, 100)
    latest = _recall(windows, 100).latest("p")
    assert {w.engine: w.end for w in latest} == {w.engine: w.end for w in windows}


@pytest.mark.parametrize(("room", "half_life"), [(0, 60.0), (10, 0.0), (10, float("inf"))])
def test_bounds_that_cannot_be_are_refused(room: int, half_life: float) -> None:
    """No room, or no forgetting, is refused in one line."""
    with pytest.raises(InputError, match="must be above 0"):
        Recall(room, half_life)
