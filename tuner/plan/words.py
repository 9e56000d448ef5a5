"""How messages name many things."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SHOWN = 12
"""Things that a message names; the evidence of a finding holds them all."""


def listed(values: Sequence[int]) -> str:
    """Return ``1, 2, 4``, cut after :data:`SHOWN` with a count of the rest."""
    shown = ", ".join(map(str, values[:SHOWN]))
    return shown if len(values) <= SHOWN else f"{shown} and {len(values) - SHOWN} more"


def percent(ratio: float, *, signed: bool = False) -> str:
    """Return ``4.4 %``, or ``+4.4 %``."""
    return f"{100 * ratio:+.1f} %" if signed else f"{100 * ratio:.1f} %"
