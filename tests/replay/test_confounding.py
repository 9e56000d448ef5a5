"""Replays in which draft length went with the kind of traffic: nothing confident may come of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.replay.vllm_world import VllmWorld, constant, linear

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Replayed = Callable[..., dict[str, Any]]

EASY, HARD = (0.9, 0.88, 0.86, 0.85), (0.45, 0.4, 0.4, 0.4)


def _codes(document: dict[str, Any]) -> set[str]:
    return {finding["code"] for finding in document["findings"]}


def _by_load(world: VllmWorld, folder: Path) -> None:
    """Easy traffic comes at small batches, where the schedule drafts long; hard traffic at large ones."""
    world.schedule = lambda batch: 4 if batch <= 8 else 1
    for index in range(16):
        world.clients, world.profile = ((4, EASY), (24, HARD))[index % 2]
        world.record(folder, scrapes=8, interval=5.0)


def _by_time(world: VllmWorld, folder: Path) -> None:
    """The operator shortens the draft on the day the traffic gets harder."""
    for draft_len, profile in ((0, EASY), (4, EASY), (2, HARD)):
        world.schedule, world.profile = constant(draft_len), profile
        for world.clients in (2, 6, 16, 40):
            world.record(folder, scrapes=10, interval=4.0)


@pytest.mark.parametrize("record", [_by_load, _by_time])
@pytest.mark.parametrize("seed", [1, 2])
def test_draft_lengths_of_different_traffic_are_not_ranked(
    replayed: Replayed, record: Callable[[VllmWorld, Path], None], seed: int
) -> None:
    """The plan would rank the traffic, not the draft lengths: no schedule, and the finding says why."""
    world = VllmWorld(EASY, linear(0.02, 0.0003), constant(1), 4, seed=seed)
    document = replayed(lambda folder: record(world, folder))
    assert "k_confounded" in _codes(document)
    assert document["schedule"] is None
    assert "k_confounded" in document["schedule_unknown"]


def test_two_models_under_one_name_are_not_mixed(replayed: Replayed) -> None:
    """Two models served at once under ``--pool`` are no succession of set-ups: a warning says so."""
    worlds = [
        VllmWorld(EASY, linear(0.02, 0.0003), constant(3), 8, seed=5, model=model) for model in ("a", "b")
    ]

    def record(folder: Path) -> None:
        for index in range(1, 25):
            for world in worlds:
                world.run(world.started_at + 4.0 * index - world.now)
            second = [line for line in worlds[1].body().splitlines() if 'model_name="b"' in line]
            text = worlds[0].body() + "\n".join(second) + "\n"
            (folder / f"{round(1000 * (worlds[0].started_at + 4.0 * index))}.prom").write_text(text)

    document = replayed(record, "--pool", "x")
    assert "fingerprints_mixed" in _codes(document)
    assert "fingerprint_changed" not in _codes(document)
