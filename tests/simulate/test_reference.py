"""The arrays agree with an engine that is written the plain way."""

from __future__ import annotations

import numpy as np
import pytest

from tests.simulate.helper import one_pool
from tests.simulate.reference import PlainEngine
from tuner.simulate import CostSpec, Fleet, LoadSpec, NoiseSpec, RouteSpec
from tuner.simulate.load import PoolLoad

SECONDS = 120.0
ENGINES = 24
PLAIN_ENGINES = 6


@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_arrays_agree_with_a_plain_engine(kind: str) -> None:
    """Batch, step time, output, latencies and acceptance by route and position agree within noise."""
    cost = CostSpec() if kind == "dense" else CostSpec(experts=64, draft_shape="concave", sharpness=4.0)
    spec = one_pool(
        engines=ENGINES,
        routes=(RouteSpec(name="a", alpha=0.85, output=150.0), RouteSpec(name="b", alpha=0.45, share=2.0)),
        cost=cost,
        load=LoadSpec(profile="constant", batch=(20, 20)),
        noise=NoiseSpec(window=0.0, step=0.03, drift_low=0.0, drift_high=0.0),
    )
    fleet = Fleet(spec, seed=11)
    fleet.advance(SECONDS)
    pool = spec.pools[0]
    rate = float(PoolLoad(pool, np.random.default_rng(0)).arrivals(0.0)[0][0])
    plain = [PlainEngine(pool, rate, seed) for seed in range(PLAIN_ENGINES)]
    for engine in plain:
        engine.run(SECONDS)
    counters = fleet.engines.state.counters

    def of_plain(name: str) -> float:
        return sum(engine.totals[name] for engine in plain) / PLAIN_ENGINES

    arrays = {
        "steps": counters.steps,
        "generated": counters.generated,
        "first": counters.first_tokens,
        "prompt": counters.prompt_tokens,
        "itl_seconds": counters.itl_seconds,
        "first_seconds": counters.first_seconds,
        "finished": counters.stopped + counters.cut_by_length,
        "e2e_seconds": counters.e2e_seconds,
    }
    # Six engines of 120 s serve 2500 requests: counts agree within 5 %, sums of latencies, which rise
    # steeply with the batch, within 10 %.
    for name, values in arrays.items():
        bound = 0.1 if name.endswith("_seconds") else 0.05
        assert float(values.mean()) == pytest.approx(of_plain(name), rel=bound), name
    for route in (0, 1):
        joint = counters.joint[:, route].sum(axis=0)
        for draft_len in (1, 2, 4):
            mine = joint[draft_len] / joint[draft_len].sum()
            theirs = np.array(
                [sum(e.joint[route, draft_len, a] for e in plain) for a in range(draft_len + 1)], dtype=float
            )
            if theirs.sum() > 10_000:
                assert mine[: draft_len + 1] == pytest.approx(theirs / theirs.sum(), abs=0.02)
