"""``tuner render``: the dialect on stdout, notes on stderr, one line and exit code 2 for what is wrong."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tuner.cli import main

if TYPE_CHECKING:
    from pathlib import Path

TABLE = "[[1,4,4],[5,16,2],[17,64,0]]"
COMMON = ["--engine", "vllm", "--engine-version", "0.32.0", "--max-batch", "64"]


def run(*arguments: str) -> int:
    """Run the command in process and return its exit code."""
    with pytest.raises(SystemExit) as caught:
        main(["render", *arguments])
    code = caught.value.code
    assert isinstance(code, int)
    return code


def test_the_dialect_goes_to_stdout_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed can be piped into a start-up argument; notes do not get in between."""
    assert run(TABLE, *COMMON, "--max-draft-len", "4") == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "num_speculative_tokens": 4,
        "num_speculative_tokens_per_batch_size": [[1, 4, 4], [5, 16, 2], [17, 64, 0]],
    }
    assert all(line.startswith("note: ") for line in err.splitlines())


def test_json_holds_the_dense_truth(capsys: pytest.CaptureFixture[str]) -> None:
    """--json tells engine, version, config and the draft length at every batch size."""
    assert run(TABLE, *COMMON, "--max-draft-len", "4", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["dense"] == {str(b): 4 if b <= 4 else 2 if b <= 16 else 0 for b in range(1, 65)}


def test_parse_says_what_would_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Gap, tail and clamp are worked out and named."""
    assert run("[[1,4,4],[9,16,2]]", *COMMON, "--max-draft-len", "3", "--parse", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["dense"] == {str(b): 3 if b <= 8 else 2 for b in range(1, 65)}
    assert run("[[1,4,4],[9,16,2]]", *COMMON, "--max-draft-len", "3", "--parse") == 0
    out, err = capsys.readouterr()
    assert [line.split() for line in out.splitlines()[1:]] == [["1-8", "3"], ["9-64", "2"]]
    assert {line.split(":")[1].strip() for line in err.splitlines()} >= {"clamp", "gap", "tail"}


def test_what_is_rendered_parses_to_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """The printed dialect, read back, runs the same at every batch size."""
    assert run(TABLE, *COMMON, "--max-draft-len", "4", "--json") == 0
    written = json.loads(capsys.readouterr().out)
    assert run(json.dumps(written["config"]), *COMMON, "--parse", "--json") == 0
    assert json.loads(capsys.readouterr().out)["dense"] == written["dense"]


def test_a_schedule_comes_from_a_file_or_standard_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A literal, a file, a file with the schedule under its name, and - are the same schedule."""
    bare, named = tmp_path / "bare.json", tmp_path / "named.json"
    bare.write_text(TABLE)
    named.write_text(f'{{"schedule": {TABLE}, "explain": []}}')
    with bare.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        outputs = set()
        for source in (TABLE, str(bare), str(named), "-"):
            assert run(source, *COMMON, "--max-draft-len", "4") == 0
            outputs.add(capsys.readouterr().out)
    assert len(outputs) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        [TABLE, *COMMON],
        [TABLE, *COMMON, "--max-draft-len", "3"],
        [TABLE, *COMMON, "--max-draft-len", "four"],
        ["[[2,4,3]]", *COMMON, "--max-draft-len", "4"],
        ["[[1,4,3],[4,8,1]]", *COMMON, "--max-draft-len", "4"],
        ["[[1,4,5]]", *COMMON, "--max-draft-len", "4"],
        ["[[1,4,1.5]]", *COMMON, "--max-draft-len", "4"],
        ["[[1,4]]", *COMMON, "--max-draft-len", "4"],
        ["[1,4,4]", *COMMON, "--max-draft-len", "4"],
        ["[]", *COMMON, "--max-draft-len", "4"],
        ["{}", *COMMON, "--max-draft-len", "4"],
        ["[[1,4,", *COMMON, "--max-draft-len", "4"],
        ["[" * 100_000, *COMMON, "--max-draft-len", "4"],
        ["no-such-file.json", *COMMON, "--max-draft-len", "4"],
        ["/", *COMMON, "--max-draft-len", "4"],
        ["", *COMMON, "--max-draft-len", "4"],
        ["{}", *COMMON, "--parse"],
        [
            TABLE,
            "--engine",
            "vllm",
            "--engine-version",
            "0.20.0",
            "--max-batch",
            "64",
            "--max-draft-len",
            "4",
        ],
        [
            TABLE,
            "--engine",
            "vllm",
            "--engine-version",
            "newest",
            "--max-batch",
            "64",
            "--max-draft-len",
            "4",
        ],
        [TABLE, "--engine", "vllm", "--engine-version", "0.32.0", "--max-batch", "0", "--max-draft-len", "4"],
        [
            TABLE,
            "--engine",
            "sglang",
            "--engine-version",
            "0.5.23",
            "--max-batch",
            "64",
            "--max-draft-len",
            "4",
        ],
        [TABLE, "--engine", "trtllm", "--engine-version", "1.3", "--max-batch", "64", "--max-draft-len", "4"],
        [
            TABLE,
            "--engine",
            "llamacpp",
            "--engine-version",
            "11434",
            "--max-batch",
            "64",
            "--max-draft-len",
            "4",
        ],
    ],
)
def test_what_is_wrong_is_one_line_and_exit_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback, nothing on stdout, the reason on stderr."""
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("error: ")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A binary or an enormous file is refused, not read to the end."""
    binary, large = tmp_path / "binary", tmp_path / "large"
    binary.write_bytes(b"\xff\xfe")
    large.write_bytes(b" " * (2**20 + 1))
    for path in (binary, large):
        assert run(str(path), *COMMON, "--max-draft-len", "4") == 2
        assert capsys.readouterr().err.startswith("error: ")
