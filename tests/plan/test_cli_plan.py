"""``tuner plan``: the JSON contract, readable text, exit codes, one-line errors."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.plan.published import published
from tuner.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]

HEADER = "batch,draft_len,tokens_per_second"
SMALL = f"{HEADER}\n8,0,105\n8,2,174\n64,0,400\n64,2,390\n"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run ``tuner plan`` on a sweep given as text: exit code, stdout, stderr."""

    def call(text: str, *arguments: str) -> tuple[int, str, str]:
        path = tmp_path / "sweep.csv"
        path.write_text(text)
        with pytest.raises(SystemExit) as left:
            main(["plan", "--sweep", str(path), *arguments])
        captured = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code, captured.out, captured.err

    return call


def document(run: Run, text: str, *arguments: str) -> dict[str, Any]:
    code, out, err = run(text, "--json", *arguments)
    assert (code, err) == (0, "")
    answer: dict[str, Any] = json.loads(out)
    return answer


def refused(run: Run, text: str, *arguments: str) -> str:
    code, out, err = run(text, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    return err


def autospec() -> str:
    data = published("published_sweeps")["sglang_autospec"]
    rows = [
        f"{batch},{k},{speed}"
        for k, speeds in data["tokens_per_second"].items()
        for batch, speed in zip(data["batches"], speeds, strict=True)
    ]
    return "\n".join([HEADER, *rows])


def test_json_contract(run: Run) -> None:
    """Keys, ranges and per-batch choices of the contract, on a published sweep."""
    answer = document(run, autospec(), "--max-batch", "128")
    assert answer["schedule"] == [[1, 11, 4], [12, 41, 3], [42, 128, 2]]
    assert [entry["batch"] for entry in answer["explain"]] == [1, 2, 4, 8, 16, 32, 64]
    first = answer["explain"][0]
    assert set(first) >= {"batch", "choices", "why"}
    assert [choice["draft_len"] for choice in first["choices"]] == [1, 2, 3, 4, 5, 6]
    assert first["choices"][3]["tokens_per_second"] == 199.0
    assert all(c["low"] < c["tokens_per_second"] < c["high"] for c in first["choices"])
    for finding in answer["findings"]:
        assert set(finding) == {"code", "severity", "subject", "message", "evidence"}
        assert finding["severity"] in {"info", "warning", "critical"}
    assert [finding["code"] for finding in answer["findings"]] == [
        "noise_assumed",
        "no_baseline",
        "batch_beyond_measured",
    ]


def test_no_schedule_is_an_answer(run: Run) -> None:
    """One draft length: schedule null, the reason, exit code 0."""
    answer = document(run, f"{HEADER}\n8,2,174\n16,2,300\n")
    assert answer["schedule"] is None
    assert "only draft length 2" in answer["not_enough_data"]
    assert answer["explain"] == []
    code, out, _ = run(f"{HEADER}\n8,2,174\n")
    assert code == 0
    assert out.startswith("no schedule: only draft length 2 was measured")


def test_findings_of_the_file_come_first(run: Run) -> None:
    """Oddities of the file are findings of the answer, with its name."""
    answer = document(run, SMALL + "64,1,\n", "--max-batch", "64")
    assert answer["findings"][0]["code"] == "sweep_hole"
    assert answer["findings"][0]["subject"]["file"].endswith("sweep.csv")


def test_text_shows_table_schedule_reasons_and_findings(run: Run) -> None:
    """A person sees the best cell marked, the schedule, why, and what is not known."""
    code, out, err = run(SMALL)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[1].split() == ["batch", "K=0", "K=2", "schedule"]
    assert lines[2].split() == ["8", "105.0", "*174.0", "K=2"]
    assert lines[3].split() == ["64", "*400.0", "390.0", "K=0"]
    assert any(line.startswith("schedule [[1,") for line in lines)
    assert "  batch 8: draft length 2 is the fastest; 65.7 % faster than no speculation" in out
    assert "  info max_batch_unknown: " in out


@pytest.mark.parametrize(
    ("arguments", "schedule"),
    [
        (("--allowed", "0"), [[1, 64, 0]]),
        (("--allowed-draft-lens", "2"), [[1, 64, 2]]),
        (("--floor", "1"), [[1, 64, 2]]),
        (("--min-gain", "0.7"), [[1, 64, 0]]),
        (("--max-tokens-in-flight", "20"), [[1, 64, 0]]),
        (("--max-batch", "8"), [[1, 8, 2]]),
        (("--max-tokens-in-flight", "60"), [[1, 20, 2], [21, 64, 0]]),
        (("--slo-tpot-ms", "60", "--min-gain", "0.7", "--max-batch", "8"), [[1, 8, 2]]),
        (("--active", "[[1,20,2],[21,64,0]]"), [[1, 20, 2], [21, 64, 0]]),
    ],
)
def test_options_reach_the_planner(run: Run, arguments: tuple[str, ...], schedule: list[list[int]]) -> None:
    """Each option shapes the schedule as it says."""
    assert document(run, SMALL, *arguments)["schedule"] == schedule


def test_context_mix_reaches_the_planner(run: Run) -> None:
    """The share of tokens by context decides between 0 and 1."""
    text = f"{HEADER},context\n1,0,200,1000\n1,1,357.14,1000\n1,0,142.86,16000\n1,1,64.5,16000\n"
    mostly_short = document(run, text, "--context-mix", "1000=0.99,16000=0.01")
    assert mostly_short["schedule"] == [[1, 1, 1]]
    mixed = document(run, text, "--context-mix", "1000=0.7,16000=0.3")
    assert mixed["schedule"] == [[1, 1, 0]]
    assert "context_conflict" in {finding["code"] for finding in mixed["findings"]}


def test_post_processors_can_be_switched_off(run: Run) -> None:
    """Without ties and order the strict best of each batch size runs."""
    answer = document(run, autospec(), "--without", "tie", "--without", "monotone")
    assert [entry["draft_len"] for entry in answer["explain"]] == [4, 4, 3, 4, 4, 3, 2]


def test_active_schedule_may_be_a_file(run: Run, tmp_path: Path) -> None:
    """What runs now may be read from a file."""
    path = tmp_path / "active.json"
    path.write_text("[[1,20,2],[21,64,0]]")
    assert document(run, SMALL, "--active", str(path))["schedule"] == [[1, 20, 2], [21, 64, 0]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--allowed", "0,two"), "--allowed: 'two' is not a number"),
        (("--context-mix", "1000"), "--context-mix: '1000' is not NUMBER=SHARE"),
        (("--context-mix", "1000=0.5,1000=0.5"), "--context-mix: 1000 is given twice"),
        (("--context-mix", "1000=1"), "the sweep has no context 1000; it has none: add a context column"),
        (("--batch-weights", "8=-1"), "batch_weights must hold at least one share above 0"),
        (("--min-gain", "-1"), "min_gain is -1: choose it between 0 and 10"),
        (("--active", "[[2,4,1]]"), "starts at 2, expected 1"),
        (("--active", "[1,2"), "--active: not JSON (line 1 column 5)"),
        (("--active", "/nowhere.json"), "--active: /nowhere.json: No such file or directory"),
        (("--without", "ties"), "no post-processor is called 'ties'"),
        (("--floor", "3", "--allowed", "0,1"), "floor 3 is above every allowed draft length"),
    ],
)
def test_bad_options_are_one_line(run: Run, arguments: tuple[str, ...], words: str) -> None:
    """An option that cannot be used: exit code 2 and one line that names it."""
    assert words in refused(run, SMALL, *arguments)


@pytest.mark.parametrize(
    "text",
    ["", "<html></html>", HEADER, f"{HEADER}\n8,2,x\n", f"{HEADER}\n8,2,nan\n", f'{HEADER}\n"8,2'],
)
def test_bad_files_are_one_line(run: Run, text: str) -> None:
    """A file that is no sweep: exit code 2, one line, its name, no traceback."""
    assert refused(run, text).startswith("error: ")
    assert "sweep.csv" in refused(run, text)


def test_missing_file_and_folder_are_one_line(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A path that cannot be read says why."""
    for path, words in ((tmp_path / "no.csv", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(SystemExit) as left:
            main(["plan", "--sweep", str(path)])
        assert left.value.code == 2
        assert words in capsys.readouterr().err
    del run


def test_stdin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """``-`` reads the sweep from stdin."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(SMALL.encode())))
    with pytest.raises(SystemExit) as left:
        main(["plan", "--sweep", "-", "--json"])
    assert left.value.code == 0
    assert json.loads(capsys.readouterr().out)["schedule"][-1][1:] == [64, 0]


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    """``--help`` shows examples, the columns and every default."""
    with pytest.raises(SystemExit) as left:
        main(["plan", "--help"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert "tuner plan --sweep sweep.csv --max-batch 256 --json" in out
    assert "acceptance_length, tpot_ms" in out
