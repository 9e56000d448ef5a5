"""Replays of worlds whose truth is known and differs from every recording."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.replay.vllm_world import VllmWorld, constant, linear

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Replayed = Callable[..., dict[str, Any]]

PROFILE = (0.62, 0.55, 0.50, 0.46)


def _codes(document: dict[str, Any]) -> set[str]:
    return {finding["code"] for finding in document["findings"]}


def _positions(document: dict[str, Any]) -> list[dict[str, Any]]:
    (fit,) = document["acceptance"]
    positions: list[dict[str, Any]] = fit["positions"]
    return positions


def _roofline(floor: float, per_token: float, per_draft: float) -> Callable[[float, int], float]:
    return lambda tokens, draft_len: max(floor, per_token * tokens) + per_draft * draft_len


def _best(profile: tuple[float, ...], seconds: Callable[[float, int], float], batch: int) -> dict[int, float]:
    """Tokens per second that each K truly earns at a batch, prefill left out."""
    earned = {}
    for k in range(len(profile) + 1):
        emitted = 1 + float(np.cumprod(profile[:k]).sum())
        earned[k] = batch * emitted / seconds(batch * (k + 1), k)
    return earned


def test_sharp_roofline_with_other_acceptance(replayed: Replayed) -> None:
    """Hazards, crossover and schedule come out where step time is a sharp roofline with a linear drafter."""
    seconds = _roofline(0.020, 0.00025, 0.0015)
    world = VllmWorld(PROFILE, seconds, constant(1), 2, seed=7, prompt=(1, 2))
    document = replayed(lambda folder: world.sweep(folder, (2, 6, 16, 40, 100), (0, 1, 2, 3, 4)))
    for position, truth in zip(_positions(document), PROFILE, strict=True):
        assert abs(position["hazard"] - truth) < 0.03
    assert document["crossover"]["low"] <= 0.020 / 0.00025 <= document["crossover"]["high"]
    for first, last, k in document["schedule"]:
        for batch in {first, round(math.sqrt(first * last)), last}:
            earned = _best(PROFILE, seconds, batch)
            assert earned[k] >= 0.94 * max(earned.values()), (batch, k, earned)


def test_a_drafter_that_does_not_pay_is_switched_off(replayed: Replayed) -> None:
    """With poor acceptance on a machine without slack the schedule is K=0 wherever it was measured."""
    world = VllmWorld((0.25, 0.2, 0.2, 0.2), linear(0.002, 0.001), constant(1), 4, seed=8)
    document = replayed(lambda folder: world.sweep(folder, (4, 12, 32, 64), (0, 1, 2, 3)))
    assert {row[2] for row in document["schedule"]} == {0}


def _dynamic(world: VllmWorld, folder: Path) -> None:
    """A live schedule, and a load that wanders across its thresholds."""
    world.schedule = lambda batch: 4 if batch <= 8 else (2 if batch <= 20 else 1)
    for clients in (4, 9, 14, 19, 22, 30, 7, 10, 21, 18):
        world.clients = clients
        world.record(folder, scrapes=10, interval=4.0)


def test_mixed_draft_lengths_never_read_as_low_acceptance(replayed: Replayed) -> None:
    """Under a live schedule a late position is measured right or not at all."""
    world = VllmWorld((0.8, 0.75, 0.7, 0.68), linear(0.02, 0.0003), constant(1), 4, seed=9)
    document = replayed(lambda folder: _dynamic(world, folder))
    for position, truth in zip(_positions(document), (0.8, 0.75, 0.7, 0.68), strict=True):
        if position["state"] == "measured":
            assert abs(position["hazard"] - truth) < 0.03
        else:
            assert position["low"] <= truth <= position["high"]


def test_a_known_schedule_pins_the_mix(replayed: Replayed) -> None:
    """With ``--schedule`` every position that was drafted is measured under the live schedule too."""
    truth = (0.8, 0.75, 0.7, 0.68)
    world = VllmWorld(truth, linear(0.02, 0.0003), constant(1), 4, seed=10)
    document = replayed(lambda folder: _dynamic(world, folder), "--schedule", "[[1,8,4],[9,20,2],[21,64,1]]")
    positions = _positions(document)
    assert [p["state"] for p in positions] == ["measured"] * 4
    assert {row[2] for row in document["schedule"]} <= {1, 2, 4}, "K=3 never ran"
    for position, value in zip(positions, truth, strict=True):
        assert position["low"] <= value <= position["high"]


def test_a_restart_is_no_collapse(replayed: Replayed) -> None:
    """Counters that start over are a restart finding; acceptance and schedule do not notice."""
    world = VllmWorld(PROFILE, linear(0.02, 0.0003), constant(2), 12, seed=11)

    def record(folder: Path) -> None:
        world.record(folder, scrapes=20, interval=4.0)
        world.now += 30.0
        world.reset()
        world.record(folder, scrapes=20, interval=4.0)

    document = replayed(record)
    assert "engine_restart" in _codes(document)
    for position, truth in zip(_positions(document)[:2], PROFILE, strict=False):
        assert abs(position["hazard"] - truth) < 0.03


def test_an_engine_that_never_drafts_gets_no_schedule(replayed: Replayed) -> None:
    """Without a draft there is no acceptance and no schedule, and the reasons are said."""
    world = VllmWorld(PROFILE, linear(0.02, 0.0003), constant(0), 12, seed=12)
    document = replayed(lambda folder: world.record(folder, scrapes=30, interval=4.0))
    assert document["acceptance"] == []
    assert document["schedule"] is None
    assert document["acceptance_unknown"]
    assert document["schedule_unknown"]


def test_one_draft_length_says_nothing_about_others(replayed: Replayed) -> None:
    """K=1 alone: no crossover, no longer K is scheduled, position 1 is not reported as measured or low."""
    world = VllmWorld(PROFILE, linear(0.02, 0.0003), constant(1), 12, seed=13)
    document = replayed(lambda folder: world.record(folder, scrapes=40, interval=4.0))
    assert "not_enough_data" in document["crossover"]
    assert document["schedule"] is None or {row[2] for row in document["schedule"]} <= {1}
    for position in _positions(document)[1:]:
        assert position["state"] != "measured"
        assert position["high"] > PROFILE[1]


def test_two_models_are_two_pools(replayed: Replayed) -> None:
    """Two models on one address are fitted apart, each against its own truth."""
    profiles = {"a": (0.85, 0.8, 0.75, 0.7), "b": (0.5, 0.45, 0.4, 0.35)}
    worlds = [
        VllmWorld(profile, linear(0.02, 0.0003), constant(3), 8, seed=14, model=model)
        for model, profile in profiles.items()
    ]

    def record(folder: Path) -> None:
        for _ in range(30):
            for world in worlds:
                world.run(worlds[0].started_at + 4.0 * (1 + len(list(folder.iterdir()))) - world.now)
            text = worlds[0].body() + "\n".join(
                line for line in worlds[1].body().splitlines() if 'model_name="b"' in line
            )
            (folder / f"{round(worlds[0].now * 1000)}.prom").write_text(text + "\n")

    document = replayed(record)
    assert set(document["pools"]) == {"a", "b"}
    for model, profile in profiles.items():
        for position, truth in zip(_positions(document["pools"][model]), profile[:3], strict=False):
            assert abs(position["hazard"] - truth) < 0.04


@pytest.mark.parametrize("seed", [21, 22, 23])
def test_requests_that_differ_widen_the_interval(replayed: Replayed, seed: int) -> None:
    """Acceptance that differs between requests shows as dispersion, and intervals grow with it."""

    def fit(spread: float) -> dict[str, Any]:
        world = VllmWorld(
            PROFILE, linear(0.02, 0.0003), constant(3), 6, seed=seed, spread=spread, output=(150, 250)
        )
        return replayed(lambda folder: world.record(folder, scrapes=120, interval=4.0))

    alike, different = fit(0.0), fit(1.2)
    assert different["acceptance"][0]["dispersion"] > alike["acceptance"][0]["dispersion"]
    width = [p["high"] - p["low"] for p in (_positions(alike)[0], _positions(different)[0])]
    assert width[1] > 1.3 * width[0]
