"""Hazard by position with an honest interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from tuner.fit.dispersion import (
    Blocks,
    RatioSpread,
    assign_blocks,
    cap_factors,
    mean_request_seconds,
    ratio_spread,
)
from tuner.fit.exposure import Basis, ExposureTable
from tuner.fit.hazards import HazardPosterior
from tuner.fit.selection import Selection, find_selection, shift_between_lengths, solved_sd

if TYPE_CHECKING:
    from tuner.fit.arrays import BoolArray, FloatArray

State = Literal["measured", "censored", "extrapolated"]

MIN_EXPOSED = 5.0
"""A position reached fewer times than this is called unseen: its interval would be the prior's."""

PRIOR_TRIALS = 1.0
"""Trials' worth of prior at the mean of the other positions, near ones first: it moves the late positions
of 300 drafts (some 100 trials) by 1 % of the distance, 5 trials by a sixth."""

DIP_TOLERANCE = 0.15
"""How far a solved hazard may lie outside its two measured neighbours. Published profiles (SpecDecode-Bench,
arXiv 2601.11580; vLLM PR 52992) bend by less than 0.06 against the mean of their neighbours."""

STEP_TOLERANCE = 0.30
"""The same with one measured neighbour only; the largest published drop from one position to the next is
0.19 (EAGLE-1 on MT-Bench, vLLM issue 20780)."""


@dataclass(frozen=True, slots=True)
class PositionFit:
    """Acceptance at one draft position, given that it was reached and proposed."""

    position: int
    """Counted from 0."""
    hazard: float | None
    """``None`` where censored: the interval is then 0 to 1."""
    low: float
    high: float
    """95 % interval."""
    exposed: float
    """Drafts that reached and proposed the position, unweighted."""
    accepted: float
    state: State
    reason: str
    """Why the position is censored or extrapolated, or what widened its interval; else empty."""
    weak: bool
    """The interval leans on a default dispersion, fewer than 8 blocks of windows being at hand."""


@dataclass(frozen=True, eq=False)
class PositionsFit:
    """All positions of one fit, with what the rest of the fit needs of them."""

    positions: tuple[PositionFit, ...]
    posterior: HazardPosterior
    weights: FloatArray
    """(n, P) weight of each window at each position."""
    noise: FloatArray
    """(n, P) variance of accepted - hazard * exposed with independent trials, weighted."""
    dispersion: float
    blocks: int
    prior_dispersion: float
    """Dispersion to lean on under 8 blocks: that of a position with more, if there is one."""
    selection: Selection | None
    """The strongest sign that the draft length followed the acceptance, if there is one."""


@dataclass
class _Draft:
    """One position while it is being fitted."""

    spread: RatioSpread | None = None
    variance: float = 0.0
    hazard: float = 0.0
    """Ratio, kept off 0 and 1 by half a trial."""
    reason: str = ""
    state: State = "measured"
    solved_share: float = 0.0
    solved_sd: float = 0.0
    """Relative standard deviation that solving adds, however much was counted."""
    confounded: Selection | None = None

    @property
    def is_solved(self) -> bool:
        """Most of the exposure comes from mixes of two draft lengths."""
        return 2 * self.solved_share > 1


def fit_positions(table: ExposureTable, forgetting: FloatArray, prior_dispersion: float) -> PositionsFit:
    """Fit every position of ``table``.

    Args:
        table: exposure of n windows.
        forgetting: (n,) weight of each window by age, 1 without forgetting.
        prior_dispersion: dispersion to lean on under 8 blocks.
    """
    request_seconds = mean_request_seconds(table)
    weights = np.zeros_like(table.exposed)
    noise = np.zeros_like(table.exposed)
    drafts: list[_Draft] = []
    cache: dict[bytes, Blocks] = {}
    for position in range(table.positions):
        exposed = table.exposed[:, position] * forgetting
        members = exposed > 0
        draft = _Draft()
        if np.any(table.basis[:, position] == Basis.SOLVED):
            draft.solved_sd = solved_sd(table, drafts[0].spread)
        drafts.append(draft)
        if table.exposed[:, position].sum() < MIN_EXPOSED:
            _explain_missing(table, position, draft)
            continue
        weights[:, position] = forgetting * cap_factors(exposed)
        weight = weights[:, position]  # a view
        if draft.solved_sd > 0:
            first = drafts[0].spread
            dispersion = first.dispersion if first is not None else prior_dispersion
            weight *= _solved_factors(table, position, draft, weight, dispersion)
        blocks = _blocks(table, members, request_seconds, cache)
        _measure(table, position, draft, weights[:, position], noise[:, position], blocks, prior_dispersion)
        if draft.spread is not None and not draft.spread.weak:
            prior_dispersion = draft.spread.dispersion  # what this pool showed beats any default
    everyone = _blocks(table, table.drafts > 0, request_seconds, cache)
    for position, draft in enumerate(drafts):
        if draft.state == "measured":
            _widen(table, position, draft, weights, everyone, prior_dispersion)
    _guard_neighbours(drafts)
    return _assemble(table, drafts, weights, noise, everyone, prior_dispersion)


def _blocks(
    table: ExposureTable, members: BoolArray, request_seconds: float | None, cache: dict[bytes, Blocks]
) -> Blocks:
    key = members.tobytes()
    if key not in cache:
        cache[key] = assign_blocks(table.engine, table.seconds, members, request_seconds)
    return cache[key]


def _explain_missing(table: ExposureTable, position: int, draft: _Draft) -> None:
    basis = table.basis[:, position]
    if np.any(basis == Basis.CENSORED):
        draft.state = "censored"
        if any(not window.counts.accepted_by_position for window in table.windows):
            draft.reason = "the engine tells totals only, not acceptance by position"
        elif all(not window.draft_lens for window in table.windows):
            draft.reason = "a mix of unknown draft lengths: who proposed this position is not known"
        else:
            draft.reason = (
                f"three or more draft lengths ran, {position} among them: their shares are not known"
            )
    else:
        draft.state = "extrapolated"
        draft.reason = "never proposed in these windows: carried over from the positions before it"


def _solved_factors(
    table: ExposureTable, position: int, draft: _Draft, weight: FloatArray, dispersion: float
) -> FloatArray:
    """Factors (n,) in (0, 1] after which solved windows count as much as they are worth beside direct ones.

    Weighed by precision, a solved hazard having the systematic variance on top of its sampling variance:
    many mixed windows do not outvote the few windows that ran the longer draft length alone.
    """
    factors = np.ones_like(weight)
    solved = table.basis[:, position] == Basis.SOLVED
    exposed = weight * table.exposed[:, position]
    by_solving, direct = float(exposed[solved].sum()), float(exposed[~solved].sum())
    if by_solving <= 0 or direct <= 0:
        return factors
    ratio = float((weight * table.accepted[:, position]).sum()) / (by_solving + direct)
    noise = weight**2 * _independent_noise(table, position, min(max(ratio, 0.02), 0.98), solved)
    of_direct = dispersion * float(noise[~solved].sum()) / direct**2
    of_solved = dispersion * float(noise[solved].sum()) / by_solving**2 + (ratio * draft.solved_sd) ** 2
    factors[solved] = min(1.0, of_direct / of_solved * direct / by_solving)
    return factors


def _measure(
    table: ExposureTable,
    position: int,
    draft: _Draft,
    weight: FloatArray,
    noise: FloatArray,
    blocks: Blocks,
    prior_dispersion: float,
) -> None:
    """Ratio and variance of one position; a hazard above 1 is censored, never clamped. Fills ``noise``."""
    exposed, accepted = table.exposed[:, position], table.accepted[:, position]
    solved = table.basis[:, position] == Basis.SOLVED
    weighted = float((weight * exposed).sum())
    ratio = float((weight * accepted).sum()) / weighted
    draft.solved_share = float((weight * exposed)[solved].sum()) / weighted
    if ratio > 1:
        draft.state = "censored"
        draft.reason = (
            f"k_confounded: solved as {ratio:.3f}, above 1, so the draft length followed the acceptance"
        )
        draft.confounded = Selection(position, ratio - 1.0, 0.0, 1.0)
        return
    # Half a trial keeps the variance of a hazard that reads 0 or 1 above zero.
    draft.hazard = (ratio * weighted + 0.5) / (weighted + 1.0)
    noise[:] = weight**2 * _independent_noise(table, position, draft.hazard, solved)
    spread = ratio_spread(weight * accepted, weight * exposed, noise, blocks, prior_dispersion)
    draft.spread, draft.variance = spread, spread.variance


def _independent_noise(table: ExposureTable, position: int, hazard: float, solved: BoolArray) -> FloatArray:
    """Variance of ``accepted - hazard * exposed`` per window (n,) if every draft were independent.

    Direct: binomial. Solved, with share w of D drafts going beyond, S the survival up to and with this
    position: both the acceptances and the reach that stands for the exposure are random. Dividing by the
    squared expectation gives var(log h) = (1-S)/(D w S) - (1-S')/(D S'), S' the survival before it.
    """
    exposed = table.exposed[:, position]
    noise = exposed * hazard * (1 - hazard)
    if solved.any():
        share = table.share[solved, position]
        survival = np.minimum(hazard, hazard * exposed[solved] / (share * table.drafts[solved]))
        noise[solved] = exposed[solved] * hazard * ((1 - survival) - share * (hazard - survival))
    return noise


def _widen(
    table: ExposureTable,
    position: int,
    draft: _Draft,
    weights: FloatArray,
    blocks: Blocks,
    prior_dispersion: float,
) -> None:
    """Add what depends on the draft length: selection of the steps that got this far, honest shift with K."""
    assert draft.spread is not None
    if position > 0:
        selection = find_selection(
            table, position, weights[:, 0], blocks, prior_dispersion, draft.solved_share > 0
        )
        if selection is not None and selection.significant:
            draft.state = "censored"
            draft.reason = f"k_confounded: {selection}"
            draft.confounded = selection
            return
        if selection is not None:
            reach = 1.0 + draft.solved_share * position
            added = reach**2 * selection.excess_variance
            if added > draft.variance:
                draft.reason = f"widened: {selection}"
            draft.variance += added
    draft.variance += (draft.hazard * draft.solved_share * draft.solved_sd) ** 2
    draft.variance += (draft.hazard * _cut_share(table, position, weights[:, position])) ** 2 / 3.0
    shift = shift_between_lengths(table, position, weights[:, position], draft.spread)
    if shift > 0:
        draft.variance += shift
        draft.reason = "acceptance differs by draft length: the interval covers all of those in use"


def _cut_share(table: ExposureTable, position: int, weight: FloatArray) -> float:
    """Return the largest share of a position's exposure that drafts cut short before it can make up.

    Of e missing tokens a draft, at most e/(K - i) of the drafts ended before position i. The hazard reads
    low by a share between none and that: squared over three, the variance of anything in between, makes an
    interval reach over the whole of it.
    """
    exposed = weight * table.exposed[:, position]
    left = np.maximum(table.asked - position, 1)
    known = table.asked > position
    total = float(exposed.sum())
    return float((exposed * table.cut / left)[known].sum()) / total if total > 0 else 0.0


def _guard_neighbours(drafts: list[_Draft]) -> None:
    """Censor a solved hazard that its measured neighbours contradict.

    Where the share w hardly varies between windows nothing else can show that K followed acceptance.
    """
    for position, draft in enumerate(drafts):
        if draft.state != "measured" or not draft.is_solved:
            continue
        beside = [
            drafts[other].hazard
            for other in (position - 1, position + 1)
            if 0 <= other < len(drafts) and drafts[other].state == "measured" and not drafts[other].is_solved
        ]
        if not beside:
            continue
        tolerance = (DIP_TOLERANCE if len(beside) > 1 else STEP_TOLERANCE) + 2 * math.sqrt(draft.variance)
        if min(beside) - tolerance <= draft.hazard <= max(beside) + tolerance:
            continue
        draft.state = "censored"
        shown = " and ".join(f"{hazard:.2f}" for hazard in beside)
        draft.reason = f"k_confounded: solved as {draft.hazard:.2f} beside neighbours at {shown}"
        draft.confounded = Selection(position, draft.hazard - sum(beside) / len(beside), 0.0, 1.0)


def _assemble(
    table: ExposureTable,
    drafts: list[_Draft],
    weights: FloatArray,
    noise: FloatArray,
    blocks: Blocks,
    prior_dispersion: float,
) -> PositionsFit:
    from scipy.special import betaincinv  # noqa: PLC0415 - costs 0.1 s, not needed to import the package

    measured = np.array([draft.state == "measured" for draft in drafts], dtype=bool)
    hazard = np.array([draft.hazard for draft in drafts])
    variance = np.array(
        [draft.variance if kept else 1.0 for draft, kept in zip(drafts, measured, strict=True)]
    )
    trials = np.where(measured, hazard * (1 - hazard) / variance, 0.0)
    ratio = np.array([draft.spread.ratio if draft.spread else 0.5 for draft in drafts])
    centre = _neighbour_mean(ratio, trials)
    alpha = trials * ratio + PRIOR_TRIALS * centre
    beta = trials * (1 - ratio) + PRIOR_TRIALS * (1 - centre)
    low, high = betaincinv(alpha, beta, 0.025), betaincinv(alpha, beta, 0.975)
    spreads = [draft.spread for draft in drafts if draft.spread and draft.state == "measured"]
    exposure = [float((weights[:, i] * table.exposed[:, i]).sum()) for i in np.flatnonzero(measured)]
    dispersion = (
        sum(spread.dispersion * size for spread, size in zip(spreads, exposure, strict=True)) / sum(exposure)
        if spreads
        else 1.0
    )
    weighted = weights * np.where(measured, 1.0, 0.0)
    residual = weighted * (table.accepted - ratio * table.exposed)
    posterior = HazardPosterior.from_beta(alpha, beta, measured, residual, blocks, dispersion)
    positions = []
    for position, draft in enumerate(drafts):
        mean: float | None = float(alpha[position] / (alpha[position] + beta[position]))
        ends = (float(low[position]), float(high[position]))
        if draft.state == "censored":
            mean, ends = None, (0.0, 1.0)
        elif draft.state == "extrapolated":
            carried = posterior.extrapolated(position)
            mean, ends = carried.value, (carried.low, carried.high)
        positions.append(
            PositionFit(
                position=position,
                hazard=mean,
                low=ends[0],
                high=ends[1],
                exposed=float(table.exposed[:, position].sum()),
                accepted=float(table.accepted[:, position].sum()),
                state=draft.state,
                reason=draft.reason,
                weak=draft.state == "extrapolated" or (draft.spread is not None and draft.spread.weak),
            )
        )
    confounded = [draft.confounded for draft in drafts if draft.confounded is not None]
    return PositionsFit(
        positions=tuple(positions),
        posterior=posterior,
        weights=weighted,
        noise=noise * measured,
        dispersion=dispersion,
        blocks=max((spread.blocks for spread in spreads), default=0),
        prior_dispersion=prior_dispersion,
        selection=max(confounded, key=lambda one: abs(one.difference), default=None),
    )


def _neighbour_mean(ratio: FloatArray, trials: FloatArray) -> FloatArray:
    """Mean hazard (P,) of the other measured positions, nearer ones first; a half where there is none."""
    order = np.arange(len(ratio))
    distance = np.abs(order[:, None] - order)
    mass = np.divide(trials, distance**2, out=np.zeros(distance.shape), where=distance > 0)
    around = mass.sum(axis=1)
    mean = np.divide(mass @ ratio, around, out=np.full(len(ratio), 0.5), where=around > 0)
    clipped: FloatArray = np.clip(mean, 0.02, 0.98)  # a Beta parameter must stay above 0
    return clipped
