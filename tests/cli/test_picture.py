"""The picture of a decision: what it shows, in which colours, and when there is none."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.colors import to_hex

from tests.observe.bodies import Server, body
from tests.replay.conftest import RECORDINGS
from tests.replay.vllm_world import VllmWorld, constant, linear
from tuner.cli import tuner
from tuner.cli.picture import colour_of, figure_of, group_curves, nothing_to_draw
from tuner.cycle import Evidence, PoolDecision, PoolSettings, State, run_once
from tuner.engines import get_engine
from tuner.fleet import NotEnoughData
from tuner.observe.recording import read_recording
from tuner.observe.windows import build_windows
from tuner.plan.options import PlanOptions

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def _decide(folder: Path, *allowed: int) -> PoolDecision:
    vocabulary = get_engine("vllm").vocabulary
    seen = build_windows(read_recording(folder).scrapes(vocabulary.sample_names), vocabulary)
    options = PlanOptions(allowed_draft_lens=frozenset(allowed) or None)
    state = State(default=PoolSettings(options))
    return run_once(Evidence(seen.windows, seen.findings), state, 4e9).pools[0]


@pytest.fixture(scope="module")
def decision() -> PoolDecision:
    """A decision in which draft length 6 is allowed and never ran."""
    return _decide(RECORDINGS / "vllm-0.32-cpu-short", 0, 1, 2, 3, 4, 6)


@pytest.fixture(scope="module")
def one_draft_len(tmp_path_factory: pytest.TempPathFactory) -> PoolDecision:
    """A decision from one draft length, so without crossover and without schedule."""
    folder = tmp_path_factory.mktemp("one")
    world = VllmWorld((0.8, 0.7, 0.6), linear(0.03, 0.0004), constant(3), 8, 1, model="org/" + 60 * "long-")
    for clients in (2, 8, 32):
        world.clients = clients
        world.record(folder, scrapes=8, interval=4)
    return _decide(folder)


def _words(figure: Figure) -> str:
    legends = [*figure.legends, *(legend for axes in figure.axes if (legend := axes.get_legend()))]
    return " ".join(
        " ".join(part.get_text().split())
        for legend in legends
        for part in (legend.get_title(), *legend.get_texts())
    )


def _lines(axes: Axes, colour: str, *, dashed: bool) -> list[np.ndarray]:
    """Heights of the curves of one colour."""
    return [
        np.asarray(line.get_ydata(), dtype=float)
        for line in axes.lines
        if to_hex(line.get_color()) == colour and line.get_marker() != "." and line.is_dashed() is dashed
    ]


def test_the_legend_says_what_everything_is(decision: PoolDecision) -> None:
    """Dots, bands, dashes, the schedule and the crossover with its interval are named in the picture."""
    words = _words(figure_of(decision))
    for word in ("K=4", "dot: one window", "band: 95 % interval", "dashed: outside", "schedule", "crossover"):
        assert word in words


def test_a_draft_length_has_one_colour_everywhere(
    decision: PoolDecision, one_draft_len: PoolDecision
) -> None:
    """Dots of one K look alike in both panels and in pictures that show other draft lengths beside it."""
    for one in (decision, one_draft_len):
        for axes in figure_of(one).axes:
            dots = {to_hex(line.get_color()) for line in axes.lines if line.get_marker() == "."}
            assert colour_of(3) in dots
    assert len({colour_of(k) for k in range(8)}) == 8


def test_what_never_ran_is_dashed_and_has_no_band(decision: PoolDecision) -> None:
    """Draft length 6 was never seen: no solid line, no interval, no dots."""
    goodput = figure_of(decision).axes[0]
    (solid,) = _lines(goodput, colour_of(6), dashed=False)
    (dashed,) = _lines(goodput, colour_of(6), dashed=True)
    assert np.isnan(solid).all()
    assert np.isfinite(dashed).all()
    assert {to_hex(line.get_color()) for line in goodput.lines if line.get_marker() == "."} == {
        colour_of(k) for k in (0, 1, 2, 3, 4)
    }


def test_the_solid_part_ends_where_measurement_ends(decision: PoolDecision) -> None:
    """Beyond the largest and below the smallest batch measured at a K its curve is dashed only."""
    assert decision.table is not None
    goodput = figure_of(decision).axes[0]
    for column, k in enumerate(decision.table.draft_lens.tolist()):
        (solid,) = _lines(goodput, colour_of(k), dashed=False)
        assert np.array_equal(np.isfinite(solid), decision.table.supported[:, column])


def test_curves_that_hide_each_other_are_one() -> None:
    """Draft lengths whose curves lie within a line's width share one; those apart keep their own."""
    line = np.linspace(0.02, 0.1, 50)
    groups = group_curves({0: line, 1: line + 0.01, 2: line + 0.0001, 4: line + 0.0105})
    assert [lens for lens, _ in groups] == [[0, 2], [1, 4]]


def test_what_cannot_be_said_is_written_inside_the_panel(one_draft_len: PoolDecision) -> None:
    """No crossover: the reason is wrapped within the axes, the long title within the figure."""
    figure = figure_of(one_draft_len)
    figure.savefig(io.BytesIO())  # places everything
    steps = figure.axes[1]
    legend = steps.get_legend()
    assert legend is not None
    assert "crossover: cannot say: one draft length only" in _words(figure)
    assert "no separate drafter cost" not in _words(figure), "one draft length cannot tell it apart"
    box, axes = legend.get_window_extent(), steps.get_window_extent()
    assert axes.x0 <= box.x0 < box.x1 <= axes.x1
    assert axes.y0 <= box.y0 < box.y1 <= axes.y1
    for text in (*(axes.title for axes in figure.axes), figure.texts[0] if figure.texts else steps.title):
        extent = text.get_window_extent()
        assert 0 <= extent.x0 < extent.x1 <= figure.bbox.x1
    assert "schedule" not in [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_panel_without_a_fit_is_left_out(decision: PoolDecision) -> None:
    """No empty axes: what cannot be told has no panel, and nothing told has no picture."""
    without = replace(decision, step_time=NotEnoughData("untold"))
    assert len(figure_of(without).axes) == 1
    assert len(figure_of(replace(decision, table=None)).axes) == 1
    assert not nothing_to_draw(without)
    assert "untold" in nothing_to_draw(replace(without, table=None))


def test_points_are_not_clipped(decision: PoolDecision) -> None:
    """Every dot lies inside its panel."""
    for axes in figure_of(decision).axes:
        for line in axes.lines:
            if line.get_marker() == ".":
                for value, (low, high) in (
                    (line.get_xdata(), axes.get_xlim()),
                    (line.get_ydata(), axes.get_ylim()),
                ):
                    assert low <= np.min(value)
                    assert np.max(value) <= high


def test_an_idle_recording_gets_no_picture(tmp_path: Path) -> None:
    """Nothing was served: no file of empty axes, one line on stderr that says why."""
    recording, target = tmp_path / "idle", tmp_path / "idle.png"
    recording.mkdir()
    server = Server()
    for _ in range(5):
        (recording / f"{round(server.time * 1000)}.prom").write_text(body(server.lines()))
        server.time += 15
    result = CliRunner().invoke(tuner, ["replay", str(recording), "--engine", "vllm", "--plot", str(target)])
    assert not target.exists()
    assert "picture:" not in result.stdout
    assert result.stderr.startswith("no picture of pool ")
    assert result.stderr.count("\n") == 1


def test_two_pools_get_two_files(tmp_path: Path) -> None:
    """Pools are named after their models, whose names have slashes: each still gets a file of its own."""
    recording = tmp_path / "two"
    recording.mkdir()
    servers = Server(model="org/a"), Server(model="org/b")
    for server in servers:
        server.running = 8
    for _ in range(12):
        lines = [*servers[0].lines(), *(line for line in servers[1].lines() if "process" not in line)]
        (recording / f"{round(servers[0].time * 1000)}.prom").write_text(body(lines))
        for server in servers:
            server.run(15, 8, 2)
    target = tmp_path / "pair.svg"
    result = CliRunner().invoke(tuner, ["replay", str(recording), "--engine", "vllm", "--plot", str(target)])
    assert result.exit_code == 0, result.stderr
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == ["pair-org_a.svg", "pair-org_b.svg"]
    assert result.stdout.count("picture: ") == 2


def test_an_unknown_format_is_refused_before_the_work(tmp_path: Path) -> None:
    """The suffix is looked at first: a folder that does not exist is not."""
    result = CliRunner().invoke(
        tuner, ["replay", str(tmp_path / "none"), "--engine", "vllm", "--plot", "picture.gif"]
    )
    assert "choose a name that ends in .png" in str(result.exception)
