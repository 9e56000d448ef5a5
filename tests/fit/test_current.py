"""Which set-up of a pool is fitted: the one that most engines run, without taking turns."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tuner.fit.current import current_windows
from tuner.fleet import Counts, Fingerprint, Window, WindowState

OLD = Fingerprint(engine="vllm", engine_version="0.31.0", model="m")
NEW = Fingerprint(engine="vllm", engine_version="0.32.0", model="m")
STEP = 15.0


def _windows(
    engine: str, fingerprint: Fingerprint, first: int, last: int, *, offset: float = 0.0, good: bool = True
) -> list[Window]:
    """Windows number ``first`` to ``last`` of one engine, each 15 s."""
    return [
        Window(
            pool="p",
            engine=engine,
            start=i * STEP + offset,
            end=(i + 1) * STEP + offset,
            state=WindowState.GOOD if good else WindowState.IDLE,
            reason="" if good else "nothing to do",
            counts=Counts(),
            fingerprint=fingerprint,
        )
        for i in range(first, last)
    ]


@pytest.mark.parametrize("offset", [-3.0, 3.0])
def test_a_canary_is_outvoted_whoever_was_scraped_last(offset: float) -> None:
    """One engine of three on another version: the two others are fitted, and the mix is told."""
    windows = [*_windows("a", OLD, 0, 40), *_windows("b", OLD, 0, 40), *_windows("c", OLD, 0, 20)]
    windows += _windows("c", NEW, 21, 40, offset=offset)
    current = current_windows("p", windows)
    assert current.fingerprint == OLD
    assert [finding.code for finding in current.findings] == ["fingerprints_mixed"]


def test_a_rolling_deploy_turns_the_vote_once() -> None:
    """Engine after engine moves on: the old set-up until most have moved, the new one from there."""
    chosen = []
    for now in range(10, 60):
        windows = []
        for number, engine in enumerate("abcde"):
            moved = 15 + 6 * number
            windows += _windows(engine, OLD, 0, min(now, moved))
            windows += _windows(engine, NEW, moved + 1, now)
        chosen.append(current_windows("p", windows).fingerprint)
    turns = sum(before != after for before, after in pairwise(chosen))
    assert (chosen[0], chosen[-1], turns) == (OLD, NEW, 1)


def test_a_deploy_that_is_over_is_no_mix() -> None:
    """Once no engine runs the old set-up it is of the past, though others ran beside it for a while."""
    windows = [*_windows("a", OLD, 0, 20), *_windows("b", OLD, 0, 30)]
    windows += [*_windows("a", NEW, 20, 60), *_windows("b", NEW, 30, 60)]
    current = current_windows("p", windows)
    assert current.fingerprint == NEW
    assert [finding.code for finding in current.findings] == ["fingerprint_changed"]


def test_engines_that_left_have_no_say() -> None:
    """A pool replaced by fewer, renamed engines is what those run."""
    windows = [window for name in "abc" for window in _windows(name, OLD, 0, 40)]
    windows += _windows("d", NEW, 40, 110)
    assert current_windows("p", windows).fingerprint == NEW


def test_engines_without_a_good_window_do_not_outvote_one_that_has() -> None:
    """Many names of nothing, as a page may hold, leave the working engine's evidence alone."""
    junk = Fingerprint(engine="vllm", model="other")
    windows = _windows("a", OLD, 0, 40)
    windows += [window for i in range(50) for window in _windows(f"x{i}", junk, 0, 40, good=False)]
    assert current_windows("p", windows).fingerprint == OLD
