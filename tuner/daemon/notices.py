"""What the daemon notices about itself and its sources: findings that are raised, last, and are cleared."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from tuner.fleet import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tuner.fleet import Severity

LASTING = 600.0
"""Seconds for which something that happened once stays active: ten cycles of a minute, so that a rule that
waits five minutes fires."""
MOST = 500
"""Findings held; the number that ``/metrics`` tells apart. A new one beyond that displaces the oldest."""

Key = tuple[str, tuple[tuple[str, str], ...]]


def key_of(finding: Finding) -> Key:
    """Return what makes two findings the same one: code and subject."""
    return finding.code, tuple(sorted(finding.subject.items()))


class Notices:
    """Active findings by code and subject; safe to use from any thread."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._held: dict[Key, tuple[Finding, float | None]] = {}

    def add(self, findings: Iterable[Finding], lasting: float | None = LASTING) -> None:
        """Hold findings for so many seconds from now, or until cleared; the newest of the same replaces."""
        until = None if lasting is None else self._monotonic() + lasting
        with self._lock:
            for finding in findings:
                key = key_of(finding)
                self._held.pop(key, None)
                self._held[key] = finding, until
            for key in list(self._held)[: max(0, len(self._held) - MOST)]:
                del self._held[key]

    def note(
        self,
        code: str,
        severity: Severity,
        message: str,
        subject: Mapping[str, str] | None = None,
        evidence: Mapping[str, Any] | None = None,
        *,
        lasting: float | None = None,
    ) -> None:
        """Raise one finding until it is cleared, or for so many seconds."""
        self.add([Finding(code, severity, message, subject or {}, evidence or {})], lasting)

    def clear(self, code: str, subject: Mapping[str, str] | None = None) -> None:
        """Take one finding back, if it is held."""
        with self._lock:
            self._held.pop((code, tuple(sorted((subject or {}).items()))), None)

    def clear_where(self, name: str, value: str) -> None:
        """Take back everything about one subject, such as a pool that is gone."""
        with self._lock:
            for key in [key for key in self._held if (name, value) in key[1]]:
                del self._held[key]

    def active(self) -> tuple[Finding, ...]:
        """Return what is held and not over."""
        now = self._monotonic()
        with self._lock:
            for key in [key for key, (_, until) in self._held.items() if until is not None and until <= now]:
                del self._held[key]
            return tuple(finding for finding, _ in self._held.values())
