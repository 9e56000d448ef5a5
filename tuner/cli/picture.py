"""Two panels that say what a decision rests on: goodput over batch, step time over tokens in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tuner._exceptions import InputError
from tuner.fit.crossover import Crossover
from tuner.fit.step_time import StepTimeFit
from tuner.fleet import Schedule, WindowState
from tuner.plan.goodput import Z95

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from tuner.cycle import PoolDecision
    from tuner.fleet import Window

FORMATS = (".png", ".svg", ".pdf")
MILLISECONDS = 1000.0
SIZE_INCHES = (13.0, 5.2)
DOTS_PER_INCH = 110


def draw(decision: PoolDecision, path: Path) -> None:
    """Draw one pool's decision to a file whose suffix chooses the format.

    Raises:
        InputError: the suffix is none that can be drawn, or the file cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"--plot {path}: choose a name that ends in {', '.join(FORMATS)}")
    from matplotlib.figure import Figure  # costs 0.4 s to import

    figure = Figure(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    goodput, steps = figure.subplots(1, 2)
    _draw_goodput(goodput, decision)
    _draw_step_time(steps, decision)
    figure.suptitle(f"pool {decision.pool}: {_headline(decision)}", fontsize=11)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except OSError as error:
        raise InputError(f"--plot {path}: {error.strerror}: name a file in a folder you may write") from None


def _headline(decision: PoolDecision) -> str:
    schedule = decision.schedule
    if not isinstance(schedule, Schedule):
        return f"no schedule: {schedule}"
    ranges = ", ".join(f"K={k} for {first}-{last}" for first, last, k in schedule.ranges)
    return f"draft length by requests in the step: {ranges}"


def _colours(draft_lens: list[int]) -> dict[int, tuple[float, float, float, float]]:
    """Give each draft length a colour that keeps its order and that colour-blind eyes tell apart."""
    from matplotlib import colormaps

    shades = colormaps["viridis"](np.linspace(0.0, 0.9, max(2, len(draft_lens))))
    return {k: tuple(shade.tolist()) for k, shade in zip(draft_lens, shades, strict=False)}


def _pure(decision: PoolDecision) -> list[tuple[int, Window]]:
    """Return the good windows that ran one draft length, with it."""
    out: list[tuple[int, Window]] = []
    for window in decision.windows:
        lens = window.draft_lens
        if window.state is WindowState.GOOD and lens is not None and len(lens) <= 1:
            out.append((next(iter(lens), 0), window))
    return out


def _draw_goodput(axes: Axes, decision: PoolDecision) -> None:
    """Tokens per second by draft length over batch, windows as dots, the schedule as a wide line."""
    axes.set_title("tokens per second by draft length K", fontsize=10)
    axes.set_xlabel("requests in the batch")
    axes.set_ylabel("tokens / s")
    table = decision.table
    if table is None:
        axes.text(0.5, 0.5, "cannot say", ha="center", transform=axes.transAxes)
        return
    colours = _colours(table.draft_lens.tolist())
    if isinstance(decision.schedule, Schedule):
        _draw_choice(axes, decision, decision.schedule)
    for column, k in enumerate(table.draft_lens.tolist()):
        known = table.known[:, column]
        mean, reach = table.log_mean[known, column], Z95 * table.log_sd[known, column]
        batches = table.batches[known]
        axes.plot(batches, np.exp(mean), color=colours[k], label=f"K={k}", linewidth=1.5)
        axes.fill_between(
            batches, np.exp(mean - reach), np.exp(mean + reach), color=colours[k], alpha=0.12, linewidth=0
        )
    for k, window in _pure(decision):
        if k in colours and window.batch and window.tokens_per_second:
            axes.plot(window.batch, window.tokens_per_second, ".", color=colours[k], markersize=3, alpha=0.5)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.25)


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
        color="0.75",
        linewidth=7,
        solid_capstyle="round",
        label="schedule",
    )


def _draw_step_time(axes: Axes, decision: PoolDecision) -> None:
    """Step time over tokens in flight: windows as dots, the fitted curve, the crossover."""
    axes.set_title("step time", fontsize=10)
    axes.set_xlabel("tokens in flight per step (requests x (K+1) + prompt tokens)")
    axes.set_ylabel("milliseconds per step")
    windows = _pure(decision)
    colours = _colours(sorted({k for k, _ in windows}))
    for k, window in windows:
        if window.tokens_in_flight and window.step_seconds:
            axes.plot(
                window.tokens_in_flight,
                MILLISECONDS * window.step_seconds,
                ".",
                color=colours[k],
                markersize=4,
                alpha=0.6,
            )
    fit = decision.step_time
    if not isinstance(fit, StepTimeFit):
        axes.text(0.5, 0.5, f"cannot say: {fit}", ha="center", transform=axes.transAxes, wrap=True)
        return
    top = max((w.tokens_in_flight or 0.0 for _, w in windows), default=1.0)
    for k, colour in colours.items():
        tokens: NDArray[np.float64] = np.linspace(k + 1.0, top, 200)
        seconds = fit.curve_seconds(tokens / (k + 1), k)
        axes.plot(tokens, MILLISECONDS * seconds, color=colour, linewidth=1.2, label=f"K={k}")
    crossover = fit.crossover
    if isinstance(crossover, Crossover):
        axes.axvspan(crossover.low, crossover.high, color="tab:red", alpha=0.12, linewidth=0)
        axes.axvline(crossover.tokens, color="tab:red", linewidth=1.2)
        axes.text(
            crossover.tokens,
            0.98,
            f" crossover {crossover.tokens:.0f}\n ({crossover.low:.0f} to {crossover.high:.0f})",
            transform=axes.get_xaxis_transform(),
            va="top",
            fontsize=8,
            color="tab:red",
        )
    else:
        axes.set_title(f"step time; crossover: cannot say, {crossover}", fontsize=8)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, loc="lower right")
    axes.grid(alpha=0.25)
