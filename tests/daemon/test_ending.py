"""The process begins and ends by signals, whatever hangs in it."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.daemon.processes import CONFIG, PATIENCE, Daemon, python, write_config

if TYPE_CHECKING:
    from pathlib import Path

STOP_SECONDS = 10.0
"""Promised for any stop."""


def _held_open(fifo: Path) -> int:
    """Return the writing end of a pipe once somebody opened its reading end, where it hangs from then on."""
    pause = threading.Event()
    for _ in range(int(PATIENCE / 0.05)):
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:  # said while nobody reads
                raise
        pause.wait(0.05)
    raise AssertionError(f"nobody reads {fifo}")


def _with_files(folder: Path) -> Path:
    """Write settings of a pool that is found by files in ``folder``."""
    config = write_config(folder, "http://127.0.0.1:1")
    text = config.read_text()
    config.write_text(
        text.replace("http_sd: 'http://127.0.0.1:1/targets/fixed'", f"file_sd: ['{folder}/sd/*.json']")
    )
    return config


@pytest.mark.parametrize("reload", [False, True])
def test_it_ends_in_time_although_a_job_hangs_for_ever(*, reload: bool, tmp_path: Path) -> None:
    """A pipe where discovery expects a file never gives an end: SIGTERM is obeyed within ten seconds.

    Python joins the workers of every pool on its way out, daemon threads or not.
    """
    (tmp_path / "sd").mkdir()
    fifo = tmp_path / "sd" / "engines.json"
    os.mkfifo(fifo)
    with Daemon(_with_files(tmp_path)) as daemon:
        writing = _held_open(fifo)
        try:
            daemon.log.wait("started")
            if reload:
                daemon.signal(signal.SIGHUP)
                daemon.log.wait("settings reloaded")
            asked = time.monotonic()
            daemon.signal(signal.SIGTERM)
            assert daemon.popen.wait(PATIENCE) == 0
            assert time.monotonic() - asked < STOP_SECONDS
            assert not daemon.log.wait("ended")["clean"]
        finally:
            os.close(writing)


def test_sighup_while_it_starts_is_a_reload(tmp_path: Path) -> None:
    """A signal while the settings are still read ends nothing: they are read once more after the start."""
    config = tmp_path / "tuner.yaml"
    os.mkfifo(config)
    text = CONFIG.format(folder=tmp_path, fleet="http://127.0.0.1:1")
    with Daemon(config) as daemon:
        writing = _held_open(config)
        daemon.signal(signal.SIGHUP)
        config.unlink()
        config.write_text(text)
        os.write(writing, text.encode())
        os.close(writing)
        daemon.log.wait("started")
        daemon.log.wait("settings reloaded")
        daemon.signal(signal.SIGTERM)
        assert daemon.popen.wait(PATIENCE) == 0


def test_a_lease_of_no_number_is_refused(tmp_path: Path) -> None:
    """NaN lies within every range; it is a usage error of one line, before anything is read."""
    process = python("run", "--config.file", str(tmp_path / "none.yaml"), "--store.lease-ttl", "nan")
    _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert "nan" in error
    assert error.count("\n") == 1
