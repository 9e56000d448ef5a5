"""Values as JSON takes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.fleet import Schedule

if TYPE_CHECKING:
    from tuner.fleet import Window

_SURROGATES = dict.fromkeys(range(0xD800, 0xE000), "\ufffd")
"""Halves of a character, which UTF-8 has no bytes for."""


def plain(value: Any) -> Any:  # noqa: ANN401  # anything in, JSON out
    """Return a value made of dicts, lists, text and finite numbers; a number that is not finite is null."""
    if isinstance(value, Mapping):
        return {_text(str(key)): plain(inner) for key, inner in value.items()}
    if isinstance(value, Schedule):
        return value.as_lists()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, set | frozenset):
        return sorted(plain(inner) for inner in value)
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return _scalar(value)


def _scalar(value: Any) -> Any:  # noqa: ANN401  # as above
    if isinstance(value, Enum):
        value = value.value
    elif isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return _text(str(value))


def _text(value: str) -> str:
    return value.translate(_SURROGATES)


def window_dict(window: Window) -> dict[str, Any]:
    """Return a window: what was counted, and what follows from it; null where the engine does not tell."""
    counts = plain(window.counts)
    counts["joint"] = [
        {"draft_len": drafted, "accepted": accepted, "count": plain(count)}
        for (drafted, accepted), count in sorted(window.counts.joint.items())
    ]
    return {
        "pool": window.pool,
        "engine": window.engine,
        "route": window.route,
        "start": plain(window.start),
        "end": plain(window.end),
        "state": window.state.value,
        "reason": window.reason,
        "batch": plain(window.batch),
        "draft_len": plain(window.draft_len),
        "draft_lens": None if window.draft_lens is None else sorted(window.draft_lens),
        "tokens_in_flight": plain(window.tokens_in_flight),
        "step_seconds": plain(window.step_seconds),
        "tokens_per_second": plain(window.tokens_per_second),
        "counts": counts,
        "gauges": plain(window.gauges),
        "fingerprint": window.fingerprint.as_dict(),
    }
