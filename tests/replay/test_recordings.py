"""Replays of a real engine, held against what was really done to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.replay.conftest import RECORDINGS
from tuner.engines import get_engine
from tuner.fleet import Window, WindowState
from tuner.observe.recording import read_recording
from tuner.observe.windows import build_windows

if TYPE_CHECKING:
    from collections.abc import Sequence

TRUTH = (0.80, 0.72, 0.66, 0.60)
LONG, SHORT = "vllm-0.32-cpu", "vllm-0.32-cpu-short"


def _windows(name: str) -> tuple[Window, ...]:
    vocabulary = get_engine("vllm").vocabulary
    return build_windows(
        read_recording(RECORDINGS / name).scrapes(vocabulary.sample_names), vocabulary
    ).windows


def _log(name: str) -> list[tuple[float, int]]:
    """When the load generator changed what, and to how many clients."""
    rows = [line.split(" ", 1) for line in (RECORDINGS / name / "load.log").read_text().splitlines()]
    return [(float(time), int(rest.rsplit(" ", 1)[1])) for time, rest in rows]


def _hazards(document: dict[str, Any]) -> list[dict[str, Any]]:
    (fit,) = document["acceptance"]
    positions: list[dict[str, Any]] = fit["positions"]
    return positions


def test_hazards_of_the_long_recording(long_recording: dict[str, Any]) -> None:
    """Every hazard is within 0.03 of the truth and at least 3 of 4 intervals contain it."""
    positions = _hazards(long_recording)
    assert [p["position"] for p in positions] == [0, 1, 2, 3]
    assert all(p["state"] == "measured" for p in positions)
    errors = [abs(p["hazard"] - truth) for p, truth in zip(positions, TRUTH, strict=True)]
    assert max(errors) <= 0.03
    contained = [p["low"] <= truth <= p["high"] for p, truth in zip(positions, TRUTH, strict=True)]
    assert sum(contained) >= 3


def test_hazards_of_the_short_recording(short_recording: dict[str, Any]) -> None:
    """A rough recording with two windows a cell still gives every hazard within 0.03."""
    positions = _hazards(short_recording)
    errors = [abs(p["hazard"] - truth) for p, truth in zip(positions, TRUTH, strict=True)]
    assert max(errors) <= 0.03


def test_intervals_are_not_bought_with_width(long_recording: dict[str, Any]) -> None:
    """An interval that contains the truth because it is wide says nothing."""
    for position in _hazards(long_recording):
        assert position["high"] - position["low"] < 0.06


@pytest.mark.parametrize("name", [LONG, SHORT])
def test_a_change_inside_a_window_is_a_transition(name: str) -> None:
    """Windows in which schedule or load changed are never fitted."""
    changes = [time for time, _ in _log(name)]
    hit = [w for w in _windows(name) if any(w.start < time < w.end for time in changes)]
    assert len(hit) >= len(changes) - 1
    assert {w.state for w in hit} == {WindowState.TRANSITION}


@pytest.mark.parametrize(("name", "share"), [(LONG, 0.75), (SHORT, 0.5)])
def test_steady_windows_are_kept(name: str, share: float) -> None:
    """What is steady is evidence: most windows are good, and each says why if it is not."""
    windows = _windows(name)
    good = [w for w in windows if w.state is WindowState.GOOD]
    assert len(good) >= share * len(windows)
    assert all(bool(w.reason) == (w.state is not WindowState.GOOD) for w in windows)


@pytest.mark.parametrize("name", [LONG, SHORT])
def test_batch_is_what_was_measured(name: str) -> None:
    """The batch of a window is a little below the number of clients, which no one reports to the engine."""
    log = _log(name)
    ratios = []
    for window in _windows(name):
        if window.state is WindowState.GOOD:
            clients = [count for time, count in log if time <= window.start][-1]
            assert window.batch is not None
            ratios.append(window.batch / clients)
    assert 0.85 < float(np.median(ratios)) < 0.99


def _by_draft_len(windows: Sequence[Window]) -> dict[int, float]:
    """First-position acceptance of good windows by the draft length that ran."""
    out: dict[int, list[float]] = {}
    for window in windows:
        if window.state is WindowState.GOOD and window.draft_lens and len(window.draft_lens) == 1:
            (k,) = window.draft_lens
            sums = out.setdefault(k, [0.0, 0.0])
            sums[0] += window.counts.accepted_by_position[0]
            sums[1] += window.counts.drafts or 0.0
    return {k: accepted / drafts for k, (accepted, drafts) in out.items()}


@pytest.mark.parametrize("name", [LONG, SHORT])
def test_no_acceptance_is_polluted_by_changes_of_k(name: str, request: pytest.FixtureRequest) -> None:
    """First-position acceptance reads the same at each K, and no finding blames K."""
    by_len = _by_draft_len(_windows(name))
    assert set(by_len) == {1, 2, 3, 4}
    assert max(abs(value - TRUTH[0]) for value in by_len.values()) <= 0.02
    document = request.getfixturevalue("long_recording" if name == LONG else "short_recording")
    assert "k_confounded" not in {finding["code"] for finding in document["findings"]}


def test_crossover_of_the_long_recording(long_recording: dict[str, Any]) -> None:
    """The crossover lies between 45 and 110 tokens in flight, inside its own interval."""
    crossover = long_recording["crossover"]
    assert 45 <= crossover["tokens"] <= 110
    assert 45 <= crossover["low"] < crossover["tokens"] < crossover["high"] <= 110


def test_schedule_shortens_with_the_batch(long_recording: dict[str, Any]) -> None:
    """The best K falls from 4 at small batches to 2 at large ones, as the published cells show."""
    lens = [row[2] for row in long_recording["schedule"]]
    assert lens == sorted(lens, reverse=True)
    assert lens[0] in {3, 4}
    assert lens[-1] in {1, 2}
