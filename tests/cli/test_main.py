"""The command as a whole: exit codes, one-line errors, help without imports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tuner.cli import VERBS, main, tuner

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLE = str(ROOT / "tuner.example.yaml")
CROSSOVER = ("theory", "crossover", "--flops", "1e12", "--bandwidth", "1e12")


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


def _commands(group: click.Group, *path: str) -> list[tuple[str, ...]]:
    """Every command below a group, groups included."""
    context = click.Context(group)
    out: list[tuple[str, ...]] = [path]
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        out += _commands(command, *path, name) if isinstance(command, click.Group) else [(*path, name)]
    return out


@pytest.mark.parametrize("path", _commands(tuner), ids=" ".join)
def test_examples_stand_at_the_end_of_every_help(path: tuple[str, ...]) -> None:
    """Whoever asks for help finds commands to copy in one place: behind the options, nothing after them."""
    text = CliRunner().invoke(tuner, [*path, "--help"], catch_exceptions=False).output
    assert text.count("Examples:") == 1
    options, _, examples = text.partition("Examples:")
    assert "Options:" in options
    assert f"tuner {' '.join(path)}".strip() in examples


@pytest.mark.parametrize("path", _commands(tuner), ids=" ".join)
def test_one_line_helps_are_whole(path: tuple[str, ...]) -> None:
    """No list of commands cuts a sentence off."""
    text = CliRunner().invoke(tuner, [*path, "--help"], catch_exceptions=False).output
    for line in text.partition("Commands:")[2].partition("Examples:")[0].splitlines():
        assert not line.endswith("...")


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


@pytest.mark.parametrize(
    "arguments", [("--help",), ("theory", "--help"), CROSSOVER, ("check", "config", EXAMPLE)]
)
def test_a_reader_that_leaves_early_is_no_fault(arguments: tuple[str, ...]) -> None:
    """``tuner ... | head`` ends quietly, with the code of SIGPIPE: 1 would say that a check found fault."""
    code = (
        "import os, sys\nr, w = os.pipe()\nos.close(r)\nos.dup2(w, 1)\n"
        f"from tuner.cli import main\nmain({list(arguments)})"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.parametrize("arguments", [CROSSOVER, ("check", "config", EXAMPLE), ("--help",)])
def test_a_closed_output_is_no_traceback(arguments: tuple[str, ...]) -> None:
    """``tuner ... >&-`` says nothing and has the exit code that it would have."""
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "tuner", *arguments]
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    assert (result.returncode, result.stderr) == (0, "")


def test_status_never_shows_a_password_of_its_url() -> None:
    """It is refused in one line without it."""
    result = _run("-m", "tuner", "status", "--url", "http://u:hunter2@127.0.0.1:1", stdout=subprocess.PIPE)
    assert result.returncode == 2
    assert result.stderr.startswith("error: --url holds a user name or password")
    assert "hunter2" not in result.stderr + result.stdout


def _run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload,no-any-return]  # options of run, passed on
        [sys.executable, *arguments], stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT, **options
    )


def test_the_package_runs_as_a_module() -> None:
    """``python -m tuner`` is the command, for those whose PATH does not hold it."""
    result = _run("-m", "tuner", "--version", stdout=subprocess.PIPE)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("tuner, version ")


def test_the_measurements_answer_for_help() -> None:
    """``python -m bench --help`` lists what can be measured and measures nothing."""
    result = _run("-m", "bench", "--help", stdout=subprocess.PIPE)
    assert result.returncode == 0
    assert "recovery.crossover" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["theory", "crossover", "--hardware", "h100"], ["check", "config", "tuner.example.yaml"]],
)
def test_a_full_disk_is_one_line(arguments: list[str]) -> None:
    """Output that cannot be written is said once, without a traceback, and leaves with 2."""
    with Path("/dev/full").open("w") as full:
        result = _run("-m", "tuner", *arguments, stdout=full)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "No space left on device" in result.stderr


def test_a_full_stderr_keeps_the_exit_code() -> None:
    """An error that nobody can read still leaves with 2."""
    with Path("/dev/full").open("w") as full:
        code = subprocess.run([sys.executable, "-m", "tuner", "nonsense"], stderr=full, check=False, cwd=ROOT)
    assert code.returncode == 2


@pytest.mark.parametrize("module", ["click", "tuner.cli.replay", "tuner.cycle"])
def test_an_interrupt_while_modules_load_is_no_traceback(module: str) -> None:
    """Ctrl-C in the first moments, while modules are being imported, is ``interrupted`` and 130."""
    code = (
        "import sys, os, signal\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        f"            os.kill(os.getpid(), {int(signal.SIGINT)})\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from tuner.__main__ import main\n"
        "sys.argv = ['tuner', 'replay', 'tests/data/recordings/vllm-0.32-cpu-short', '--engine', 'vllm']\n"
        "main()"
    )
    result = _run("-c", code, stdout=subprocess.PIPE, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    assert result.returncode == 130
    assert result.stderr.split() == ["interrupted"]


@pytest.mark.parametrize("wrapper", ["RuntimeError('in __set_name__')", "ImportError('in an extension')"])
def test_an_interrupt_that_was_wrapped_is_one_too(wrapper: str) -> None:
    """Python and libraries turn Ctrl-C during an import into errors of their own; a real error stays one."""
    raising = f"try:\n    raise KeyboardInterrupt\nexcept BaseException as e:\n    raise {wrapper} from e\n"
    for body, code in ((raising, 130), (f"raise {wrapper}\n", 1)):
        program = (
            "import tuner.cli\n"
            f"def run():\n    exec({body!r})\n"
            "tuner.cli.main = run\n"
            "from tuner.__main__ import main\n"
            "main()"
        )
        result = _run("-c", program, stdout=subprocess.PIPE)
        assert result.returncode == code
        assert ("Traceback" in result.stderr) is (code == 1)
