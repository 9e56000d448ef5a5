"""What systemd is told: the datagrams of ``sd_notify(3)``, by a client of our own.

Source of the protocol: https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MICROSECONDS = 1_000_000
LONGEST_STATUS = 500
"""Characters of a status line; ``systemctl status`` shows one line."""
SEND_SECONDS = 0.5
"""Wait for a receiver that reads nothing: its queue is full, and the next notice says the same."""


class Notifier:
    """Sends notices to ``NOTIFY_SOCKET``; silent where there is none, and never in the way."""

    def __init__(self, environment: Mapping[str, str], monotonic: Callable[[], float], pid: int) -> None:
        """Take the environment that systemd set, and the process whose watchdog it may be."""
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self._monotonic = monotonic
        self._watchdog = _watchdog_seconds(environment, pid) if self._address else 0.0

    @property
    def enabled(self) -> bool:
        """Whether somebody listens."""
        return self._address is not None

    @property
    def watchdog_seconds(self) -> float:
        """Time after which systemd takes silence for death; 0 where it does not."""
        return self._watchdog

    def ready(self, status: str) -> None:
        """Say that start-up, or a reload, is over."""
        self._send("READY=1", _status(status))

    def status(self, status: str) -> None:
        """Say in words how things stand."""
        self._send(_status(status))

    def alive(self, status: str) -> None:
        """Say that the work goes on, for the watchdog."""
        self._send("WATCHDOG=1", _status(status))

    def reloading(self) -> None:
        """Say that settings are read again; needs the monotonic time, or systemd fails the reload."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={round(self._monotonic() * MICROSECONDS)}")

    def stopping(self, status: str) -> None:
        """Say that the daemon ends."""
        self._send("STOPPING=1", _status(status))

    def _send(self, *assignments: str) -> None:
        """Send one datagram; a receiver that is gone or full is let be."""
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as client:
                client.settimeout(SEND_SECONDS)
                client.sendto("\n".join(assignments).encode(), self._address)
        except OSError:
            return


def _address(name: str) -> str | bytes | None:
    """Return the address of the socket: a path, or ``@name`` for an abstract one; ``None`` for others.

    ``vsock:`` addresses are for virtual machines as a whole.
    """
    if name.startswith("@"):
        return b"\0" + name[1:].encode()
    return name if name.startswith("/") else None


def _watchdog_seconds(environment: Mapping[str, str], pid: int) -> float:
    """Return the watchdog's time-out, if it is meant for this process."""
    text = environment.get("WATCHDOG_USEC", "")
    meant_for = environment.get("WATCHDOG_PID", "")
    if not text.isdecimal() or (meant_for and meant_for != str(pid)):
        return 0.0
    return int(text) / MICROSECONDS


def _status(text: str) -> str:
    return f"STATUS={' '.join(text.split())[:LONGEST_STATUS]}"
