"""Two panels that say what a decision rests on: goodput over batch, step time over tokens in flight."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner._exceptions import InputError
from tuner.cli.decision import drafter_of
from tuner.cli.plan_text import cannot_say
from tuner.fit.crossover import Crossover
from tuner.fit.step_time import StepTimeFit
from tuner.fleet import Schedule, WindowState
from tuner.plan.goodput import Z95

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from tuner.cycle import PoolDecision
    from tuner.fleet import Window

    Floats = NDArray[np.float64]

FORMATS = (".png", ".svg", ".pdf")
MILLISECONDS = 1000.0
PANEL_INCHES = (6.5, 5.9)
DOTS_PER_INCH = 110
TITLE_COLUMNS = 70
"""Characters of the title's font that fit the width of one panel."""
BOX_COLUMNS = 52
"""Characters of the notes inside a panel."""

COLOURS = ("#222222", "#4477aa", "#33bbee", "#228833", "#ccaa22", "#aa3377", "#ee7733", "#775533")
"""By draft length from 0, the same in every picture; they stay apart for colour-blind eyes (after Paul
Tol's bright scheme). Red is kept for the crossover, a pale marker's violet for the schedule."""
RED, MARKER, SHARED = "#cc3311", "#dcb3e6", "0.25"
SAME = 0.015
"""Distance, in heights of the panel, within which curves of two draft lengths hide each other: a panel is
370 points high, a line 1.3 wide, and three widths apart two lines begin to be two."""
OUTSIDE: dict[str, Any] = {"linestyle": (0, (2, 2)), "linewidth": 1.0, "alpha": 0.55}
"""How a curve is drawn where nothing was measured."""


def nothing_to_draw(decision: PoolDecision) -> str:
    """Return why a picture would show empty axes, or nothing if it would not."""
    if decision.table is not None or isinstance(decision.step_time, StepTimeFit):
        return ""
    return f"neither tokens per second nor step time can be told: {cannot_say(decision.step_time)}"


def check_format(path: Path) -> None:
    """Refuse a name whose suffix chooses no format.

    Raises:
        InputError: the suffix is none that can be drawn.
    """
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"--plot {path}: choose a name that ends in {', '.join(FORMATS)}")


def draw(decision: PoolDecision, path: Path) -> None:
    """Draw one pool's decision to a file whose suffix chooses the format.

    Raises:
        InputError: the file cannot be written.
    """
    figure = figure_of(decision)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except OSError as error:
        raise InputError(f"--plot {path}: {error.strerror}: name a file in a folder you may write") from None


def figure_of(decision: PoolDecision) -> Figure:
    """Return the panels that have something to show, under the schedule in words."""
    from matplotlib.figure import Figure  # costs 0.4 s to import

    panels = [
        panel
        for panel, shown in (
            (_draw_goodput, decision.table is not None),
            (_draw_step_time, isinstance(decision.step_time, StepTimeFit)),
        )
        if shown
    ]
    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * len(panels), height), dpi=DOTS_PER_INCH, layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for panel, place in zip(panels, axes, strict=True):
        panel(place, decision)
        place.grid(alpha=0.25)
    title = f"pool {decision.pool}: {_headline(decision)}"
    wrapped = textwrap.fill(title, TITLE_COLUMNS * len(panels))
    figure.suptitle(wrapped, fontsize=11, parse_math=False)
    _draw_legend(figure, decision)
    return figure


def colour_of(draft_len: int) -> str:
    """Return the colour of a draft length; from 8 on they come round again, as no engine runs so many."""
    return COLOURS[draft_len] if draft_len < len(COLOURS) else COLOURS[1 + (draft_len - 1) % 7]


def _headline(decision: PoolDecision) -> str:
    schedule = decision.schedule
    if not isinstance(schedule, Schedule):
        return f"no schedule: {cannot_say(schedule)}"
    ranges = ", ".join(f"K={k} for {first}-{last}" for first, last, k in schedule.ranges)
    return f"draft length K by requests in the step: {ranges}"


def _pure(decision: PoolDecision) -> list[tuple[int, Window]]:
    """Return the good windows that ran one draft length, with it."""
    out: list[tuple[int, Window]] = []
    for window in decision.windows:
        lens = window.draft_lens
        if window.state is WindowState.GOOD and lens is not None and len(lens) <= 1:
            out.append((next(iter(lens), 0), window))
    return out


def _shown_draft_lens(decision: PoolDecision) -> list[int]:
    """Return every draft length that either panel shows."""
    table = [] if decision.table is None else decision.table.draft_lens.tolist()
    return sorted({k for k, _ in _pure(decision)} | set(table))


def _draw_legend(figure: Figure, decision: PoolDecision) -> None:
    """Say below both panels what colours, dots, bands and dashes are."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Line2D([], [], color=colour_of(k), linewidth=2.5, label=f"K={k}") for k in _shown_draft_lens(decision)
    ]
    handles.append(
        Line2D([], [], color=SHARED, marker=".", linestyle="", label="dot: one window, as measured")
    )
    if decision.table is not None:
        handles.append(Patch(color=SHARED, alpha=0.2, linewidth=0, label="band: 95 % interval"))
    if decision.table is not None and isinstance(decision.schedule, Schedule):
        handles.append(Line2D([], [], color=MARKER, linewidth=7, label="schedule"))
    handles.append(Line2D([], [], color=SHARED, label="dashed: outside of what was measured", **OUTSIDE))
    figure.legend(handles=handles, loc="outside lower center", ncols=5 * len(figure.axes), fontsize=8)


def _draw_goodput(axes: Axes, decision: PoolDecision) -> None:
    """Tokens per second by draft length over batch, windows as dots, the schedule as a wide line."""
    axes.set_title("tokens per second by batch and draft length K", fontsize=10)
    axes.set_xlabel("requests in the batch")
    axes.set_ylabel("tokens / s")
    table = decision.table
    assert table is not None
    if isinstance(decision.schedule, Schedule):
        _draw_choice(axes, decision, decision.schedule)
    batches = table.batches
    for column, k in enumerate(table.draft_lens.tolist()):
        known, inside = table.known[:, column], table.supported[:, column]
        with np.errstate(invalid="ignore"):
            mean, reach = table.log_mean[:, column], Z95 * table.log_sd[:, column]
            speed = np.where(known, np.exp(mean), np.nan)
            low, high = (np.where(inside, np.exp(mean + sign * reach), np.nan) for sign in (-1, 1))
        axes.plot(batches, speed, color=colour_of(k), **OUTSIDE)
        axes.plot(batches, np.where(inside, speed, np.nan), color=colour_of(k), linewidth=1.5)
        axes.fill_between(batches, low, high, color=colour_of(k), alpha=0.15, linewidth=0)
    points = [(k, window.batch, window.tokens_per_second) for k, window in _pure(decision)]
    _draw_dots(axes, [(k, x, y) for k, x, y in points if x and y])
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(bottom=0)


def _draw_dots(axes: Axes, points: Sequence[tuple[int, float, float]]) -> None:
    """Draw windows by their draft length."""
    for k in sorted({k for k, _, _ in points}):
        xs, ys = zip(*((x, y) for draft_len, x, y in points if draft_len == k), strict=True)
        axes.plot(xs, ys, ".", color=colour_of(k), markersize=4, alpha=0.6)


def _draw_choice(axes: Axes, decision: PoolDecision, schedule: Schedule) -> None:
    """Underlay what the schedule runs at each batch size."""
    table = decision.table
    assert table is not None
    inside = table.batches <= schedule.max_batch
    chosen = np.array([schedule.draft_len_at(b) for b in table.batches[inside].tolist()])
    columns = np.searchsorted(table.draft_lens, chosen)
    rows = np.flatnonzero(inside)
    axes.plot(
        table.batches[inside],
        np.exp(table.log_mean[rows, columns]),
        color=MARKER,
        linewidth=8,
        solid_capstyle="round",
    )


def _draw_step_time(axes: Axes, decision: PoolDecision) -> None:
    """Step time over tokens in flight: windows as dots, the fitted curves, the crossover."""
    axes.set_title("time of a step by tokens in flight", fontsize=10)
    axes.set_xlabel("tokens in flight per step: requests x (K+1) + prompt tokens")
    axes.set_ylabel("milliseconds per step")
    fit = decision.step_time
    assert isinstance(fit, StepTimeFit)
    points = [
        (k, window.tokens_in_flight, MILLISECONDS * window.step_seconds)
        for k, window in _pure(decision)
        if window.tokens_in_flight and window.step_seconds
    ]
    _draw_dots(axes, points)
    seen: dict[int, list[float]] = {}
    for k, tokens, _ in points:
        seen.setdefault(k, []).append(tokens)
    _draw_curves(axes, fit, seen)
    notes = [drafter_of(fit)]
    if isinstance(fit.crossover, Crossover):
        _draw_crossover(axes, fit.crossover)
    else:
        notes.append(f"crossover: cannot say: {cannot_say(fit.crossover)}")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    # A step takes its fixed time at least, so with an axis from 0 this corner lies below every curve.
    title = "\n".join(textwrap.fill(note, BOX_COLUMNS) for note in notes)
    axes.legend(fontsize=8, loc="lower right", title=title, title_fontsize=8, alignment="left")


def _draw_crossover(axes: Axes, crossover: Crossover) -> None:
    span = f"95 %: {crossover.low:.0f} to {crossover.high:.0f}"
    label = (
        f"crossover {crossover.tokens:.0f} tokens ({span}):\nbeyond it tokens take longer than the fixed time"
    )
    axes.axvspan(crossover.low, crossover.high, color=RED, alpha=0.12, linewidth=0)
    axes.axvline(crossover.tokens, color=RED, linewidth=1.2, label=label)


def _draw_curves(axes: Axes, fit: StepTimeFit, seen: dict[int, list[float]]) -> None:
    """Draw the fitted curve of every draft length that ran, those that coincide as one."""
    if not seen:
        return
    top = max(max(tokens) for tokens in seen.values())
    grid = np.linspace(max(seen) + 1.0, max(top, max(seen) + 2.0), 200)
    for lens, seconds in group_curves({k: fit.curve_seconds(grid / (k + 1), k) for k in sorted(seen)}):
        alone = len(lens) == 1
        names = f"K={_listed(lens)}"
        tokens = [n for k in lens for n in seen[k]]
        inside = (grid >= min(tokens) - grid[0]) & (grid <= max(tokens))
        colour = colour_of(lens[0]) if alone else SHARED
        axes.plot(grid, MILLISECONDS * seconds, color=colour, **OUTSIDE)
        axes.plot(
            grid,
            np.where(inside, MILLISECONDS * seconds, np.nan),
            color=colour,
            linewidth=1.3,
            label=f"fit for {names}" + ("" if alone else ", drawn as one"),
        )


def group_curves(curves: dict[int, Floats]) -> list[tuple[list[int], Floats]]:
    """Put draft lengths together whose curves would hide each other, and draw the first of each group."""
    groups: list[tuple[list[int], Floats]] = []
    height = max(float(seconds.max()) for seconds in curves.values())
    for k, seconds in curves.items():
        for lens, first in groups:
            if np.all(np.abs(seconds - first) <= SAME * height):
                lens.append(k)
                break
        else:
            groups.append(([k], seconds))
    return groups


def _listed(lens: Sequence[int]) -> str:
    """Write draft lengths shortly: 0-4 where they follow each other."""
    if len(lens) > 2 and lens[-1] - lens[0] == len(lens) - 1:  # noqa: PLR2004 - two are no shorter as a range
        return f"{lens[0]}-{lens[-1]}"
    return ",".join(map(str, lens))
