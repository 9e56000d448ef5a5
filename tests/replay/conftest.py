"""Fixtures shared by the tests of whole replays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from tuner.cli import tuner

if TYPE_CHECKING:
    from collections.abc import Callable

RECORDINGS = Path(__file__).resolve().parent.parent / "data" / "recordings"


def replay_json(path: Path, *options: str) -> dict[str, Any]:
    """Run ``tuner replay --json`` and return its document.

    Raises:
        AssertionError: it left with another exit code than 0, or printed something else.
    """
    result = CliRunner().invoke(
        tuner, ["replay", str(path), "--engine", "vllm", "--json", *options], catch_exceptions=False
    )
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.fixture(scope="session")
def long_recording() -> dict[str, Any]:
    """The replay of the long recording of a real engine."""
    return replay_json(RECORDINGS / "vllm-0.32-cpu")


@pytest.fixture(scope="session")
def short_recording() -> dict[str, Any]:
    """The replay of the short, rough recording of a real engine."""
    return replay_json(RECORDINGS / "vllm-0.32-cpu-short")


@pytest.fixture(scope="session")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Record a world through a function of it and a folder, then replay."""

    def run(record: Callable[[Path], None], *options: str) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("recording")
        record(folder)
        return replay_json(folder, *options)

    return run
