"""Drafts cut short and drafters that stay silent, in worlds whose truth is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.replay.vllm_world import Request, VllmWorld, constant, linear

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Replayed = Callable[..., dict[str, Any]]

PROFILE = (0.8, 0.72, 0.66, 0.6)
SECONDS = linear(0.02, 0.0003)


@dataclass
class CutWorld(VllmWorld):
    """A grammar cuts a share of the drafts by one token or more, whatever would have been accepted."""

    share: float = 0.0
    by_one: bool = False

    def _accept(self, request: Request, draft_len: int) -> int:
        if draft_len > 1 and self.rng.random() < self.share:
            draft_len = draft_len - 1 if self.by_one else int(self.rng.integers(1, draft_len))
        return super()._accept(request, draft_len)


@dataclass
class MatchWorld(VllmWorld):
    """An n-gram drafter: in every step each request finds a match or drafts nothing, which costs nothing."""

    hit: float = 0.5
    found: dict[int, bool] = field(default_factory=dict)

    def step(self) -> None:
        """Run one engine step with fresh matches."""
        self.found = {id(request): bool(self.rng.random() < self.hit) for request in self.requests}
        silent = sum(not self.found[id(r)] for r in self.requests if r.started)
        self.step_seconds = lambda tokens, draft_len: SECONDS(tokens - silent * draft_len, draft_len)
        super().step()

    def _accept(self, request: Request, draft_len: int) -> int:
        return super()._accept(request, draft_len) if self.found.get(id(request), False) else 0


def _speed(hit: float, clients: int, draft_len: int) -> float:
    """Tokens per second that a draft length truly earns with an n-gram drafter."""
    world = MatchWorld(PROFILE, SECONDS, constant(draft_len), clients, seed=99, hit=hit, noise=0.001)
    for _ in range(100):
        world.step()
    tokens, start = world.counters["emitted"], world.now
    for _ in range(max(300, 12_000 // clients)):
        world.step()
    return (world.counters["emitted"] - tokens) / (world.now - start)


def _cut_speed(share: float, clients: int, draft_len: int) -> float:
    """Tokens per second that a draft length truly earns where drafts are cut short."""
    world = CutWorld(PROFILE, SECONDS, constant(draft_len), clients, seed=99, share=share, noise=0.001)
    world.run(2.0)
    tokens, start = world.counters["emitted"], world.now
    world.run(40.0)
    return (world.counters["emitted"] - tokens) / (world.now - start)


def _hazards(document: dict[str, Any]) -> list[dict[str, Any]]:
    (fit,) = document["acceptance"]
    return [position for position in fit["positions"] if position["state"] == "measured"]


@pytest.mark.parametrize("by_one", [False, True])
@pytest.mark.parametrize("share", [0.003, 0.01, 0.03, 0.1, 0.3])
def test_acceptance_is_not_read_low_when_drafts_are_cut(
    replayed: Replayed, share: float, by_one: bool
) -> None:
    """From 3 in 1000 to 3 in 10 drafts cut short: what is measured holds the truth in its interval."""
    world = CutWorld(PROFILE, SECONDS, constant(4), 16, seed=11, share=share, by_one=by_one)
    document = replayed(lambda folder: world.record(folder, scrapes=60, interval=4.0))
    measured = _hazards(document)
    assert measured
    for position in measured:
        assert position["low"] <= PROFILE[position["position"]] <= position["high"]
    missing = share * (1 if by_one else 2)
    if missing < 0.02:
        assert len(measured) == 4
    if missing > 0.05:
        assert len(measured) == 1


@pytest.mark.parametrize("share", [0.01, 0.1, 0.3])
def test_the_draft_length_that_ran_under_a_named_table_is_scheduled(replayed: Replayed, share: float) -> None:
    """With the table named, shortened drafts are measured at its draft lengths: none 'never ran'."""
    world = CutWorld(PROFILE, SECONDS, lambda batch: 4 if batch <= 20 else 2, 4, seed=12, share=share)

    def record(folder: Path) -> None:
        for clients in (3, 60, 6, 50, 3, 60):
            world.clients = clients
            world.record(folder, scrapes=10, interval=4.0)

    document = replayed(record, "--schedule", "[[1,20,4],[21,64,2]]")
    assert "ignored" not in {row["code"] for row in document["findings"]}
    assert {row[2] for row in document["schedule"]} == {2, 4}
    for position in _hazards(document):
        assert position["low"] <= PROFILE[position["position"]] <= position["high"]
    for row in document["explain"]:
        speeds = {choice["draft_len"]: choice["tokens_per_second"] for choice in row["choices"]}
        ran = 4 if row["batch"] <= 20 else 2
        truth = _cut_speed(share, row["batch"], ran)
        assert speeds[ran] == pytest.approx(truth, rel=0.06)


@pytest.mark.parametrize("hit", [0.4, 0.8])
def test_an_ngram_drafter_is_planned_at_the_draft_lengths_that_ran(
    replayed: Replayed, tmp_path: Path, hit: float
) -> None:
    """Emitted tokens and step time are measured as they are, and the schedule earns what is best."""
    config = tmp_path / "tuner.yaml"
    config.write_text(
        "pools:\n  - {name: m, engine: vllm, engines: {static: [http://127.0.0.1:8000]},\n"
        "     drafter: {method: ngram}, max_batch: 100}\n"
    )
    world = MatchWorld(PROFILE, SECONDS, constant(4), 2, seed=5, hit=hit)
    clients = (2, 6, 16, 40, 100)
    document = replayed(
        lambda folder: world.sweep(folder, clients, (0, 2, 4)), "--config.file", str(config), "--pool", "m"
    )
    assert document["schedule"], document["findings"]
    for count in clients:
        truth = {k: _speed(hit, count, k) for k in (0, 2, 4)}
        (chosen,) = (k for first, last, k in document["schedule"] if first <= count <= last)
        assert chosen in truth
        assert truth[chosen] >= 0.96 * max(truth.values()), (count, truth)
    for row in document["explain"]:
        near = min(clients, key=lambda count: abs(np.log(row["batch"] / count)))
        for choice in row["choices"]:
            if choice["draft_len"] in (0, 2, 4):
                speed = _speed(hit, near, choice["draft_len"]) * row["batch"] / near
                assert choice["tokens_per_second"] == pytest.approx(speed, rel=0.08)


def test_a_drafter_that_is_never_called_optional_is_suspected(replayed: Replayed) -> None:
    """Without its method, steps that draft nothing at every load are named, and no position is measured."""
    world = MatchWorld(PROFILE, SECONDS, constant(4), 2, seed=6)
    document = replayed(lambda folder: world.sweep(folder, (2, 6, 16), (2, 4)))
    assert "optional_proposals" in {finding["code"] for finding in document["findings"]}
    assert _hazards(document) == []
