"""systemd's notify protocol, heard on a real datagram socket."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from tuner.daemon.notify import Notifier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=["path", "abstract"])
def heard(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """Return a listening socket and its name as systemd gives it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.settimeout(10.0)
    if request.param == "path":
        name = str(tmp_path / "notify")
        listener.bind(name)
    else:
        name = f"@tuner-test-{os.getpid()}"
        listener.bind(b"\0" + name[1:].encode())
    with listener:
        yield listener, name


def _notifier(name: str, **more: str) -> Notifier:
    return Notifier({"NOTIFY_SOCKET": name, **more}, lambda: 12.5, 77)


def test_each_notice_is_one_datagram(heard: tuple[socket.socket, str]) -> None:
    """READY, STATUS, WATCHDOG, RELOADING with its time, STOPPING arrive as systemd reads them."""
    listener, name = heard
    notifier = _notifier(name)
    notifier.ready("watching 3 engines\nof 1 pool")
    notifier.alive("well")
    notifier.reloading()
    notifier.status("reloaded")
    notifier.stopping("ending")
    received = [listener.recv(4096).decode().split("\n") for _ in range(5)]
    assert received == [
        ["READY=1", "STATUS=watching 3 engines of 1 pool"],
        ["WATCHDOG=1", "STATUS=well"],
        ["RELOADING=1", "MONOTONIC_USEC=12500000"],
        ["STATUS=reloaded"],
        ["STOPPING=1", "STATUS=ending"],
    ]


@pytest.mark.parametrize(
    ("usec", "pid", "expected"),
    [
        ("30000000", "", 30.0),
        ("30000000", "77", 30.0),
        ("30000000", "78", 0.0),
        ("", "", 0.0),
        ("x", "", 0.0),
    ],
)
def test_the_watchdog_is_ours_only_if_systemd_says_so(usec: str, pid: str, expected: float) -> None:
    """WATCHDOG_USEC counts, unless WATCHDOG_PID names another process."""
    notifier = _notifier("/run/systemd/notify", WATCHDOG_USEC=usec, WATCHDOG_PID=pid)
    assert notifier.watchdog_seconds == expected


@pytest.mark.parametrize("name", ["", "vsock:2:1234", "relative/path", "/nonexistent/notify"])
def test_nobody_who_listens_is_no_fault(name: str) -> None:
    """Without a socket, with an unknown kind of one, or with one that is gone, notices do nothing."""
    notifier = _notifier(name)
    notifier.ready("x")
    notifier.alive("x")
    assert notifier.enabled is name.startswith("/")


def test_a_listener_that_reads_nothing_does_not_hold_the_daemon_up(tmp_path: Path) -> None:
    """A full queue drops the notice."""
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name)
        notifier = _notifier(name)
        sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sender.settimeout(0.0)
        with sender:
            for _ in range(10_000):
                try:
                    sender.sendto(b"x", name)
                except BlockingIOError:
                    break
            notifier.alive("still here")
