"""The engine: what goes in comes out, K is verified a step later, steps are stairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.simulate.helper import BEARER, PLAIN, TOKEN, held, one_pool, vllm
from tuner.simulate import CostSpec, Fleet, LoadSpec, RouteSpec, preset


def busy(**fields: Any) -> Fleet:
    """Return a fleet after some load over all draft lengths of its table."""
    fleet = Fleet(one_pool(engines=2, **fields), seed=3)
    fleet.advance(40)
    return fleet


@pytest.mark.parametrize("name", ["demo", "fixed"])
def test_tokens_are_conserved(name: str) -> None:
    """Every generated token is a first token, an interval's own, or an accepted one that was not trimmed."""
    fleet = Fleet(preset(name), seed=1)
    fleet.advance(40)
    for pool in fleet.pools.values():
        for n in range(pool.engines):
            page = fleet.body(pool.name, n)
            accepted = vllm(page, "spec_decode_num_accepted_tokens_total")
            made = vllm(page, "time_to_first_token_seconds_count")
            made += vllm(page, "inter_token_latency_seconds_count") + accepted
            trimmed = fleet.engines.state.counters.trimmed[fleet.index(pool.name, n)]
            assert made - trimmed == vllm(page, "generation_tokens_total")
            assert 0 < trimmed < 0.05 * accepted


def test_positions_add_up_to_what_was_accepted() -> None:
    """The counters by position sum to the accepted tokens and never rise with the position."""
    page = busy().body("p", 0)
    positions = [
        vllm(page, "spec_decode_num_accepted_tokens_per_pos_total", position=str(i)) for i in range(4)
    ]
    assert sum(positions) == vllm(page, "spec_decode_num_accepted_tokens_total")
    assert positions == sorted(positions, reverse=True)


def test_step_tokens_are_prompts_and_output() -> None:
    """The histogram of iterations sums prompt tokens and generated tokens, drafts left out."""
    page = busy().body("p", 1)
    told = vllm(page, "prompt_tokens_total") + vllm(page, "generation_tokens_total")
    assert vllm(page, "iteration_tokens_total_sum") == told


def test_intervals_are_step_times() -> None:
    """Intervals between tokens are one per request and step, each a whole step long."""
    fleet = held(12, 2)
    fleet.advance(1)
    before = fleet.body("p", 0)
    fleet.advance(20)
    after = fleet.body("p", 0)
    count, seconds, steps = (
        vllm(after, name) - vllm(before, name)
        for name in (
            "inter_token_latency_seconds_count",
            "inter_token_latency_seconds_sum",
            "iteration_tokens_total_count",
        )
    )
    assert count == 12 * steps
    assert seconds / count == pytest.approx(20 / steps, rel=0.01)


def test_engines_without_drafts_count_no_drafts() -> None:
    """Steps at K = 0 make intervals and no drafts."""
    fleet = held(6, 0)
    fleet.advance(10)
    page = fleet.body("p", 0)
    assert vllm(page, "inter_token_latency_seconds_count") > 500
    assert vllm(page, "spec_decode_num_drafts_total") == 0
    assert vllm(page, "spec_decode_num_draft_tokens_total") == 0


def test_acceptance_is_recovered_from_the_counters() -> None:
    """Counters of positions show the hazards that a route was given, at the draft length of reference."""
    hazards = (0.8, 0.7, 0.6)
    route = RouteSpec(hazards=hazards, prompt=40, request_spread=0.5, passage_spread=0.4)
    load = LoadSpec(arrivals="closed", profile="constant", batch=(32, 32))
    fleet = Fleet(one_pool(engines=16, routes=(route,), load=load, schedule=((1, 64, 3),), max_draft_len=3))
    fleet.advance(120)
    joint = fleet.engines.state.counters.joint.sum(axis=(0, 1))[3]
    at_least = joint[::-1].cumsum()[::-1]
    # 2 million request steps of 11 000 requests: the spread across requests leaves 0.2 %.
    assert at_least[1:] / at_least[:-1] == pytest.approx(hazards, abs=0.008)


def test_a_draft_length_is_verified_one_step_later() -> None:
    """A table that is pushed before a step chooses that step's drafts; the next step verifies them."""
    spec = one_pool(
        engines=1,
        load=LoadSpec(arrivals="closed", profile="constant", batch=(8, 8)),
        schedule=((1, 8, 1), (9, 64, 4)),
    )
    fleet = Fleet(spec, token=TOKEN)
    fleet.advance(5)
    push = {"version": "v", "fence": 1, "ttl_seconds": None, "schedule": [[1, 64, 4]]}
    assert fleet.put_schedule("p", 0, push, BEARER)[0] == 200

    def verified() -> set[int]:
        """Do one step and return the draft lengths that it verified."""
        before = fleet.engines.state.counters.joint.sum(axis=(0, 1, 3))
        fleet.engines.run(float(fleet.engines.state.clock[0]) + 1e-6)
        return set(np.flatnonzero(fleet.engines.state.counters.joint.sum(axis=(0, 1, 3)) - before).tolist())

    assert [verified(), verified(), verified()] == [{1}, {4}, {4}]


def test_prefills_count_for_the_choice_of_a_draft_length() -> None:
    """K is looked up by all scheduled requests: a prompt beside 8 decoding ones makes it the K of 9."""
    cost = CostSpec()
    fleet = held(8, 1, cost)
    fleet.engines.set_table(0, [[1, 8, 1], [9, 64, 3]])
    fleet.advance(2)
    assert fleet.engines.state.draft_len[0] == 1
    fleet.engines.state.clients[0] = 9
    fleet.engines.run(float(fleet.engines.state.clock[0]) + 1e-6)
    assert fleet.engines.state.decoding[0] == 9
    assert fleet.engines.state.draft_len[0] == 3


def test_step_time_is_a_staircase_in_padded_tokens() -> None:
    """From 9 to 16 requests at K = 1 steps take the same time; the 17th begins another tile."""
    cost = CostSpec(tile=16, per_context_token=0.0)

    def seconds(batch: int) -> float:
        fleet = held(batch, 1, cost)
        fleet.advance(3)
        assert fleet.engines.state.decoding[0] == batch
        return float(fleet.engines.state.last_seconds[0])

    eight, nine, sixteen, seventeen = (seconds(b) for b in (8, 9, 16, 17))
    assert nine == pytest.approx(sixteen, rel=1e-12)
    assert eight < nine
    assert sixteen < seventeen


def test_long_prompts_are_computed_in_chunks() -> None:
    """A prompt longer than the budget of a step takes several, and its tokens slow those steps down."""
    route = RouteSpec(prompt=5000.0, prompt_spread=0.0, output=400.0, output_spread=0.0)
    spec = one_pool(
        engines=1,
        routes=(route,),
        load=LoadSpec(arrivals="closed", profile="constant", batch=(1, 1)),
        max_step_tokens=1000,
    )
    fleet = Fleet(spec)
    engines = fleet.engines
    left = []
    for _ in range(6):
        engines.run(float(engines.state.clock[0]) + 1e-6)
        left.append(int(engines.state.prompt_left[0].max()))
    assert left == [4001, 3001, 2001, 1001, 1, 0]
    assert engines.state.counters.first_tokens[0] == 1
    assert engines.state.counters.steps[0] == 1  # steps without output are not counted
    assert engines.state.counters.prompt_tokens[0] == 5001


def test_a_full_cache_preempts_and_nothing_is_lost() -> None:
    """With too small a KV cache requests are preempted, come back, and every token still adds up."""
    spec = one_pool(
        engines=2,
        load=LoadSpec(arrivals="closed", profile="constant", batch=(40, 40)),
        kv_tokens=8000,
    )
    fleet = Fleet(spec, seed=2)
    state = fleet.engines.state
    for _ in range(60):
        fleet.advance(2)
        inside = state.running + state.waiting + state.held
        assert ((inside > 33) & (inside <= 40)).all()  # those that ended in the last step are asked anew
        assert (state.context >= 0).all()
        assert (state.context <= 8000 * 1.05).all()
    page = fleet.body("p", 0)
    assert vllm(page, "num_preemptions_total") > 5
    made = vllm(page, "time_to_first_token_seconds_count") + vllm(page, "inter_token_latency_seconds_count")
    made += vllm(page, "spec_decode_num_accepted_tokens_total") - state.counters.trimmed[0]
    assert made == vllm(page, "generation_tokens_total")
    assert vllm(page, "kv_cache_usage_perc") > 0.8


def test_requests_in_and_out_balance() -> None:
    """Under closed load every client has one request in the engine, however many have ended."""
    fleet = Fleet(
        one_pool(
            engines=3, load=LoadSpec(arrivals="closed", profile="constant", batch=(20, 20)), routes=(PLAIN,)
        )
    )
    fleet.advance(60)
    state = fleet.engines.state
    occupied = state.occupied.sum(axis=1)
    assert (occupied == state.running).all()
    assert (state.is_decoding.sum(axis=1) == state.decoding).all()
    contexts = ((state.prompt + state.total - state.left) * state.occupied).sum(axis=1)
    assert state.context == pytest.approx(contexts)


def test_bursts_bring_prompts_in_waves() -> None:
    """With bursts the same requests per second arrive together, so that more of them share a step."""

    def together(burst: float) -> float:
        load = LoadSpec(profile="constant", batch=(16, 16), burst=burst)
        fleet = Fleet(one_pool(engines=8, load=load), seed=5)
        fleet.advance(60)
        counters = fleet.engines.state.counters
        return float(counters.step_hist[:, 8:].sum() / counters.steps.sum())  # steps of over 512 tokens

    assert together(8.0) > 3 * together(1.0)


def test_equal_seeds_give_equal_pages() -> None:
    """The same seed and the same calls give the same bytes; another seed does not."""

    def pages(seed: int) -> list[str]:
        fleet = Fleet(preset("demo"), seed=seed)
        for seconds in (3.0, 5.5, 7.0):
            fleet.advance(seconds)
        return [fleet.body(name, n) + fleet.gpu_body(name, n) for name in fleet.pools for n in (0, 3)]

    assert pages(7) == pages(7)
    assert pages(7) != pages(8)
