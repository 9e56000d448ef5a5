"""Which windows of a pool still hold: those of the set-up that most engines run, since it last changed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tuner.fit.restart import shifts_at_restarts
from tuner.fit.step_time import group_by_fingerprint
from tuner.fleet import Finding, WindowState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tuner.fleet import Fingerprint, Window

GONE_SECONDS = 900.0
"""An engine without a window for that long, 60 scrapes at 15 s, has no say in what the pool runs."""
SAME_MOMENT = 1.0
"""Seconds within which two windows of one name end together: two models on one page, not in turn."""


@dataclass(frozen=True, slots=True)
class Current:
    """The windows to fit, and how to tell others like them."""

    windows: list[Window]
    fingerprint: Fingerprint
    since: Mapping[str, float] = field(default_factory=dict)
    """Engine -> unix seconds before which its windows are left out."""
    findings: tuple[Finding, ...] = ()

    def holds(self, window: Window) -> bool:
        """Tell whether a window, of a route for instance, is of the same set-up."""
        return window.fingerprint == self.fingerprint and window.start >= self.since.get(
            window.engine, -math.inf
        )


def current_windows(pool: str, windows: Sequence[Window]) -> Current:
    """Return the windows of the fingerprint that most engines run, with a finding where there were others.

    An engine runs what its newest window says. A canary is outvoted by the rest and a rolling deploy turns
    the vote once; of two with as many engines the one that ran first stays: cycles do not take turns.

    Args:
        pool: name for the findings.
        windows: of one pool, at least one, in any order and state.
    """
    groups = group_by_fingerprint(windows)
    if len(groups) == 1:
        only = next(iter(groups))
        return _since_shift(pool, groups[only], only, ())
    running = _running(groups)

    def votes(fingerprint: Fingerprint) -> tuple[int, int, float, int]:
        group, engines = groups[fingerprint], running[fingerprint]
        good = engines & {w.engine for w in group if w.state is WindowState.GOOD}
        return len(good), len(engines), -min(window.start for window in group), len(group)

    newest = max(groups, key=votes)
    mixed = (_several_fingerprints(pool, groups, newest, beside=sum(map(bool, running.values())) > 1),)
    return _since_shift(pool, groups[newest], newest, mixed)


def _running(groups: Mapping[Fingerprint, list[Window]]) -> dict[Fingerprint, set[str]]:
    """Return the engines that run each fingerprint now, by the newest window of each."""
    ends: dict[str, float] = {}
    for group in groups.values():
        for window in group:
            ends[window.engine] = max(window.end, ends.get(window.engine, window.end))
    horizon = max(ends.values()) - GONE_SECONDS
    return {
        fingerprint: {w.engine for w in group if w.end >= horizon and ends[w.engine] - w.end <= SAME_MOMENT}
        for fingerprint, group in groups.items()
    }


def _several_fingerprints(
    pool: str, groups: Mapping[Fingerprint, list[Window]], newest: Fingerprint, *, beside: bool
) -> Finding:
    """Say whose windows are left out, and whether they are of the past or of a neighbour that still runs."""
    others = [window for fingerprint, group in groups.items() if fingerprint != newest for window in group]
    text = (
        "set-ups of the engine run at the same time in one pool: only the windows of the one that most "
        "engines run are fitted, {left_out} of others are left out. Give each its own pool."
        if beside
        else "set-ups of the engine are in the evidence: {left_out} windows of earlier ones are left out, "
        "costs and acceptance are fitted afresh from the latest."
    )
    return Finding(
        code="fingerprints_mixed" if beside else "fingerprint_changed",
        severity="warning" if beside else "info",
        message=f"{len(groups)} {text.format(left_out=len(others))}",
        subject={"pool": pool},
        evidence={"current": newest.as_dict(), "windows_left_out": len(others)},
    )


def _since_shift(
    pool: str, windows: list[Window], fingerprint: Fingerprint, noticed: tuple[Finding, ...]
) -> Current:
    """Leave out what engines showed before a restart from which they came back as others."""
    shifts = shifts_at_restarts(windows)
    since = {shift.engine: shift.at for shift in shifts}
    findings = tuple(
        Finding(
            code="config_maybe_changed",
            severity="info",
            message=f"{shift.quantity} moved by {shift.relative:+.1%} at a restart of engine "
            f"{shift.engine} though its metrics name the same set-up: what was seen before is left "
            "out. If nothing was changed, look at the machine.",
            subject={"pool": pool, "engine": shift.engine},
            evidence={"at": shift.at, "before": shift.before, "after": shift.after},
        )
        for shift in shifts
    )
    kept = [w for w in windows if w.start >= since.get(w.engine, -math.inf)] if since else windows
    return Current(kept, fingerprint, since, (*noticed, *findings))
