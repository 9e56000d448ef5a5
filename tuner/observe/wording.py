"""Counts in sentences."""

from __future__ import annotations


def counted(number: float, noun: str, verb: str = "") -> str:
    """Return a count with its noun, and ``was`` or ``is``, in the number that fits: ``1 scrape was``."""
    plural = {"was": "were", "is": "are", "carries": "carry"}
    if number == 1:
        return " ".join(filter(None, (f"{number:g} {noun}", verb)))
    return " ".join(filter(None, (f"{number:g} {noun}s", plural.get(verb, verb))))
