"""Schedules in words, the same on the page, in the terminal and in the demo."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def ranges_text(ranges: Iterable[Sequence[int]]) -> str:
    """Return ``[[1, 8, 4], [9, 24, 2]]`` as ``1-8: 4, 9-24: 2``: batch sizes, draft length."""
    return ", ".join(f"{first}-{last}: {draft_len}" for first, last, draft_len in ranges)
