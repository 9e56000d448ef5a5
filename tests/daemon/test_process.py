"""``tuner run`` as a process against a simulated fleet in another, on SQLite."""

from __future__ import annotations

import signal
import socket
import sqlite3
import subprocess
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.daemon.processes import PATIENCE, Daemon, Fleet, python, write_config

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UP = 'tuner_source_up{source="scrape:fixed"}'
STOP_SECONDS = 10.0
"""Promised for a clean stop."""


@pytest.fixture(scope="module")
def fleet() -> Iterator[str]:
    """Return the address of a simulated fleet."""
    with Fleet() as running:
        yield running.url


def test_it_starts_serves_reloads_and_ends(fleet: str, tmp_path: Path) -> None:
    """Ready, metrics, a bad reload that keeps the old settings, a good one, and an end within ten seconds."""
    config = write_config(tmp_path, fleet)
    with Daemon(config) as daemon:
        daemon.until(UP, 1.0)
        assert daemon.log.wait("started")["pools"] == 1
        assert "4 of 4 engines up in 1 pool" in daemon.log.wait("first scrapes")["status"]
        assert daemon.get("/-/ready").status_code == 200
        assert daemon.get("/-/healthy").status_code == 200
        assert daemon.metric("tuner_leader") == 1.0
        daemon.until('tuner_windows_total{pool="fixed",state="good"}', 1.0)

        good = config.read_text()
        config.write_text(good.replace("mode: advise", "mode: adviseee"))
        daemon.signal(signal.SIGHUP)
        daemon.log.wait("settings not reloaded, the old ones stay")
        assert daemon.metric("tuner_config_last_reload_successful") == 0.0
        assert "config_reload_failed" in daemon.get("/metrics").text
        daemon.until_told("config_reload_failed", "/api/v1/findings")
        assert daemon.get("/api/v1/pools").json()["pools"][0]["mode"] == "advise"

        config.write_text(good.replace("mode: advise", "mode: observe"))
        daemon.signal(signal.SIGHUP)
        assert daemon.log.wait("settings reloaded")["changed"] == "pools[fixed].mode"
        assert daemon.metric("tuner_config_last_reload_successful") == 1.0
        assert daemon.get("/api/v1/pools").json()["pools"][0]["mode"] == "observe"

        asked = time.monotonic()
        daemon.signal(signal.SIGTERM)
        assert daemon.popen.wait(PATIENCE) == 0
        assert time.monotonic() - asked < STOP_SECONDS
        ended = daemon.log.wait("ended")
        assert ended["windows_not_written"] == 0
        assert ended["clean"]
    with closing(sqlite3.connect(tmp_path / "tuner.db")) as database:
        assert database.execute("select count(*) from windows_raw").fetchone()[0] > 0
        assert database.execute("select holder from leases").fetchone() == ("",)


def test_a_second_one_stands_by_and_takes_over_after_sigkill(fleet: str, tmp_path: Path) -> None:
    """The stand-by is ready and no leader; when the leader is killed it leads within 30 s."""
    config = write_config(tmp_path, fleet)
    with Daemon(config, "--store.lease-ttl", "4") as first:
        first.until("tuner_leader", 1.0)
        with Daemon(config, "--store.lease-ttl", "4") as second:
            second.log.wait("started")
            assert second.get("/-/ready").status_code == 200
            assert second.metric("tuner_leader") == 0.0
            first.popen.kill()
            killed = time.monotonic()
            second.log.wait("leading")
            assert time.monotonic() - killed < 30.0
            second.until(UP, 1.0)
            second.signal(signal.SIGINT)
            assert second.popen.wait(PATIENCE) == 0


def test_it_ends_in_time_although_an_engine_hangs(tmp_path: Path) -> None:
    """A scrape that gets no answer for a minute does not hold up the end; the second signal ends at once."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = write_config(tmp_path, "http://127.0.0.1:1", more=_static(silent.getsockname()[1]))
        text = config.read_text().replace("interval: 2s, timeout: 1900ms", "interval: 90s, timeout: 80s")
        config.write_text(text.replace("cycle: {interval: 4s}", "cycle: {interval: 90s}"))
        with Daemon(config) as daemon:
            silent.settimeout(PATIENCE)
            connection, _ = silent.accept()
            asked = time.monotonic()
            daemon.signal(signal.SIGTERM)
            assert daemon.popen.wait(PATIENCE) == 0
            assert time.monotonic() - asked < STOP_SECONDS
            connection.close()


def _static(port: int) -> str:
    return f"  - {{name: silent, engine: vllm, engines: {{static: ['http://127.0.0.1:{port}']}}}}\n"


def test_a_database_that_is_away_keeps_it_up_and_not_ready(fleet: str, tmp_path: Path) -> None:
    """Without a folder for its file the daemon stays up, says so, and begins when it is made."""
    config = write_config(tmp_path, fleet)
    config.write_text(config.read_text().replace("/tuner.db", "/away/tuner.db"))
    with Daemon(config, "--store.lease-ttl", "2") as daemon:
        daemon.log.wait("started")
        reply = daemon.get("/-/ready")
        assert reply.status_code == 503
        assert "away" in reply.text
        assert daemon.get("/-/healthy").status_code == 200
        (tmp_path / "away").mkdir()
        daemon.until(UP, 1.0)
        assert daemon.get("/-/ready").status_code == 200


def test_systemd_hears_of_start_reload_life_and_end(fleet: str, tmp_path: Path) -> None:
    """READY with counts, RELOADING with its time, WATCHDOG while it works, STOPPING: on a real socket."""
    config = write_config(tmp_path, fleet)
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name)
        listener.settimeout(PATIENCE)
        with Daemon(config, NOTIFY_SOCKET=name, WATCHDOG_USEC="30000000") as daemon:
            heard = _hear(listener, "READY=1")
            assert "STATUS=" in heard
            _hear(listener, "WATCHDOG=1")
            daemon.signal(signal.SIGHUP)
            assert "MONOTONIC_USEC=" in _hear(listener, "RELOADING=1")
            _hear(listener, "READY=1")
            daemon.signal(signal.SIGTERM)
            _hear(listener, "STOPPING=1")
            assert daemon.popen.wait(PATIENCE) == 0


def _hear(listener: socket.socket, notice: str) -> str:
    """Return the next datagram that begins with a notice."""
    for _ in range(100):
        text = listener.recv(4096).decode()
        if text.startswith(notice):
            return text
    raise AssertionError(f"no {notice}")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("mode: advise", "mode: advisory"), "pools[0].mode"),
        (("engine: vllm", "engine: nosuch"), "nosuch"),
        (("store: {url: '", "store: {url: 'sqlite:///:memory:'}\n# '"), "nothing in it lasts"),
        (("listen: '127.0.0.1:0'", "listen: '0.0.0.0:0'"), "without authentication"),
    ],
)
def test_settings_that_cannot_be_used_are_an_error_of_one_line(
    change: tuple[str, str], said: str, tmp_path: Path
) -> None:
    """Exit code 2 and one line that names place and remedy; nothing is opened."""
    config = write_config(tmp_path, "http://127.0.0.1:1")
    config.write_text(config.read_text().replace(*change))
    process = python("run", "--config.file", str(config))
    _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert said in error
    assert not (tmp_path / "tuner.db").exists()


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """While it waits for a job that hangs, another signal a second later is obeyed without delay."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = write_config(tmp_path, "http://127.0.0.1:1", more=_static(silent.getsockname()[1]))
        text = config.read_text().replace("interval: 2s, timeout: 1900ms", "interval: 90s, timeout: 80s")
        config.write_text(text.replace("cycle: {interval: 4s}", "cycle: {interval: 90s}"))
        with Daemon(config) as daemon:
            silent.settimeout(PATIENCE)
            connection, _ = silent.accept()
            daemon.signal(signal.SIGTERM)
            daemon.signal(signal.SIGTERM)
            daemon.log.wait("ending")
            with pytest.raises(subprocess.TimeoutExpired):
                daemon.popen.wait(1.1)
            daemon.signal(signal.SIGTERM)
            assert daemon.popen.wait(PATIENCE) == 128 + signal.SIGTERM
            connection.close()
