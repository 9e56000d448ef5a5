"""Acceptance of a pool or route: hazard by position, single alpha, emitted tokens by draft length.

The estimate of a position is the ratio of its acceptances to its exposures (see
:mod:`tuner.fit.exposure`), as a Beta posterior over an effective number of trials that the blocks of
windows show (see :mod:`tuner.fit.dispersion`). What the windows cannot identify is ``censored`` or
``extrapolated`` with a reason, never a low number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tuner.fit.acceptance_positions import PositionFit, fit_positions
from tuner.fit.alpha import fit_alpha
from tuner.fit.bursts import leave_out_bursts
from tuner.fit.cells import PURE_SHARE
from tuner.fit.dispersion import default_dispersion
from tuner.fit.emitted import EmittedAt, length_histogram, measure_emitted, trimmed_share
from tuner.fit.exposure import build_exposure, proposals_are_optional
from tuner.fit.plausibility import quarantine_finding
from tuner.fleet import POOLED_ROUTE, Estimate, Finding, NotEnoughData
from tuner.theory.acceptance import expected_tokens_geometric, solve_alpha

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tuner.fit.arrays import FloatArray
    from tuner.fit.exposure import ExposureTable
    from tuner.fit.hazards import HazardPosterior
    from tuner.fit.selection import Selection
    from tuner.fleet import Window

__all__ = ["AcceptanceFit", "PositionFit", "fit_acceptance"]

MIN_DRAFTS = 20.0
"""Fewer drafts than this say nothing: at dispersion 3 the interval of one hazard would be 0.3 to 0.95."""

LENGTH_SD = 0.03
"""Relative standard deviation of emitted tokens at one draft length around what the shared hazards say.
Reading E(K=3) off the profile at K=7 is off by 1.2-5.4 % on SpecDecode-Bench (arXiv 2601.11580)."""

LENGTH_SD_PER_STEP = 0.0075
"""The same for a draft length that was not run, per position between it and the nearest that was: 3 % over
the four positions of the figure above."""

MAX_LENGTH_SD = 0.06

MOMENT_DRAWS = 512
"""Posterior draws behind :meth:`AcceptanceFit.emitted_moments`: the standard deviation of a log is then known
to 3 % of itself, its mean to 4 % of a standard deviation."""

ESTIMATE_DRAWS = 4000
"""Posterior draws behind :meth:`AcceptanceFit.expected_tokens`: the ends of a 95 % interval move by 2 % of
its width from seed to seed."""


@dataclass(frozen=True, eq=False)
class AcceptanceFit:
    """Acceptance of one pool and route."""

    pool: str
    route: str
    alpha: Estimate | NotEnoughData
    """Maximum likelihood of the truncated geometric: one acceptance for all positions."""
    positions: tuple[PositionFit, ...]
    dispersion: float
    """Between-block variance over binomial variance, mean over positions, at least 1."""
    blocks: int
    """Independent clusters behind the best measured position."""
    accepted_lengths: Mapping[int, tuple[float, ...]]
    """Draft length K -> verify steps by accepted count ``(n0, ..., nK)``, from windows that ran K alone or
    tell joint counts; weighted where windows stand for others."""
    emitted: Mapping[int, EmittedAt]
    """Draft length -> emitted tokens per request step as measured."""
    trimmed: float
    """Share of accepted tokens that stops cut off; 0 where the engine does not tell."""
    drafts: float
    findings: tuple[Finding, ...]
    optional_proposals: bool
    """The drafter may stay silent (n-gram, suffix): only emitted tokens mean anything."""
    posterior: HazardPosterior
    selection: Selection | None = None

    def emitted_draws(self, draft_lens: Sequence[int], size: int, rng: np.random.Generator) -> FloatArray:
        """Draw emitted tokens per request step, coherent across draft lengths.

        All draft lengths share the hazard draws. A length that ran is pulled to what was measured by as
        much as that is more precise than :data:`LENGTH_SD`; one that did not run keeps a spread that
        grows with its distance from those that did.

        Args:
            draft_lens: (k,) draft lengths; 0 gives exactly 1.
            size: number of draws.
            rng: source of randomness.

        Returns:
            (size, k) tokens per request step, stop-trimming included.
        """
        wanted = [int(length) for length in draft_lens]
        profile = self._profile_draws(max([*wanted, *self.emitted, 0]), size, rng)
        out = np.empty((size, len(wanted)))
        for column, length in enumerate(wanted):
            out[:, column] = self._draws_at(length, profile, rng) if length > 0 else 1.0
        return out

    def emitted_moments(self, draft_lens: Sequence[int]) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return moments of emitted tokens per request step that other draft lengths asked for do not move.

        From draws with noise of its own for each draft length and position, the same each time.

        Args:
            draft_lens: (k,) draft lengths; 0 gives exactly 1.

        Returns:
            (k,) mean tokens, (k,) mean of their log, (k, k) covariance of their log.
        """
        lengths = [int(length) for length in draft_lens]
        profile = self._profile_draws(max([*lengths, 0]), MOMENT_DRAWS, np.random.default_rng(0))
        drawn = np.ones((MOMENT_DRAWS, len(lengths)))
        for column, length in enumerate(lengths):
            if length > 0:
                drawn[:, column] = self._draws_at(length, profile, np.random.default_rng(length))
        logs = np.log(drawn)
        covariance = np.atleast_2d(np.cov(logs, rowvar=False))
        return drawn.mean(axis=0), logs.mean(axis=0), covariance

    def _profile_draws(self, depth: int, size: int, rng: np.random.Generator) -> FloatArray:
        """Emitted tokens by draft length 0..depth (size, depth + 1) as the shared model has them."""
        if self.optional_proposals:
            lengths = [0, *sorted(self.emitted)]
            values = [1.0, *(self.emitted[length].value for length in sorted(self.emitted))]
            line = np.interp(np.arange(depth + 1), lengths, values)
            return np.tile(line, (size, 1))
        hazards = self.posterior.draws(depth, size, rng)
        survival = np.cumsum(np.cumprod(hazards, axis=1), axis=1)
        return np.hstack([np.ones((size, 1)), 1.0 + (1.0 - self.trimmed) * survival])

    def _draws_at(self, length: int, profile: FloatArray, rng: np.random.Generator) -> FloatArray:
        size = len(profile)
        model = profile[:, length]
        centre = float(model.mean())
        noise, error = rng.standard_normal((2, size))
        measured = self.emitted.get(length)
        if measured is not None:
            between = (LENGTH_SD * centre) ** 2
            trust = between / (between + measured.variance)
            # Conditioning of a draw (Matheron): move it by what measurement, drawn with its noise, has more.
            free = model + np.sqrt(between) * noise
            drawn = free + trust * (measured.value - free - np.sqrt(measured.variance) * error)
        else:
            spread = self._unmeasured_sd(length)
            drawn = model * (1.0 + spread * noise)
        tokens: FloatArray = np.clip(
            drawn * self._foreign_traffic(length, float(drawn.mean()), size, rng), 1.0, length + 1.0
        )
        return tokens

    def _unmeasured_sd(self, length: int) -> float:
        if not self.emitted:
            return LENGTH_SD
        distance = min(abs(length - other) for other in self.emitted)
        per_step = LENGTH_SD if self.optional_proposals else LENGTH_SD_PER_STEP
        return min(MAX_LENGTH_SD * (3 if self.optional_proposals else 1), per_step * distance)

    def _foreign_traffic(self, length: int, centre: float, size: int, rng: np.random.Generator) -> FloatArray:
        """Draw factors (size,) by which other traffic than K ran on may differ, where K followed acceptance.

        A step is of the traffic that K did not run on with the probability of its share of the drafts, and
        then its acceptance differs by what was found: the second moment of that moves the acceptance.
        """
        if self.selection is None:
            return np.ones(size)
        here = self.emitted.get(length)
        foreign = 1.0 - (here.drafts / self.drafts if here is not None else 0.0)
        alpha = solve_alpha(min(max(centre - 1.0, 0.0), float(length)), length)
        moved = alpha + math.sqrt(foreign) * self.selection.difference * rng.standard_normal(size)
        tokens = expected_tokens_geometric(np.clip(moved, 0.0, 1.0), length)
        return tokens / expected_tokens_geometric(alpha, length)

    def drafted_per_step(self, draft_len: int) -> float:
        """Return the draft tokens that a request step really carries when ``draft_len`` is asked for.

        Fewer where a drafter that may stay silent proposes less, or where a grammar cuts drafts short: as
        measured at a draft length that ran, between two of them by the share of what was asked for.
        """
        if draft_len <= 0 or not self.emitted:
            return float(max(draft_len, 0))
        lengths = sorted(self.emitted)
        shares = [self.emitted[length].drafted / length for length in lengths]
        share = float(np.interp(draft_len, lengths, shares))
        whole = not self.optional_proposals and share >= PURE_SHARE
        return float(draft_len) if whole else share * draft_len

    def expected_tokens(self, draft_len: int) -> Estimate | NotEnoughData:
        """Return emitted tokens per request step at ``draft_len`` with its 95 % interval.

        Unseen positions widen it; nothing is extrapolated from a single alpha.
        """
        if draft_len <= 0:
            return Estimate(1.0, 1.0, 1.0)
        if self.optional_proposals and not self.emitted:
            return NotEnoughData("no window ran one draft length alone with its emitted tokens told", 0, 1)
        drawn = self.emitted_draws([draft_len], ESTIMATE_DRAWS, np.random.default_rng(draft_len))[:, 0]
        low, high = np.quantile(drawn, (0.025, 0.975))
        return Estimate(float(drawn.mean()), float(low), float(high))


def fit_acceptance(
    windows: Sequence[Window],
    *,
    pool: str,
    route: str = POOLED_ROUTE,
    method: str = "",
    half_life_seconds: float | None = None,
    pool_dispersion: float | None = None,
) -> AcceptanceFit | NotEnoughData:
    """Fit acceptance to the good windows of one pool.

    Args:
        windows: any windows; those that are not good, drafted nothing or contradict themselves are left out.
        pool: name for the fit and its findings.
        route: keep the windows of this route only; ``"*"`` keeps all.
        method: how drafts are made, where the windows' fingerprints do not say (``ngram``, ``suffix``: the
            drafter may stay silent, acceptance means nothing and only emitted tokens are fitted).
        half_life_seconds: weight of a window halves for every so many seconds of age before the newest;
            ``None`` weighs all alike.
        pool_dispersion: over-dispersion of the pool, to lean on where there are fewer than 8 blocks.

    Returns:
        The fit, or :class:`NotEnoughData` when no more than 20 drafts are left.
    """
    chosen = [window for window in windows if route in (POOLED_ROUTE, window.route)]
    whole = build_exposure(chosen)
    findings = list(quarantine_finding(whole.quarantined, pool))
    if float(whole.drafts.sum()) < MIN_DRAFTS:
        return NotEnoughData("too few drafts in good windows", float(whole.drafts.sum()), MIN_DRAFTS)
    table, burst = leave_out_bursts(whole, pool)
    findings += burst
    forgetting = _forgetting(table, half_life_seconds)
    prior = default_dispersion(table) if pool_dispersion is None else max(1.0, pool_dispersion)
    method = method or next((w.fingerprint.method for w in table.windows if w.fingerprint.method), "")
    optional = proposals_are_optional(table, method)
    fitted = fit_positions(table, forgetting, prior)
    alpha: Estimate | NotEnoughData
    if optional:
        alpha = NotEnoughData("the drafter proposes only when it finds a match: rates per draft mean nothing")
        positions = tuple(_without_rate(position) for position in fitted.positions)
    else:
        alpha = fit_alpha(table, fitted, forgetting)
        positions = fitted.positions
    posterior = fitted.posterior
    if isinstance(alpha, Estimate) and alpha.low > 0 and alpha.high < 1:
        posterior = posterior.starting_from(alpha)
    if optional and not method:
        findings.append(_looks_optional(table, pool))
    if fitted.selection is not None and not optional:
        findings.append(_confounded(fitted.selection, positions, pool, route))
    joint = np.array([bool(window.counts.joint) for window in table.windows])
    told = {drafted for window in table.windows for drafted, _ in window.counts.joint}
    lengths = sorted({length for length in {*table.draft_len.tolist(), *told} if length > 0})
    return AcceptanceFit(
        pool=pool,
        route=route,
        alpha=alpha,
        positions=positions,
        dispersion=fitted.dispersion,
        blocks=fitted.blocks,
        accepted_lengths={
            length: tuple(float(x) for x in histogram)
            for length in lengths
            if (histogram := length_histogram(table, (table.draft_len == length) | joint, length)).sum() > 0
        },
        emitted=measure_emitted(table, forgetting, fitted.prior_dispersion, per_request_step=optional),
        trimmed=trimmed_share(table) or 0.0,
        drafts=float(table.drafts.sum()),
        findings=tuple(findings),
        optional_proposals=optional,
        posterior=posterior,
        selection=None if optional else fitted.selection,
    )


def _forgetting(table: ExposureTable, half_life_seconds: float | None) -> FloatArray:
    """Return what each window (n,) counts for: less with age, more where it stands for others left out."""
    ends = np.array([window.end for window in table.windows])
    weights: FloatArray = np.array([window.weight for window in table.windows])
    if half_life_seconds is None:
        return weights
    return np.asarray(weights * np.exp2((ends - ends.max()) / half_life_seconds))


def _without_rate(position: PositionFit) -> PositionFit:
    return replace(
        position,
        hazard=None,
        low=0.0,
        high=1.0,
        state="censored",
        reason="the drafter proposes only when it finds a match: padding may count as drafted",
    )


def _looks_optional(table: ExposureTable, pool: str) -> Finding:
    told = [i for i, window in enumerate(table.windows) if window.counts.request_steps]
    steps = sum(table.windows[i].counts.request_steps or 0.0 for i in told)
    share = float(table.drafts[told].sum()) / max(steps, 1.0)
    return Finding(
        code="optional_proposals",
        severity="warning",
        message=f"Only {share:.0%} of request steps drafted, at every load: the drafter seems to propose "
        "only what it finds, so acceptance by position is not told. Set the pool's drafter.method (ngram, "
        "suffix), or name the table that ran if it switches drafting off.",
        subject={"pool": pool},
        evidence={"drafting_share": share, "windows": len(table.windows)},
    )


def _confounded(selection: Selection, positions: tuple[PositionFit, ...], pool: str, route: str) -> Finding:
    censored = [fit.position for fit in positions if fit.reason.startswith("k_confounded")]
    return Finding(
        code="k_confounded",
        severity="warning",
        message=f"Draft length followed acceptance: {selection}. Positions {censored} are censored. "
        "Run each draft length at every batch size for a few minutes, or label routes, to tell them apart.",
        subject={"pool": pool, "route": route},
        evidence={"positions": censored, "difference": selection.difference, "error": selection.error},
    )
