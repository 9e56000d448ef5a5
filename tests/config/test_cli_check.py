"""``tuner check config``: what it prints, where, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tuner.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable

    Write = Callable[[str | bytes], Path]

EXAMPLE = Path(__file__).resolve().parents[2] / "tuner.example.yaml"


def _run(*arguments: str) -> int:
    """Run the command in process and return its exit code."""
    with pytest.raises(SystemExit) as left:
        main(["check", *arguments])
    assert isinstance(left.value.code, int)
    return left.value.code


def test_fine(capsys: pytest.CaptureFixture[str]) -> None:
    """Settings without fault: exit 0, pools and the settings that differ from their default."""
    assert _run("config", str(EXAMPLE)) == 0

    captured = capsys.readouterr()
    assert captured.err == ""
    assert "chat-70b" in captured.out
    assert "989e12" in captured.out
    assert "pools[0].slo.tpot" in captured.out
    assert "40ms" in captured.out
    assert "note: /etc/tuner/engine.token: does not exist on this host" in captured.out


def test_notes(write: Write, fine: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is no fault and still worth knowing is noted: nobody to scrape, a mode that does less so far."""
    assert _run("config", str(write(fine + "    mode: auto\n    admin: {}\n"))) == 0

    out = capsys.readouterr().out
    assert "note: pool chat names no engines: it serves replays only" in out
    assert "note: pool chat is auto: this release proposes schedules and pushes none" in out


def test_fine_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON carries what was understood, durations in seconds."""
    assert _run("config", str(EXAMPLE), "--json") == 0

    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is True
    assert document["faults"] == []
    assert document["config"]["cycle"]["interval"] == 60.0
    assert document["config"]["pools"][0]["allowed_draft_lens"] == [0, 1, 2, 3, 4]


def test_faults(write: Write, fine: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Faults: exit 1, one line each on stderr, nothing on stdout."""
    path = write(fine + "    max_batch: 0\nscrape: {interval: 15}\n")

    assert _run("config", str(path)) == 1

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        f"{path}:4: pools[0].max_batch is out of range: give a value at least 1",
        f"{path}:5: scrape.interval has no unit: write 15s, or m, h, d, ms",
        f"{path}: 2 faults",
    ]


def test_faults_as_json(write: Write, fine: str, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON lists every fault with line, field and remedy."""
    assert _run("config", str(write(fine + "wbe: {}\n")), "--json") == 1

    document = json.loads(capsys.readouterr().out)
    assert (document["ok"], document["config"]) == (False, None)
    assert [(f["line"], f["field"], f["remedy"]) for f in document["faults"]] == [
        (4, "wbe", "did you mean web?")
    ]


def test_unknown_engine(write: Write, fine: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An engine that the tuner does not know is a fault at its line."""
    path = write(fine.replace("vllm", "abacus"))

    assert _run("config", str(path)) == 1
    assert f"{path}:3: pools[0].engine abacus is not supported: use one of" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["none.yaml", "."])
def test_file_that_cannot_be_read(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing file or a folder is a usage error: exit 2 and one line."""
    assert _run("config", str(tmp_path / name)) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--help"], ["config", "--help"]])
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Help carries examples."""
    assert _run(*arguments) == 0
    assert "Examples:" in capsys.readouterr().out
