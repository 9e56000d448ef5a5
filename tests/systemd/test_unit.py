"""The unit file: what systemd itself says about it."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tuner.config import check_config

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "systemd"
UNIT = FOLDER / "tuner.service"
MOST_EXPOSED = 1.3
"""By ``systemd-analyze security``, 0 (sealed) to 10; a daemon that talks to the network reaches about 1."""


def _analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    binary = shutil.which("systemd-analyze")
    if binary is None:
        if os.environ.get("CI") == "true":
            pytest.fail("systemd-analyze is missing: apt-get install systemd")
        pytest.skip("systemd-analyze is missing: apt-get install systemd")
    return subprocess.run([binary, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_the_unit_is_sealed() -> None:
    """The exposure that systemd computes from the unit is at most 1.3."""
    done = _analyze("security", "--offline=true", "--no-pager", str(UNIT))
    found = re.search(r"Overall exposure level for tuner\.service: ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= MOST_EXPOSED


def test_the_unit_is_understood(tmp_path: Path) -> None:
    """``systemd-analyze verify`` says nothing about the unit once its program exists."""
    program = shutil.which("true")
    assert program is not None
    unit = tmp_path / "tuner.service"
    unit.write_text(UNIT.read_text().replace("/opt/tuner/bin/tuner", program))
    done = _analyze("verify", "--man=no", str(unit))
    assert done.returncode == 0
    assert "tuner.service" not in done.stdout + done.stderr


def _service() -> dict[str, str]:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign] # keys of units are case-sensitive
    parser.read(UNIT)
    return dict(parser["Service"])


def test_the_unit_speaks_the_notify_protocol() -> None:
    """It is told when the daemon is ready, and kills one that shows no life."""
    service = _service()
    assert service["Type"] == "notify"
    assert service["WatchdogSec"] == "5min"
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"


def test_the_stop_is_bounded() -> None:
    """A stop takes at most 20 s, the daemon's own limit of 10 s twice, and ends in SIGKILL."""
    service = _service()
    assert service["TimeoutStopSec"] == "20s"
    assert "SendSIGKILL" not in service


def test_the_example_settings_hold() -> None:
    """The settings that are installed with the unit have no fault."""
    checked = check_config(FOLDER / "tuner.yaml")
    assert checked.faults == ()


def test_every_file_is_in_the_install_steps() -> None:
    """The page on installing places each file of the folder."""
    page = (ROOT / "docs" / "install.md").read_text()
    for path in FOLDER.iterdir():
        assert f"systemd/{path.name}" in page, path.name
