"""What a person reads in a terminal: width, escapes, headings, and words that need no source to be read."""

from __future__ import annotations

import math
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.cli.decision import drafter_cost, knee, print_decision
from tuner.cli.output import print_line
from tuner.cli.plan_text import cannot_say, print_findings
from tuner.cycle import Decision, PoolDecision
from tuner.fit.step_time_columns import Drafter
from tuner.fleet import Finding, NotEnoughData, Severity

ROOT = Path(__file__).resolve().parent.parent.parent
SHORT = ROOT / "tests" / "data" / "recordings" / "vllm-0.32-cpu-short"
KINDS: tuple[Severity, ...] = ("info", "critical", "warning", "info")
REPLAY = ("replay", str(SHORT), "--engine", "vllm")


def _in_terminal(*arguments: str, **environment: str) -> str:
    """Run the command with stdout and stderr on a terminal of 80 columns; return everything it was sent."""
    leader, follower = pty.openpty()
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    process = subprocess.Popen(
        [sys.executable, "-m", "tuner", *arguments],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        cwd=ROOT,
        env={**inherited, "COLUMNS": "80", "TERM": "xterm-256color", **environment},
    )
    os.close(follower)
    received = bytearray()
    while True:
        try:
            chunk = os.read(leader, 65536)
        except OSError:  # Linux answers EIO once the other side is closed
            break
        if not chunk:
            break
        received += chunk
    os.close(leader)
    assert process.wait() == 0, received.decode()
    return received.decode()


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_escapes_where_none_are_wanted(environment: dict[str, str]) -> None:
    """``NO_COLOR`` and a dumb terminal get neither colours nor a bar that moves the cursor."""
    shown = _in_terminal(*REPLAY, **environment)
    assert "schedule" in shown
    assert "\x1b" not in shown
    assert "reading scrapes" not in shown


def test_a_terminal_gets_a_bar_and_headings() -> None:
    """Where escapes are understood they are used: the test above would pass without any."""
    shown = _in_terminal(*REPLAY)
    assert "\x1b[1m" in shown
    assert "reading scrapes" in shown


def test_lines_keep_to_the_width_of_the_terminal() -> None:
    """Reasons and findings are wrapped, and go on indented deeper than they begin."""
    lines = _in_terminal(*REPLAY, NO_COLOR="1").replace("\r", "").split("\n")
    assert max(map(len, lines)) <= 80
    reasons = lines[lines.index("why") + 1 :]
    wrapped = [line for line in reasons if line.startswith("        ")]
    assert wrapped
    assert all(line.startswith(("  batch", "  info", "  warning")) for line in reasons[:1])


def test_lines_are_whole_where_no_one_reads_them(capsys: pytest.CaptureFixture[str]) -> None:
    """In a pipe a finding is one line, so that grep finds all of it."""
    print_line("word " * 60)
    assert capsys.readouterr().out.count("\n") == 1


def _pool(name: str) -> PoolDecision:
    unknown = NotEnoughData("nothing", 1, 2)
    finding = Finding("some_code", "info", f"of {name}", {"pool": name})
    return PoolDecision(name, (), unknown, unknown, unknown, None, (finding,))


@pytest.mark.parametrize("pools", [("a",), ("a", "b")])
def test_findings_stand_under_one_heading(pools: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Findings of pools and those of none are one list; with several pools each says whose it is."""
    elsewhere = Finding("scrape_invalid", "warning", "of no pool")
    print_decision(Decision(0.0, tuple(_pool(name) for name in pools), (elsewhere,)))
    lines = capsys.readouterr().out.splitlines()
    assert lines.count("findings") == 1
    listed = lines[lines.index("findings") + 1 :]
    assert len(listed) == len(pools) + 1
    assert any("(pool a)" in line for line in listed) is (len(pools) > 1)


def test_the_worst_finding_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the order in which they were noticed, what is critical is read first."""
    found = [Finding(f"code_{kind}", kind, "text") for kind in KINDS]
    print_findings(found)
    kinds = [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]]
    assert kinds == ["critical", "warning", "info", "info"]


def test_findings_of_a_recording_stand_under_one_heading(tmp_path: Path) -> None:
    """A file with a bad name is a finding of no pool, and is listed with those of the pool."""
    for path in SHORT.glob("*.prom.gz"):
        shutil.copy(path, tmp_path)
    (tmp_path / "latest.prom").write_text("a 1\n")
    result = subprocess.run(
        [sys.executable, "-m", "tuner", "replay", str(tmp_path), "--engine", "vllm"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    assert result.stdout.splitlines().count("findings") == 1
    assert "1 scrape file was left out" in result.stdout


def test_what_cannot_be_said_tells_what_it_takes() -> None:
    """Numbers that are missing are told in words, and left out where there are none."""
    assert cannot_say(NotEnoughData("too few cells", 1, 2)) == "too few cells; it takes 2, there are 1"
    assert cannot_say(NotEnoughData("untold")) == "untold"


def test_the_knee_is_named() -> None:
    """The sharpness of the fit is a word with its number."""
    assert knee(1.0).startswith("linear (p = 1)")
    assert knee(2.4) == "soft knee (p = 2.4)"
    assert knee(8.0) == "sharp knee (p = 8)"
    assert knee(math.inf) == "sharp knee (p = infinite)"


def test_the_drafter_is_told_by_what_it_costs() -> None:
    """A drafter without a cost of its own is no drafter called "none"."""
    assert drafter_cost(Drafter("none", 0, 0, 0, 0, "")) == "no separate drafter cost found"
    affine = Drafter("affine_batched", 0.002, 0.001, 0, 0.0001, "")
    assert drafter_cost(affine) == "the drafter adds 2 ms + 1 ms x K + 0.1 ms x K x requests"
