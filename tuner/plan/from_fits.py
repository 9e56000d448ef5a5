"""Fits of acceptance and step time to a goodput table: tokens per second = B E(K) / t(B, K).

t is taken at its steady prefill: a batch that emits B E tokens a step also takes in that many times the
prompt tokens per output token, so N = B (k + 1) + B E * ratio. E is emitted tokens per request step, k the
draft tokens per request step at draft length K: fewer where the drafter stays silent or drafts are cut.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tuner.fit.step_time import MIX_REACH
from tuner.fleet import NotEnoughData, WindowState
from tuner.plan.goodput import CellState, GoodputTable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from tuner.fit.acceptance import AcceptanceFit
    from tuner.fit.cells import Cells
    from tuner.fit.step_time import StepTimeFit
    from tuner.fleet import Window
    from tuner.plan.goodput import Bools, Floats, Ints
    from tuner.plan.options import PlanOptions

GRID_RATIO = 1.25
"""Ratio of neighbouring batch sizes of the grid that a curve is planned on. Between two of them log speeds
are all but straight lines (a bend of the sharpest roofline is off by 0.3 %), so thresholds are exact."""
SAME_LOAD = 1.2
"""Cells whose mean batch lies within this ratio are one load, seen at several draft lengths: a closed loop
of 32 clients shows 29 to 31."""


class EmittedTokens(Protocol):
    """What a table needs to know of acceptance: tokens emitted per request step."""

    def emitted_moments(self, draft_lens: Sequence[int]) -> tuple[Floats, Floats, Floats]:
        """Return mean tokens ``(nk,)``, and mean ``(nk,)`` and covariance ``(nk, nk)`` of their log."""

    def drafted_per_step(self, draft_len: int) -> float:
        """Return draft tokens per request step when a draft length is asked for."""


class StepSeconds(Protocol):
    """What a table needs to know of step time."""

    def log_seconds_moments(
        self, batch: Floats, draft_len: Floats, prompt_tokens: Floats, context_tokens: Floats | None
    ) -> tuple[Floats, Floats]:
        """Return mean ``(nb, nk)`` and covariance ``(nb, nk, nk)`` of log seconds per step."""


def from_fits(
    acceptance: EmittedTokens,
    step_time: StepSeconds,
    batches: Sequence[int],
    draft_lens: Sequence[int],
    *,
    prompt_tokens_per_output_token: float = 0.0,
    context_tokens: Floats | None = None,
    states: NDArray[np.int8] | None = None,
) -> GoodputTable:
    """Build a goodput table from fits: log goodput is a sum, and the parts are known independently.

    Nothing is drawn: a cell is what the fits say of its batch and draft length, whichever other cells
    the table has.

    Args:
        acceptance: gives emitted tokens per request step.
        step_time: gives seconds per step.
        batches: ``(nb,)`` ascending from 1.
        draft_lens: ``(nk,)`` ascending from 0.
        prompt_tokens_per_output_token: prompt tokens computed per token emitted, cached ones left out.
        context_tokens: ``(nb,)`` tokens in the KV cache at each batch size, ``None`` for those seen.
        states: ``(nb, nk)`` what each cell rests on, ``None`` for measured everywhere.
    """
    batch, lens = np.asarray(batches, dtype=np.float64), _drafted(acceptance, draft_lens)
    tokens, log_tokens, token_cov = acceptance.emitted_moments([int(k) for k in draft_lens])
    prompt = batch[:, None] * tokens[None, :] * prompt_tokens_per_output_token
    log_seconds, second_cov = step_time.log_seconds_moments(batch, lens, prompt, context_tokens)
    mean = np.log(batch)[:, None] + log_tokens[None, :] - log_seconds
    return GoodputTable.from_moments(batches, draft_lens, mean, token_cov[None] + second_cov, states)


def _drafted(acceptance: EmittedTokens, draft_lens: Sequence[int]) -> Floats:
    """Return draft tokens per request step ``(nk,)`` at each draft length."""
    return np.array([acceptance.drafted_per_step(int(k)) for k in draft_lens], dtype=np.float64)


def table_from_fits(
    acceptance: AcceptanceFit | NotEnoughData,
    step_time: StepTimeFit | NotEnoughData,
    windows: Sequence[Window],
    options: PlanOptions,
) -> GoodputTable | NotEnoughData:
    """Build the table of one pool from its fits and the windows behind them.

    Batch sizes run from the smallest to the largest one measured, whatever ``options.max_batch`` is: the
    curve fills in between, and beyond them the schedule carries its ends on, with findings. Draft
    lengths run from 0 to the longest one that ran, and those that are allowed. Cells are
    ``EXTRAPOLATED`` where the step time lies outside what was measured, or a position of the draft was
    not measured, and ``UNKNOWN`` beyond the draft lengths that ran where it is not known what a token
    costs.
    """
    if isinstance(acceptance, NotEnoughData):
        return acceptance
    if isinstance(step_time, NotEnoughData):
        return step_time
    seen = _measured_batches(step_time.cells)
    batches = planning_batches(seen.tolist())
    longest = max(round(float(step_time.cells.draft_len.max())), max(acceptance.emitted, default=0))
    lens = sorted({*range(longest + 1), *(options.allowed_draft_lens or ())})
    ratio = _prompt_tokens_per_output_token(windows)
    unknown = _unknown(acceptance, step_time, lens, _ran(windows))
    states = _states(acceptance, step_time, batches, np.array(lens, dtype=np.int64), ratio, unknown)
    table = from_fits(
        acceptance, step_time, batches.tolist(), lens, prompt_tokens_per_output_token=ratio, states=states
    )
    return GoodputTable(
        batches=table.batches,
        draft_lens=table.draft_lens,
        log_mean=table.log_mean,
        log_cov=table.log_cov,
        states=table.states,
        explained=tuple(np.flatnonzero(np.isin(batches, seen)).tolist()),
        unknown=unknown,
        subject={"pool": acceptance.pool, "route": acceptance.route},
    )


def _measured_batches(cells: Cells) -> Ints:
    """Return the batch sizes that were measured, those within ``SAME_LOAD`` of each other as one."""
    order = np.argsort(cells.batch)
    batch, steps = cells.batch[order], cells.steps[order]
    starts: list[int] = []
    for place, value in enumerate(batch.tolist()):
        if not starts or value > SAME_LOAD * batch[starts[-1]]:
            starts.append(place)
    means = np.add.reduceat(batch * steps, starts) / np.add.reduceat(steps, starts)
    return np.unique(np.maximum(np.rint(means), 1)).astype(np.int64)


def planning_batches(measured: Collection[int]) -> Ints:
    """Return the batch sizes to plan at: those measured, and powers of ``GRID_RATIO`` between them.

    Powers, so that one more batch size measured adds rows and moves none.
    """
    first, last = min(measured), max(measured)
    steps = math.ceil(math.log(last) / math.log(GRID_RATIO))
    grid = np.rint(GRID_RATIO ** np.arange(steps + 1)).astype(np.int64)
    inside = grid[(grid >= first) & (grid <= last)]
    return np.unique(np.concatenate((inside, np.array(sorted(measured), dtype=np.int64))))


def _prompt_tokens_per_output_token(windows: Sequence[Window]) -> float:
    """Return computed prompt tokens per emitted token over the good windows, 0 where none tells."""
    prompt = emitted = 0.0
    for window in windows:
        counts = window.counts
        if window.state is WindowState.GOOD and counts.prompt_tokens is not None and counts.emitted:
            prompt += window.weight * counts.prompt_tokens
            emitted += window.weight * counts.emitted
    return prompt / emitted if emitted else 0.0


def _states(
    acceptance: AcceptanceFit,
    step_time: StepTimeFit,
    batches: Ints,
    lens: Ints,
    ratio: float,
    unknown: Mapping[int, str],
) -> NDArray[np.int8]:
    """Return what each cell rests on."""
    emitted, _, _ = acceptance.emitted_moments(lens.tolist())
    drafted = _drafted(acceptance, lens.tolist())
    grid_b, grid_k = batches[:, None].astype(np.float64), drafted[None, :]
    prompt = grid_b * emitted[None, :] * ratio
    inside = ~step_time.extrapolating(grid_b, grid_k, prompt)
    inside &= np.array([int(k) not in unknown for k in lens])[None, :]
    measured: Bools = step_time.correction.measured(
        np.repeat(grid_b, lens.size), np.tile(drafted, batches.size)
    ).reshape(inside.shape)
    states = np.where(inside, CellState.INTERPOLATED, CellState.EXTRAPOLATED)
    if isinstance(step_time.split, NotEnoughData):  # the curve knows the loads seen, and no other
        ran = step_time.cells.draft_len
        states[:, (lens < ran.min() - MIX_REACH) | (lens > ran.max() + MIX_REACH)] = CellState.UNKNOWN
    return np.where(inside & measured, CellState.MEASURED, states).astype(np.int8)


def _ran(windows: Sequence[Window]) -> frozenset[int]:
    """Return the draft lengths that good windows are known to have run."""
    known = [w.draft_lens for w in windows if w.state is WindowState.GOOD and w.draft_lens is not None]
    return frozenset(k for lens in known for k in lens or {0})


def _unknown(
    acceptance: AcceptanceFit, step_time: StepTimeFit, lens: Sequence[int], ran: frozenset[int]
) -> dict[int, str]:
    """Return per draft length why it is not known, for those that are not."""
    reasons = {k: _why_unknown(acceptance, step_time, k) for k in lens}
    reasons |= {k: f"draft length {k} never ran" for k, why in reasons.items() if not why and k not in ran}
    return {k: why for k, why in reasons.items() if why}


def _why_unknown(acceptance: AcceptanceFit, step_time: StepTimeFit, draft_len: int) -> str:
    """Return why nothing measured stands behind a draft length, empty where something does."""
    ran, drafted = step_time.cells.draft_len, acceptance.drafted_per_step(draft_len)
    if not ran.min() - MIX_REACH <= drafted <= ran.max() + MIX_REACH:
        return f"only draft lengths {ran.min():g} to {ran.max():g} ran"
    if draft_len == 0 or draft_len in acceptance.emitted:
        return ""
    if draft_len > len(acceptance.positions):
        return f"position {len(acceptance.positions)} was never drafted"
    for position in acceptance.positions[:draft_len]:
        if position.state != "measured":
            return f"position {position.position} is {position.state}"
    return ""
