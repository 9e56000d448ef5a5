"""Two recordings of a real engine, held against what its load generator did.

The log beside a recording names the moments at which the load or the schedule changed and what was
asked for. It is known here only; windows are made without it.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.observe.bodies import VOCABULARY
from tuner.fleet import Window, WindowState
from tuner.observe.recording import read_recording
from tuner.observe.windows import WindowSet, build_windows

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"
LONG, SHORT = RECORDINGS / "vllm-0.32-cpu", RECORDINGS / "vllm-0.32-cpu-short"


class Cell(NamedTuple):
    """What was asked for from a moment on."""

    time: float
    draft_len: int
    clients: int


def load_log(folder: Path) -> list[Cell]:
    cells: list[Cell] = []
    for line in (folder / "load.log").read_text().splitlines():
        time, _, rest = line.partition(" ")
        schedule, _, clients = rest.rpartition(" ")
        draft_len = (
            cells[-1].draft_len if schedule == "None" else int(schedule.rstrip("]").rpartition(" ")[2])
        )
        cells.append(Cell(float(time), draft_len, int(clients)))
    return cells


@pytest.fixture(scope="module", params=[LONG, SHORT], ids=["long", "short"])
def folder(request: pytest.FixtureRequest) -> Path:
    assert isinstance(request.param, Path)
    return request.param


@pytest.fixture(scope="module")
def result(folder: Path) -> WindowSet:
    return build_windows(read_recording(folder).scrapes(VOCABULARY.sample_names), VOCABULARY)


def by_cell(result: WindowSet, folder: Path) -> dict[Cell, list[Window]]:
    """Sort windows by the cell that was asked for at their end."""
    cells = defaultdict(list)
    log = load_log(folder)
    for window in result.windows:
        cells[max(cell for cell in log if cell.time <= window.end)].append(window)
    return cells


def test_windows_that_hold_a_change_are_transitions(result: WindowSet, folder: Path) -> None:
    """Not one window in which the schedule or the load was changed counts as good."""
    for cell in load_log(folder):
        (window,) = (w for w in result.windows if w.start < cell.time <= w.end)
        assert window.state is WindowState.TRANSITION, (cell, window.reason)


def test_most_steady_windows_are_good(result: WindowSet, folder: Path) -> None:
    """On average 7 of 9 windows of a cell in the long recording and 2 of 3 in the short one."""
    good = [sum(w.state is WindowState.GOOD for w in windows) for windows in by_cell(result, folder).values()]
    most = 9 if folder == LONG else 3
    assert sum(good) / len(good) >= (7 if folder == LONG else 1.8)
    assert min(good) >= most / 3


def test_good_windows_ran_the_draft_length_that_was_asked_for(result: WindowSet, folder: Path) -> None:
    """Every good window is pure, and pure in the right draft length."""
    for cell, windows in by_cell(result, folder).items():
        expected = frozenset({cell.draft_len} if cell.draft_len else set())
        for window in windows:
            if window.state is WindowState.GOOD:
                assert window.draft_lens == expected, (cell, window)


def test_the_batch_is_what_was_measured(result: WindowSet, folder: Path) -> None:
    """A good window's batch lies a little under the clients asked for: some are always in prefill."""
    for cell, windows in by_cell(result, folder).items():
        for window in windows:
            if window.state is WindowState.GOOD:
                assert window.batch is not None
                assert 0.8 * cell.clients <= window.batch <= 1.12 * cell.clients, (cell, window)


def test_nothing_is_found_where_nothing_is_wrong(result: WindowSet) -> None:
    """A healthy engine raises no finding: no restart, no inconsistency, no unit but the stock one."""
    assert result.findings == ()


def test_idle_scrapes_are_idle(result: WindowSet, folder: Path) -> None:
    """After the load ended in the short recording, its windows are idle and nothing else."""
    states = [window.state for window in result.windows]
    if folder == SHORT:
        assert states[-9:] == [WindowState.IDLE] * 9
    assert states.count(WindowState.IDLE) == (9 if folder == SHORT else 0)


def test_tokens_add_up_to_what_the_engine_counted(result: WindowSet) -> None:
    """Emitted = first + request steps + accepted, less what was cut off after a stop (under 10 %)."""
    for window in result.windows:
        counts = window.counts
        if window.state is not WindowState.GOOD:
            continue
        assert counts.emitted is not None
        assert counts.request_steps is not None
        assert counts.accepted is not None
        assert counts.first_tokens is not None
        cut = counts.first_tokens + counts.request_steps + counts.accepted - counts.emitted
        assert 0 <= cut <= 0.1 * counts.emitted
