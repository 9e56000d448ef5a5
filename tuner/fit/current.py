"""Which windows of a pool still hold: those of the set-up that ran last, since it last changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tuner.fit.restart import shifts_at_restarts
from tuner.fit.step_time import group_by_fingerprint
from tuner.fleet import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tuner.fleet import Fingerprint, Window


@dataclass(frozen=True, slots=True)
class Current:
    """The windows to fit, and how to tell others like them."""

    windows: list[Window]
    fingerprint: Fingerprint
    restarts: Mapping[str, int] = field(default_factory=dict)
    """Engine -> restarts before which its windows are left out."""
    findings: tuple[Finding, ...] = ()

    def holds(self, window: Window) -> bool:
        """Tell whether a window, of a route for instance, is of the same set-up."""
        return (
            window.fingerprint == self.fingerprint
            and self.restarts.get(window.engine, window.restarts) == window.restarts
        )


def current_windows(pool: str, windows: Sequence[Window]) -> Current:
    """Return the windows of the fingerprint that ran last, with a finding where there were others.

    Args:
        pool: name for the findings.
        windows: of one pool, at least one, in any order and state.
    """
    groups = group_by_fingerprint(windows)

    def recency(fingerprint: Fingerprint) -> tuple[float, int]:
        group = groups[fingerprint]
        return max(window.end for window in group), len(group)

    newest = max(groups, key=recency)
    mixed = () if len(groups) == 1 else (_several_fingerprints(pool, groups, newest),)
    return _since_shift(pool, groups[newest], newest, mixed)


def _several_fingerprints(
    pool: str, groups: Mapping[Fingerprint, list[Window]], newest: Fingerprint
) -> Finding:
    """Say whose windows are left out, and whether they are of the past or of a neighbour that still runs."""
    others = [window for fingerprint, group in groups.items() if fingerprint != newest for window in group]
    began = min(window.start for window in groups[newest])
    beside = max(window.end for window in others) > began
    text = (
        "set-ups of the engine run at the same time in one pool: only the windows of the latest are "
        "fitted, {left_out} of others are left out. Give each its own pool."
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
    shifted = {shift.engine for shift in shifts}
    last: dict[str, int] = {}
    for window in windows:
        if window.engine in shifted:
            last[window.engine] = max(window.restarts, last.get(window.engine, 0))
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
    kept = [w for w in windows if last.get(w.engine, w.restarts) == w.restarts] if last else windows
    return Current(kept, fingerprint, last, (*noticed, *findings))
