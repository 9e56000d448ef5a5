"""Which settings this release acts on; all others are checked and kept for later."""

from __future__ import annotations

OBEYED = frozenset(
    {
        "pools",
        "pools[].name",
        "pools[].hardware.flops",
        "pools[].hardware.bandwidth",
        "pools[].model.params",
        "pools[].model.active_params",
        "pools[].model.weight_bits",
        "pools[].drafter.method",
        "pools[].allowed_draft_lens",
        "pools[].max_batch",
        "pools[].objective",
        "pools[].slo.tpot",
        "pools[].guard.min_gain",
        "pools[].guard.tie",
    }
)
"""Settings that a replay obeys, by dotted name; a test holds this list to what a replay reads."""


def obeyed(name: str) -> bool:
    """Return whether a setting, or one in a section of that name, is acted on."""
    return any(each == name or each.startswith((f"{name}.", f"{name}[]")) for each in OBEYED)
