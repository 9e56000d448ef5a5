"""The JSON of ``tuner replay`` that others script against, and what it does with bad input."""

from __future__ import annotations

import gzip
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from tests.replay.conftest import RECORDINGS, replay_json
from tuner._exceptions import TunerError
from tuner.cli import tuner
from tuner.fleet import Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONG = RECORDINGS / "vllm-0.32-cpu"


def _numbers(value: Any) -> Iterator[float]:
    """Every number in a JSON document."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from _numbers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(inner)
    elif isinstance(value, float):
        yield value


def _refusal(*arguments: str) -> str:
    """Run a replay that must be refused and return its one line."""
    with pytest.raises(TunerError) as refused:
        CliRunner().invoke(tuner, ["replay", *arguments], catch_exceptions=False)
    line = str(refused.value)
    assert "\n" not in line
    return line


def test_document_has_the_keys_of_the_contract(long_recording: dict[str, Any]) -> None:
    """Windows, acceptance, step time, crossover, histograms, schedule, explanation and findings are there."""
    assert set(long_recording) >= {
        "windows", "acceptance", "step_time", "crossover", "accepted_lengths", "schedule", "explain",
        "findings", "pools",
    }  # fmt: skip
    assert set(long_recording["windows"]) == {"total", "good", "by_state"}
    assert set(long_recording["step_time"]) >= {
        "fingerprint", "floor_seconds", "seconds_per_token", "sharpness", "overhead_seconds", "draft",
    }  # fmt: skip
    assert set(long_recording["crossover"]) >= {"tokens", "low", "high", "excluding_overhead"}
    for position in long_recording["acceptance"][0]["positions"]:
        assert set(position) >= {"position", "hazard", "low", "high", "exposed", "accepted", "state"}
    for entry in long_recording["explain"]:
        assert set(entry) >= {"batch", "choices", "why"}
        for choice in entry["choices"]:
            assert choice["low"] <= choice["tokens_per_second"] <= choice["high"]


def test_the_only_pool_is_repeated_by_the_flat_keys(long_recording: dict[str, Any]) -> None:
    """Pool defaults to the model's name, and flat keys hold what stands under it."""
    assert list(long_recording["pools"]) == ["target"]
    only = long_recording["pools"]["target"]
    assert only["schedule"] == long_recording["schedule"]
    assert only["acceptance"] == long_recording["acceptance"]
    assert long_recording["acceptance"][0]["pool"] == "target"
    assert long_recording["acceptance"][0]["route"] == "*"


def test_document_holds_no_nan_or_infinity(long_recording: dict[str, Any]) -> None:
    """Every number is finite: JSON has no other kind."""
    numbers = list(_numbers(long_recording))
    assert len(numbers) > 100
    assert all(abs(number) < float("inf") for number in numbers)


def test_histograms_hold_every_draft_length(long_recording: dict[str, Any]) -> None:
    """Verify steps by accepted count are told for each K that ran, K+1 bins each."""
    by_len = {entry["draft_len"]: entry["histogram"] for entry in long_recording["accepted_lengths"]}
    assert set(by_len) == {1, 2, 3, 4}
    assert all(len(histogram) == k + 1 and min(histogram) >= 0 for k, histogram in by_len.items())


def test_schedule_is_valid_and_reaches_max_batch() -> None:
    """The schedule starts at 1, has no gap, and its last range ends at ``--max-batch``."""
    document = replay_json(LONG, "--max-batch", "200")
    assert Schedule.from_ranges(document["schedule"]).max_batch == 200


def test_allowed_draft_lens_are_obeyed() -> None:
    """A draft length that the operator does not allow is never scheduled."""
    document = replay_json(LONG, "--allowed-draft-lens", "0,1")
    assert {row[2] for row in document["schedule"]} <= {0, 1}


def test_schedule_is_the_same_each_time(long_recording: dict[str, Any]) -> None:
    """A replay has no hidden randomness."""
    assert replay_json(LONG) == long_recording


def test_bad_scrapes_become_findings(tmp_path: Path, long_recording: dict[str, Any]) -> None:
    """One empty, one HTML and one truncated body cost their windows and nothing else."""
    for path in LONG.glob("*.prom.gz"):
        shutil.copy(path, tmp_path)
    names = sorted(path.name for path in tmp_path.glob("*.prom.gz"))
    whole = gzip.decompress((tmp_path / names[40]).read_bytes())
    for name, body in ((names[20], b""), (names[40], whole[:-40]), (names[60], b"<html>login</html>\n")):
        (tmp_path / name).write_bytes(gzip.compress(body))
    document = replay_json(tmp_path)
    assert any(finding["code"].startswith("scrape") for finding in document["findings"])
    assert document["windows"]["good"] >= long_recording["windows"]["good"] - 6
    assert document["schedule"] is not None


@pytest.mark.parametrize(
    ("files", "part"),
    [
        ({}, "unix milliseconds"),
        ({"1700000000000.prom": "a 1\n"}, "record"),
        ({"1700000000000.prom": "", "1700000010000.prom": ""}, "record"),
        ({"1700000000000.prom": "<html>\n", "1700000010000.prom": "<html>\n"}, "record"),
        ({"notes.txt": "x"}, "unix milliseconds"),
    ],
)
def test_a_recording_without_evidence_is_refused(tmp_path: Path, files: dict[str, str], part: str) -> None:
    """Nothing to fit is one line that names the place and the remedy."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    line = _refusal(str(tmp_path), "--engine", "vllm")
    assert str(tmp_path) in line
    assert part in line


def test_a_recording_of_something_else_asks_for_address_and_engine(tmp_path: Path) -> None:
    """Three scrapes of a wrong port are not answered with advice to scrape twice."""
    for second in range(3):
        (tmp_path / f"{1_764_000_000_000 + 5000 * second}.prom").write_text("node_load1 1\n")
    line = _refusal(str(tmp_path), "--engine", "vllm")
    assert "3 scrapes" in line
    assert "node_load1" in line
    assert "--engine" in line
    assert "twice" not in line


def test_missing_folder_and_unknown_engine_are_refused(tmp_path: Path) -> None:
    """A path that is not there and an engine that is not known are one line each."""
    assert "no such folder" in _refusal(str(tmp_path / "nowhere"), "--engine", "vllm")
    assert "vllm" in _refusal(str(LONG), "--engine", "nonsense")


@pytest.mark.parametrize("ran", ["[[2,4,1]]", "[1,2]", "nonsense", "[[1,4,1.5]]", '"x"', "[]"])
def test_a_bad_schedule_option_is_refused(ran: str) -> None:
    """``--schedule`` names itself when it cannot be read."""
    assert "--schedule" in _refusal(str(LONG), "--engine", "vllm", "--schedule", ran)


def test_picture_is_drawn(tmp_path: Path) -> None:
    """``--plot`` writes a png of two panels."""
    target = tmp_path / "deep" / "picture.png"
    replay_json(LONG, "--plot", str(target))
    body = target.read_bytes()
    assert body.startswith(b"\x89PNG")
    assert len(body) > 20_000


def test_terminal_output_has_every_part() -> None:
    """Without ``--json`` a person reads windows, acceptance, step time, schedule and why."""
    result = CliRunner().invoke(tuner, ["replay", str(LONG), "--engine", "vllm"], catch_exceptions=False)
    assert result.exit_code == 0
    for heading in ("windows:", "acceptance by position", "step time:", "crossover:", "schedule", "why"):
        assert heading in result.stdout
    with pytest.raises(json.JSONDecodeError):
        json.loads(result.stdout)
