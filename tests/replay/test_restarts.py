"""What a replay makes of an engine that restarts, as itself or as another (case B40)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.replay.vllm_world import VllmWorld, constant, linear

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Replayed = Callable[..., dict[str, Any]]

BEFORE, AFTER = (0.62, 0.62, 0.62), (0.55, 0.55, 0.55)


def _codes(document: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in document["findings"]]


def _record(world: VllmWorld, folder: Path, change: Callable[[], None]) -> None:
    world.schedule = constant(3)
    world.record(folder, scrapes=25, interval=4.0)
    change()
    world.now += 40.0
    world.reset()
    world.record(folder, scrapes=25, interval=4.0)


@pytest.mark.parametrize("seed", [31, 32, 33])
def test_b40_a_new_configuration_is_fitted_afresh(replayed: Replayed, seed: int) -> None:
    """Another KV precision under the same name: one info finding, and only what came after is fitted."""
    world = VllmWorld(BEFORE, linear(0.0100, 0.0001), constant(3), 12, seed=seed, max_draft_len=3)

    def change() -> None:
        world.profile = AFTER
        world.step_seconds = linear(0.0085, 0.0001)

    document = replayed(lambda folder: _record(world, folder, change))
    changed = [f for f in document["findings"] if f["code"] == "config_maybe_changed"]
    assert changed
    assert {f["severity"] for f in changed} == {"info"}
    for position in document["acceptance"][0]["positions"]:
        assert abs(position["hazard"] - AFTER[0]) < 0.03
    assert not {"acceptance_drop", "goodput_drop"} & set(_codes(document))


@pytest.mark.parametrize("seed", range(41, 47))
def test_a_restart_as_itself_keeps_the_evidence(replayed: Replayed, seed: int) -> None:
    """Nothing changed, so nothing is left out and no change is suspected."""
    world = VllmWorld(BEFORE, linear(0.0100, 0.0001), constant(3), 12, seed=seed, max_draft_len=3)
    document = replayed(lambda folder: _record(world, folder, lambda: None))
    assert "engine_restart" in _codes(document)
    assert "config_maybe_changed" not in _codes(document)
    since_restart = world.counters["drafts"]
    assert document["acceptance"][0]["positions"][0]["exposed"] > 1.6 * since_restart
