"""The truth about a pool is what its engines do; the oracle is the best table of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.simulate.helper import one_pool
from tuner.simulate import CostSpec, Fleet, LoadSpec, PoolSpec, RouteSpec, preset
from tuner.simulate.acceptance import Acceptance
from tuner.simulate.truth import PoolTruth


@pytest.mark.parametrize(("batch", "draft_len"), [(6, 4), (20, 2), (40, 1), (12, 0)])
def test_step_time_and_goodput_are_what_engines_show(batch: int, draft_len: int) -> None:
    """At a held batch engines show the seconds per step and the tokens per second of the truth."""
    spec = one_pool(
        engines=12,
        load=LoadSpec(arrivals="closed", profile="constant", batch=(batch, batch)),
        schedule=((1, 64, draft_len),),
    )
    fleet = Fleet(spec, seed=9)
    fleet.advance(40)
    counters = fleet.engines.state.counters
    before = counters.steps.copy(), counters.generated.copy(), counters.joint.sum(axis=(1, 2, 3))
    fleet.advance(60)
    steps = float((counters.steps - before[0]).sum())
    decoding = float((counters.joint.sum(axis=(1, 2, 3)) - before[2]).sum()) / steps
    truth = PoolTruth(spec.pools[0])
    assert 60 * 12 / steps == pytest.approx(truth.step_seconds(decoding, draft_len), rel=0.015)
    goodput = float((counters.generated - before[1]).sum()) / (60 * 12)
    assert goodput == pytest.approx(truth.goodput(decoding, draft_len), rel=0.02)


def test_the_oracle_is_the_best_of_the_allowed_draft_lengths() -> None:
    """At every batch its draft length has the highest goodput of those the engine was started with."""
    truth = PoolTruth(preset("demo").pools[0])
    assert truth.allowed_draft_lens() == [1, 2, 4]
    covered = []
    for first, last, draft_len in truth.oracle(48):
        for batch in range(first, last + 1):
            covered.append(batch)
            assert truth.goodput(batch, draft_len) == max(truth.goodput(batch, k) for k in (1, 2, 4))
    assert covered == list(range(1, 49))


def test_the_oracle_shortens_drafts_as_the_batch_grows() -> None:
    """Memory-bound at small batches, compute-bound at large ones: long drafts first, short ones last."""
    for pool in preset("demo").pools[:2]:
        rows = PoolTruth(pool).oracle()
        assert rows[0][2] == 4
        assert rows[-1][2] < 4


def test_the_crossover_is_fixed_time_over_time_per_token() -> None:
    """(o + m + warm drafter) / c, and m / c without the overhead."""
    cost = CostSpec(overhead=0.002, floor=0.02, per_token=0.0001, draft_zero=0.001)
    crossover = PoolTruth(PoolSpec(cost=cost)).crossover()
    assert crossover["tokens"] == pytest.approx(230)
    assert crossover["excluding_overhead"] == pytest.approx(200)


def test_experts_make_tokens_cheaper_in_company() -> None:
    """Distinct experts rise with the tokens of a step: it reads more weights, and each token costs less."""
    cost = CostSpec(overhead=0.0, per_token=1e-6, experts=64, experts_per_token=2, expert_share=0.9, tile=1)
    truth = PoolTruth(PoolSpec(cost=cost))
    few, many, more = (truth.step_seconds(b, 0, prompt_tokens=0.0, context=0.0) for b in (1, 8, 64))
    assert few < many < more
    assert few > many / 8 > more / 64
    active = 1 - (1 - 2 / 64) ** 8
    assert many == pytest.approx(cost.floor * (0.1 + 0.9 * active) + cost.draft_zero, rel=1e-3)


@pytest.mark.parametrize(("shape", "growth"), [("linear", 3.0), ("concave", math.sqrt(3)), ("flat", 0.0)])
def test_drafters_have_shapes(shape: str, growth: float) -> None:
    """A drafter's seconds by K: base plus slope times K, its root, or nothing."""
    cost = CostSpec(draft_shape=shape, draft_base=0.001, draft_slope=0.002, draft_zero=0.0005, tile=1)  # type: ignore[arg-type] # a parametrised literal
    truth = PoolTruth(PoolSpec(cost=cost))
    with_drafter = truth.step_seconds(4, 3, prompt_tokens=0.0, context=0.0)
    without = truth.step_seconds(16, 0, prompt_tokens=0.0, context=0.0)  # as many tokens to verify
    assert with_drafter - without == pytest.approx(0.001 + 0.002 * growth - 0.0005)


@pytest.mark.parametrize("draft_len", [1, 2, 4])
def test_hazards_by_draft_length_are_what_requests_of_it_show(draft_len: int) -> None:
    """The hazards at each K weigh passages by the steps that they take: checked by drawing them."""
    route = RouteSpec(hazards=(0.8, 0.6, 0.7, 0.5), request_spread=0.6, passage_spread=0.5)
    model = Acceptance.of(route, 4, 2)
    rng = np.random.default_rng(1)
    z = np.hypot(0.6, 0.5) * rng.standard_normal(400_000)
    weight = 1 / model.tokens_at(z, draft_len)
    survival = weight @ model.survival(z)[:, :draft_len] / weight.sum()
    hazards = survival / np.concatenate([[1.0], survival[:-1]])
    assert model.counted_hazards(draft_len) == pytest.approx(hazards, abs=0.002)


def test_hazards_are_exact_at_the_reference() -> None:
    """Whatever the spreads, counters at the draft length of reference show the hazards as given."""
    route = RouteSpec(hazards=(0.8, 0.6, 0.7), request_spread=1.0, passage_spread=0.5)
    assert Acceptance.of(route, 3, 3).counted_hazards(3) == pytest.approx([0.8, 0.6, 0.7], abs=1e-4)


def test_acceptance_is_over_dispersed_and_autocorrelated() -> None:
    """Accepted tokens of one request vary more than chance, and its steps resemble their neighbours."""
    route = RouteSpec(alpha=0.6, request_spread=0.6, passage_spread=0.6, output=3000.0, output_spread=0.0)
    spec = one_pool(
        engines=1,
        routes=(route,),
        load=LoadSpec(arrivals="closed", profile="constant", batch=(48, 48)),
        schedule=((1, 64, 1),),
        max_draft_len=1,
    )
    fleet = Fleet(spec, seed=3)
    fleet.advance(3)
    state = fleet.engines.state
    rows = []
    for _ in range(400):
        left = state.left[0, :48].copy()
        fleet.engines.run(float(state.clock[0]) + 1e-6)
        rows.append(left - state.left[0, :48] - 1)
    accepted = np.array(rows, dtype=float)
    assert set(np.unique(accepted)) == {0.0, 1.0}
    mean = accepted.mean()
    binomial = mean * (1 - mean) / len(accepted)
    assert accepted.mean(axis=0).var() > 4 * binomial
    centred = accepted - accepted.mean(axis=0)
    neighbours = (centred[1:] * centred[:-1]).mean() / (centred**2).mean()
    far = (centred[200:] * centred[:-200]).mean() / (centred**2).mean()
    assert neighbours > 0.04
    assert neighbours > far + 0.03
