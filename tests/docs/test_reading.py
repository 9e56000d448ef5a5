"""``docs/reading.md`` names every key of the documents that ``replay`` and ``plan`` print."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from tests.replay.conftest import RECORDINGS, replay_json
from tests.replay.vllm_world import VllmWorld, constant, linear
from tuner.cli import tuner

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = (ROOT / "docs" / "reading.md").read_text()
NAMED = {
    name
    for row in re.findall(r"^\| (`.*?) \|", TEXT, flags=re.MULTILINE)
    for name in re.findall(r"`(.*?)`", row)
}
FREE = tuple(name.removesuffix("*") for name in NAMED if name.endswith(".*"))
"""Objects whose keys are names of something, or depend on a code."""


def _leaves(value: Any, path: str = "") -> Iterator[str]:
    """Dotted path of everything in a document that is no object, lists as ``[]``."""
    if f"{path}." in FREE:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for inner in value:
            yield from _leaves(inner, f"{path}[]")
    else:
        yield path


def _unnamed(document: dict[str, Any]) -> set[str]:
    empty = {"acceptance", "accepted_lengths", "explain", "findings"}  # named by what they hold
    return set(_leaves(document)) - NAMED - empty


@pytest.mark.parametrize(
    "options", [(), ("--schedule", "[[1,8,4],[9,64,2]]"), ("--allowed-draft-lens", "0,6")]
)
def test_keys_of_a_replay_are_named(options: tuple[str, ...]) -> None:
    """Fits, schedule, findings: every key of a recording of a real engine."""
    assert _unnamed(replay_json(RECORDINGS / "vllm-0.32-cpu-short", *options)) == set()


@pytest.mark.parametrize("draft_len", [0, 3])
def test_keys_of_what_is_not_known_are_named(tmp_path: Path, draft_len: int) -> None:
    """One draft length, or none at all: the keys that hold reasons."""
    world = VllmWorld((0.8, 0.7, 0.6), linear(0.03, 0.0004), constant(draft_len), 8, 1)
    world.record(tmp_path, scrapes=12, interval=4)
    document = replay_json(tmp_path)
    assert document["schedule"] is None
    assert _unnamed(document) == set()


@pytest.mark.parametrize("rows", ["1,0,50\n1,2,90\n8,0,300\n8,2,420\n", "1,2,90\n8,2,420\n"])
def test_keys_of_a_plan_are_named(tmp_path: Path, rows: str) -> None:
    """With a schedule and without one."""
    sweep = tmp_path / "sweep.csv"
    sweep.write_text(f"batch,draft_len,tokens_per_second\n{rows}")
    result = CliRunner().invoke(tuner, ["plan", "--sweep", str(sweep), "--json"], catch_exceptions=False)
    assert _unnamed(json.loads(result.stdout)) == set()


def test_several_pools_are_read_one_by_one() -> None:
    """The page says what the flat keys hold then."""
    assert {"pools.*", "step_time.not_enough_data", "crossover.not_enough_data"} <= NAMED
