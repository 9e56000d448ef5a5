"""Simulated request streams with a known acceptance, counted as an engine counts them.

An engine has slots; each slot serves one request after the other, one verify step at a time, and the
draft length is the engine's, the same for all slots in a step. A request keeps its own acceptance
(requests differ), and within it acceptance may drift in phases (neighbouring steps are alike). Windows
cut the stream wherever they fall, so that requests reach across them and windows are not independent.

Everything is vectorised over repetitions: a *segment* is the part of one phase of one request that lies
in one window; its steps share one acceptance, so its counts are binomial and drawn at once.
Nothing of the fits is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy.special import betaincinv

from tuner.fleet import Counts, Window, WindowState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

STEP_SECONDS = 0.05
GRID = 4000
"""Midpoints of the acceptance distribution over requests behind :func:`truth`: error below 1e-5."""

Plan = Literal["constant", "mixed", "by_window"]


@dataclass(frozen=True)
class Traffic:
    """Requests of one kind. Position i is accepted with ``p * profile[i]``, p drawn per request."""

    acceptance: float = 0.8
    """Mean of p over requests."""
    concentration: float = np.inf
    """a + b of the Beta distribution of p; infinite: all requests alike."""
    phase_concentration: float = np.inf
    """The same for the phases of a request around its own p."""
    profile: tuple[float, ...] = (1.0, 0.9, 0.825, 0.75)


@dataclass(frozen=True)
class World:
    """One engine and what it serves."""

    traffic: Traffic = Traffic()
    other: Traffic | None = None
    """Traffic of the busy regime; ``None``: the same at all times."""
    drafts: int = 3000
    """About how many drafts a repetition holds."""
    slots: int = 4
    quiet_slots: int = 0
    """Slots in use in the quiet regime; 0: all."""
    window_steps: int = 25
    request_steps: float = 8.0
    """Mean length of a request in verify steps."""
    by_tokens: bool = False
    """Requests end after a number of tokens, so that well accepted ones take fewer steps."""
    equal_requests: bool = False
    """All requests equally long; else geometric."""
    phases: int = 1
    """Phases per request."""
    draft_lens: tuple[int, ...] = (4,)
    """Draft lengths in use: of the quiet regime first."""
    plan: Plan = "constant"
    dwell_steps: float = 12.0
    """Mean steps that a regime lasts (``mixed``) or windows it lasts (``by_window``)."""
    tell_mix: bool = True
    """Whether windows say which draft lengths ran."""

    @property
    def steps(self) -> int:
        """Engine steps per repetition, a whole number of windows."""
        active = self.slots if not self.quiet_slots else (self.slots + self.quiet_slots) / 2
        return max(1, round(self.drafts / active / self.window_steps)) * self.window_steps


@dataclass(frozen=True)
class Evidence:
    """Counts of all repetitions, (reps, windows) or (reps, windows, positions)."""

    world: World
    drafts: Floats
    draft_tokens: Floats
    accepted: Floats
    finished: Floats
    request_seconds: Floats
    steps_at: Floats
    """(reps, windows, draft lengths) engine steps by draft length in use."""
    exposure: Floats
    """(reps, windows, positions) drafts that reached and proposed the position, which no engine exports."""
    other_share: Floats
    """(reps,) share of the drafts that served the traffic of the busy regime."""

    def windows(self, rep: int) -> tuple[Window, ...]:
        """Return the windows of one repetition, counts only, as a scraper would hand them on."""
        world = self.world
        seconds = world.window_steps * STEP_SECONDS
        return tuple(
            Window(
                pool="simulated",
                engine="e0",
                start=index * seconds,
                end=(index + 1) * seconds,
                state=WindowState.GOOD,
                reason="",
                counts=Counts(
                    steps=float(world.window_steps),
                    request_steps=drafts,
                    drafts=drafts,
                    draft_tokens=tokens,
                    accepted=sum(accepted),
                    accepted_by_position=tuple(accepted),
                    emitted=drafts + sum(accepted) + finished,
                    first_tokens=finished,
                    finished=finished,
                    request_seconds=request_seconds,
                ),
                draft_lens=self._lens(used),
            )
            for index, (drafts, tokens, accepted, finished, request_seconds, used) in enumerate(
                zip(
                    self.drafts[rep].tolist(),
                    self.draft_tokens[rep].tolist(),
                    self.accepted[rep].tolist(),
                    self.finished[rep].tolist(),
                    self.request_seconds[rep].tolist(),
                    self.steps_at[rep].tolist(),
                    strict=True,
                )
            )
        )

    def _lens(self, used: list[float]) -> frozenset[int] | None:
        lens = frozenset(k for k, steps in zip(self.world.draft_lens, used, strict=True) if steps > 0)
        return lens if self.world.tell_mix or len(lens) == 1 else None


def simulate(world: World, reps: int, rng: np.random.Generator) -> Evidence:
    """Run ``reps`` independent engines and count per window."""
    steps = world.steps
    windows = steps // world.window_steps
    regime = _regimes(world, reps, rng)
    served = _serve(world, regime, rng)
    rep, slot, phase, start, stop = _segments(world, served)
    cell = rep * windows + start // world.window_steps
    size, depth = reps * windows, max(world.draft_lens)

    def per_window(values: Floats | Ints) -> Floats:
        return np.bincount(cell, weights=values, minlength=size).astype(np.float64)

    accepted, exposure = np.zeros((size, depth)), np.zeros((size, depth))
    drafts, tokens, other = np.zeros(size), np.zeros(size), np.zeros(reps)
    steps_at = np.zeros((reps, windows, len(world.draft_lens)))
    kind = served.other[rep, slot, phase]
    p = served.acceptance[rep, slot, phase]
    for number, draft_len in enumerate(world.draft_lens):
        running = regime == number
        steps_at[..., number] = running.reshape(reps, windows, -1).sum(axis=-1)
        counted = np.concatenate([np.zeros((reps, 1), dtype=np.int64), np.cumsum(running, axis=1)], axis=1)
        reached = counted[rep, stop] - counted[rep, start]
        if number == 0 and world.quiet_slots:
            reached = np.where(slot < world.quiet_slots, reached, 0)
        drafts += per_window(reached)
        tokens += draft_len * per_window(reached)
        other += np.bincount(rep, weights=reached * kind, minlength=reps)
        for position in range(draft_len):
            exposure[:, position] += per_window(reached)
            reached = rng.binomial(reached, p * np.where(kind, *_profiles(world, position)))
            accepted[:, position] += per_window(reached)
    finished, seconds = _finished(world, served)
    return Evidence(
        world=world,
        drafts=drafts.reshape(reps, windows),
        draft_tokens=tokens.reshape(reps, windows),
        accepted=accepted.reshape(reps, windows, depth),
        finished=finished,
        request_seconds=seconds,
        steps_at=steps_at,
        exposure=exposure.reshape(reps, windows, depth),
        other_share=other / drafts.reshape(reps, windows).sum(axis=1),
    )


def truth(world: World, other_share: Floats) -> Floats:
    """Return the population's hazards (reps, positions): P(accepted | reached and proposed) over all steps.

    Requests whose tokens were accepted so far are the better ones, so that with unequal requests the
    hazard rises above the mean of p with the position. With two kinds of traffic the population is the
    mix of both that was served, whichever of them was asked for late positions.
    """
    survival = np.broadcast_to(_survival(world, world.traffic), (len(other_share), max(world.draft_lens) + 1))
    if world.other is not None:
        share = other_share[:, None]
        survival = (1 - share) * survival + share * _survival(world, world.other)
    return np.asarray(survival[:, 1:] / survival[:, :-1], dtype=np.float64)


def expected_tokens(world: World, draft_len: int) -> float:
    """Return the tokens a step at ``draft_len`` emits, over all steps of the world's first traffic."""
    return float(_survival(world, world.traffic)[: draft_len + 1].sum())


def _survival(world: World, traffic: Traffic) -> Floats:
    """P(first i tokens accepted), i = 0..depth, over steps; longer requests weigh more."""
    depth = max(world.draft_lens)
    p = _quantiles(traffic)
    moments = np.ones((depth + 1, len(p)))
    for order in range(depth):
        within = traffic.phase_concentration
        factor = p if np.isinf(within) else (within * p + order) / (within + order)
        moments[order + 1] = moments[order] * factor
    weight = 1.0 / _tokens_per_step(world, traffic, p) if world.by_tokens else np.ones_like(p)
    survival = (moments * weight).sum(axis=1) / weight.sum()
    return np.asarray(survival * np.cumprod([1.0, *traffic.profile[:depth]]), dtype=np.float64)


def _quantiles(traffic: Traffic) -> Floats:
    if np.isinf(traffic.concentration):
        return np.array([traffic.acceptance])
    a = traffic.acceptance * traffic.concentration
    middle = (np.arange(GRID) + 0.5) / GRID
    return np.asarray(betaincinv(a, traffic.concentration - a, middle), dtype=np.float64)


def _tokens_per_step(world: World, traffic: Traffic, p: Floats) -> Floats:
    powers = np.cumprod(np.multiply.outer(p, np.array(traffic.profile[: max(world.draft_lens)])), axis=-1)
    return np.asarray(1.0 + powers.sum(axis=-1), dtype=np.float64)


@dataclass(frozen=True)
class _Served:
    """Phases by repetition, slot and order, (reps, slots, phases)."""

    ends: Ints
    """Step at which the phase is over."""
    acceptance: Floats
    other: NDArray[np.bool_]
    """Belongs to a request of the busy regime's traffic."""
    closes: NDArray[np.bool_]
    """Ends its request."""
    request_steps: Ints
    """Steps of the whole request."""


def _regimes(world: World, reps: int, rng: np.random.Generator) -> Ints:
    """Number of the draft length in use by step (reps, steps)."""
    steps, count = world.steps, len(world.draft_lens)
    if world.plan == "constant":
        return np.zeros((reps, steps), dtype=np.int64)
    unit = world.window_steps if world.plan == "by_window" else 1
    length = steps // unit
    change = rng.random((reps, length)) < 1.0 / world.dwell_steps
    change[:, 0] = True
    drawn = rng.integers(0, count, (reps, length))
    last = np.maximum.accumulate(np.where(change, np.arange(length), 0), axis=1)
    return np.repeat(np.take_along_axis(drawn, last, axis=1), unit, axis=1)


def _serve(world: World, regime: Ints, rng: np.random.Generator) -> _Served:
    """Fill every slot with requests; the first one has been running for a random while."""
    reps, steps = regime.shape
    mean = world.request_steps
    ahead = int(4 * mean) + 1
    requests = int((steps + ahead) / mean + 6 * np.sqrt((steps + ahead) / mean)) + 4
    shape = (reps, world.slots, requests)
    p = _draw(world.traffic.acceptance, world.traffic.concentration, shape, rng)
    weight = np.ones(shape)
    if world.by_tokens:
        average = _tokens_per_step(world, world.traffic, _quantiles(world.traffic))
        weight = _tokens_per_step(world, world.traffic, p) * float((1.0 / average).mean())
    part = np.maximum(mean / weight / world.phases, 1.0)[..., None]
    lengths = np.broadcast_to(np.maximum(np.rint(part), 1), (*shape, world.phases)).astype(np.int64)
    if not world.equal_requests:
        lengths = rng.geometric(np.broadcast_to(1.0 / part, (*shape, world.phases)))
    whole = lengths.sum(axis=-1)
    offset = rng.integers(0, ahead, (reps, world.slots, 1))
    request_ends = np.cumsum(whole, axis=-1) - offset
    other = np.zeros(shape, dtype=bool)
    if world.other is not None:
        begins = np.clip(request_ends - whole, 0, steps - 1)
        other = np.take_along_axis(regime[:, None, :], begins, axis=-1) > 0
        p = np.where(other, _draw(world.other.acceptance, world.other.concentration, shape, rng), p)
    ends = np.cumsum(lengths.reshape(reps, world.slots, -1), axis=-1) - offset
    within = _draw(p[..., None], world.traffic.phase_concentration, (*shape, world.phases), rng)
    closes = np.broadcast_to(np.arange(world.phases) == world.phases - 1, (*shape, world.phases))
    flat = (reps, world.slots, requests * world.phases)
    return _Served(
        ends=ends,
        acceptance=within.reshape(flat),
        other=np.repeat(other, world.phases, axis=-1),
        closes=closes.reshape(flat),
        request_steps=np.repeat(whole, world.phases, axis=-1),
    )


def _draw(
    mean: float | Floats, concentration: float, shape: tuple[int, ...], rng: np.random.Generator
) -> Floats:
    if np.isinf(concentration):
        return np.broadcast_to(np.asarray(mean, dtype=np.float64), shape)
    return rng.beta(np.asarray(mean) * concentration, (1 - np.asarray(mean)) * concentration, shape)


def _segments(world: World, served: _Served) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Cut every slot's timeline at the ends of phases and windows.

    Returns:
        Repetition, slot, phase, first step and step after the last, one entry per segment.
    """
    reps, slots, phases = served.ends.shape
    marks = np.arange(world.window_steps, world.steps + 1, world.window_steps)
    tagged_ends = np.clip(served.ends, 0, world.steps) * 2 + 1
    tagged_marks = np.broadcast_to(marks * 2, (reps, slots, len(marks)))
    cuts = np.concatenate([tagged_ends, tagged_marks], axis=-1)
    cuts.sort(axis=-1)
    stop, is_end = cuts >> 1, cuts & 1
    start = np.concatenate([np.zeros((reps, slots, 1), dtype=np.int64), stop[..., :-1]], axis=-1)
    phase = np.minimum(np.cumsum(is_end, axis=-1) - is_end, phases - 1)
    rep, slot, order = np.nonzero(stop > start)
    return rep, slot, phase[rep, slot, order], start[rep, slot, order], stop[rep, slot, order]


def _profiles(world: World, position: int) -> tuple[float, float]:
    other = world.other or world.traffic
    return other.profile[position], world.traffic.profile[position]


def _finished(world: World, served: _Served) -> tuple[Floats, Floats]:
    """Requests that ended, and the sum of their seconds, per window (reps, windows)."""
    windows = world.steps // world.window_steps
    reps = len(served.ends)
    rep, slot, order = np.nonzero(served.closes & (served.ends > 0) & (served.ends <= world.steps))
    window = (served.ends[rep, slot, order] - 1) // world.window_steps
    cell = rep * windows + window
    seconds = served.request_steps[rep, slot, order] * STEP_SECONDS
    count = np.bincount(cell, minlength=reps * windows).astype(np.float64)
    return (
        count.reshape(reps, windows),
        np.bincount(cell, weights=seconds, minlength=reps * windows)
        .astype(np.float64)
        .reshape(reps, windows),
    )
