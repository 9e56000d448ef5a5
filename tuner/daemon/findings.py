"""Findings that the daemon makes about itself, in the operator's words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.daemon.notices import LASTING
from tuner.observe.wording import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from tuner.config import Pool
    from tuner.daemon.notices import Notices

STALLED_SECONDS = 10.0
"""Seconds between two looks of the main loop, which come each second, that are told as a pause of the
process: stopped, swapped out, or starved of a processor."""


def clock_stepped(notices: Notices, step: float) -> None:
    """Say that the wall clock was set."""
    direction = "on" if step > 0 else "back"
    notices.note(
        "clock_stepped",
        "warning",
        f"the host's clock was set {direction} by {abs(step):.0f} s: jobs go on by the time that passed, and "
        "every engine is observed anew from here. Look at the time service of the host.",
        evidence={"seconds": round(step, 3)},
        lasting=LASTING,
    )


def stalled(notices: Notices, seconds: float) -> None:
    """Say that the process did not run for a while."""
    notices.note(
        "process_stalled",
        "warning",
        f"the daemon did not run for {seconds:.0f} s; the next window of each engine is that much longer. "
        "Look for a suspended host, a stopped process, or too little processor time.",
        evidence={"seconds": round(seconds, 1)},
        lasting=LASTING,
    )


def hung(notices: Notices, late: Mapping[str, float], jobs: Iterable[str], vital: Collection[str]) -> None:
    """Say which jobs hang, and take it back for those that do not; ``vital`` ones end the watchdog."""
    for job in jobs:
        if job not in late:
            notices.clear("job_hung", {"job": job})
            continue
        remedy = (
            "systemd restarts the daemon if its watchdog is on, else restart it; the last schedule stands."
            if job in vital
            else "what it does stands still and the rest goes on. See what it waits for, such as the "
            "database or a file of discovery, and restart the daemon if it stays."
        )
        notices.note(
            "job_hung",
            "critical" if job in vital else "warning",
            f"job {job} has not ended for {late[job]:.0f} s: {remedy}",
            {"job": job},
            {"seconds": round(late[job])},
        )


def failing(notices: Notices, errors: Mapping[str, str], jobs: Iterable[str]) -> None:
    """Say which jobs failed the last time, and take it back for those that did not."""
    for job in jobs:
        if job not in errors:
            notices.clear("job_failed", {"job": job})
            continue
        notices.note(
            "job_failed",
            "warning",
            f"job {job} failed and is tried again at its next time: {errors[job]}",
            {"job": job},
        )


def not_pushed(notices: Notices, pools: Iterable[Pool]) -> None:
    """Say that this release pushes nothing, in pools that ask for it."""
    for pool in pools:
        subject = {"pool": pool.name}
        if pool.mode != "auto":
            notices.clear("push_not_supported", subject)
            continue
        notices.note(
            "push_not_supported",
            "warning",
            f"pool {pool.name} asks for mode auto, and this release pushes no schedule: it is treated as "
            "advise. Take the proposed schedule from the API and give it to the engines.",
            subject,
        )


def store_unavailable(notices: Notices, error: str, waiting: int) -> None:
    """Say that the database does not take writes, and how many windows wait."""
    notices.note(
        "store_unavailable",
        "warning",
        f"the database does not take writes, with {counted(waiting, 'window')} waiting in memory, those of "
        f"routes included: {error}",
        evidence={"waiting": waiting},
    )


def reload_failed(notices: Notices, error: str) -> None:
    """Say that settings were not taken."""
    notices.note(
        "config_reload_failed",
        "warning",
        f"the settings that were read anew have a fault, those from before stay in force: {error}",
    )


def reloaded(notices: Notices, restart: Iterable[str]) -> None:
    """Take that back, and say which changes wait for a restart."""
    notices.clear("config_reload_failed")
    changed = sorted(restart)
    if not changed:
        notices.clear("restart_needed")
        return
    notices.note(
        "restart_needed",
        "warning",
        f"{' and '.join(changed)} changed in the settings, which takes a restart: until then the old stays.",
        evidence={"settings": changed},
    )
