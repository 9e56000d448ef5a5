"""What happened to each job: the counts behind ``/metrics``, the watchdog and the health answer."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.serve.snapshot import JobStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


@dataclass(slots=True)
class _Entry:
    status: JobStatus
    finished: float
    """Monotonic second of the last end, good or bad; of the start of the daemon before the first."""
    running_since: float | None = None
    thread: int = 0
    """The system's number of the thread that runs it."""
    worked_before: float = 0.0
    """Seconds that the thread had a processor before the run."""
    error: str = ""
    """Why the last run failed; empty if it did not."""


class JobBook:
    """Counts by job; safe to use from any thread."""

    def __init__(self, names: Iterable[str], monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        begun = monotonic()
        self._entries = {name: _Entry(JobStatus(name), begun) for name in names}

    def begin(self) -> None:
        """Count from now on: jobs are about to be run."""
        with self._lock:
            for entry in self._entries.values():
                entry.finished = self._monotonic()

    def started(self, name: str, now: float) -> None:
        """Note that a run begins."""
        with self._lock:
            entry = self._entries[name]
            entry.running_since = self._monotonic()
            entry.thread = threading.get_native_id()
            entry.worked_before = processor_seconds(entry.thread)
            entry.status = replace(entry.status, last_start=now)

    def finished(self, name: str, now: float, error: str = "") -> None:
        """Note that a run ended, with why it failed."""
        with self._lock:
            entry = self._entries[name]
            entry.finished = self._monotonic()
            begun, entry.running_since = entry.running_since, None
            entry.error = error
            status = entry.status
            entry.status = replace(
                status,
                runs=status.runs + 1,
                errors=status.errors + bool(error),
                last_seconds=0.0 if begun is None else entry.finished - begun,
                last_success=status.last_success if error else now,
            )

    def missed(self, name: str) -> None:
        """Count a run that came too late and was left out."""
        with self._lock:
            entry = self._entries[name]
            entry.status = replace(entry.status, missed=entry.status.missed + 1)

    def skipped(self, name: str) -> None:
        """Count a run that was left out as the one before was still going."""
        with self._lock:
            entry = self._entries[name]
            entry.status = replace(entry.status, skipped=entry.status.skipped + 1)

    def statuses(self) -> tuple[JobStatus, ...]:
        """Return the counts of every job."""
        with self._lock:
            return tuple(entry.status for entry in self._entries.values())

    def idle_for(self, name: str) -> float:
        """Return seconds since a run of the job last ended."""
        with self._lock:
            return self._monotonic() - self._entries[name].finished

    def running_for(self, name: str) -> float:
        """Return seconds for which a run has been going; 0 where none is."""
        with self._lock:
            begun = self._entries[name].running_since
            return 0.0 if begun is None else self._monotonic() - begun

    def working_share(self, name: str) -> float:
        """Return the part of the time of the run that is going for which it had a processor, 0 to 1."""
        with self._lock:
            entry = self._entries[name]
            if entry.running_since is None:
                return 0.0
            worked = processor_seconds(entry.thread) - entry.worked_before
            return worked / max(self._monotonic() - entry.running_since, 1e-9)

    def running(self) -> tuple[str, ...]:
        """Return the jobs that are going."""
        with self._lock:
            return tuple(n for n, entry in self._entries.items() if entry.running_since is not None)

    def errors(self) -> dict[str, str]:
        """Return the jobs whose last run failed, and why."""
        with self._lock:
            return {name: entry.error for name, entry in self._entries.items() if entry.error}


def processor_seconds(thread: int) -> float:
    """Return the time that a thread of this process had a processor; 0 where the system does not tell.

    From ``/proc/self/task/<id>/schedstat``, whose first number is nanoseconds on a processor.
    """
    try:
        text = Path(f"/proc/self/task/{thread}/schedstat").read_text(encoding="ascii")
        return float(text.split()[0]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0
