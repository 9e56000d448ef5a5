"""The command as a whole: exit codes, one-line errors, help without imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tuner.cli import VERBS, main


def _left_with(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert isinstance(left.value.code, int)
    return left.value.code


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["replay", "somewhere"],
        ["replay", "somewhere", "--engine"],
        ["replay", "somewhere", "--engine", "vllm", "--bogus"],
        ["replay", "/nonexistent", "--engine", "vllm"],
        ["plan", "--sweep", "/nonexistent.csv"],
        ["render", "[[1,4,9]]", "--engine", "vllm", "--engine-version", "0.32.0", "--max-batch", "8",
         "--max-draft-len", "4"],
        ["theory", "draft-len", "--profile", "0.8,x", "--draft-cost", "0.1"],
        ["check", "config", "/nonexistent.yaml"],
    ],
)  # fmt: skip
def test_errors_are_one_line_and_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever is wrong with the arguments, stderr holds one line that starts with ``error:``."""
    assert _left_with(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1


def test_success_exits_0(capsys: pytest.CaptureFixture[str]) -> None:
    """An answered question leaves with 0."""
    assert _left_with(["theory", "crossover", "--flops", "989e12", "--bandwidth", "3.35e12"]) == 0
    assert "295" in capsys.readouterr().out


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_help_with_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``--help`` of each verb answers, and shows at least one command to copy."""
    assert _left_with([verb, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"tuner {verb}" in text
    assert "Example" in text or "Commands:" in text


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_help_of_the_group_matches_its_verbs(verb: str) -> None:
    """The one-line help that stands in the table is the verb's own first sentence in spirit: not empty."""
    assert VERBS[verb][2].endswith(".")


def test_help_imports_no_numerics() -> None:
    """``tuner --help`` must not pay for numpy, scipy or pydantic."""
    code = (
        "import sys\nfrom tuner.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('numpy', 'scipy', 'sklearn', 'pydantic', 'rich') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


def test_a_reader_that_leaves_early_is_no_traceback() -> None:
    """``tuner ... | head`` ends quietly when the reader has gone."""
    code = (
        "import os, sys\nr, w = os.pipe()\nos.close(r)\nos.dup2(w, 1)\n"
        "from tuner.cli import main\nmain(['theory', 'crossover', '--flops', '1e12', '--bandwidth', '1e12'])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert result.stderr == ""
