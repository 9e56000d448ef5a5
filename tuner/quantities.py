"""Counts, rates and durations as people write them: ``70B``, ``989e12``, ``15s``, ``1h30m``."""

from __future__ import annotations

import math
import re
from decimal import Decimal

from tuner._exceptions import InputError

_NUMBER = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?\s*([kMGBTP]?)")
_SCALES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "P": 1e15}

_UNITS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
"""Prometheus' units, largest first; its weeks and years are left out, since nobody agrees on a year."""
_PART = re.compile(r"([0-9]+)(ms|[dhms])")
_LARGEST_SECONDS = 100 * 366 * 86_400.0
"""A century. Longer is a typing error, and dates a century away overflow in date arithmetic."""


def parse_number(text: str, remedy: str = "write 70e9, 70B or 0.1") -> float:
    """Return a plain or suffixed number, not negative: ``70e9``, ``70B``, ``989T``, ``0.1``.

    Suffixes: k, M, G or B (1e9), T, P. NaN, infinities, signs and digit groups are refused.

    Args:
        text: the number.
        remedy: what to write instead, for the message; a ratio, a count and a rate look different.

    Raises:
        InputError: ``text`` is no such number; the message does not name the place, callers do.
    """
    match = _NUMBER.fullmatch(text.strip())
    value = float(match[1] + (match[2] or "")) * _SCALES[match[3]] if match else math.nan
    if not math.isfinite(value):
        raise InputError(f"{_shown(text)} is not a number of at least 0: {remedy}")
    return value


def parse_duration(text: str) -> float:
    """Return seconds from whole numbers with units, largest first: ``15s``, ``1h30m``, ``400d``, ``40ms``.

    ``0`` needs no unit. Each unit at most once, in falling order, as Prometheus has it.

    Raises:
        InputError: ``text`` is no duration; the message does not name the place, callers do.
    """
    stripped = text.strip()
    if stripped == "0":
        return 0.0
    parts = _PART.findall(stripped)
    order = [list(_UNITS).index(unit) for _, unit in parts]
    whole = "".join(amount + unit for amount, unit in parts) == stripped
    if not parts or not whole or order != sorted(set(order)):
        raise InputError(
            f"{_shown(text)} is not a duration: write whole numbers with units, as in 40ms, 15s or 1h30m"
        )
    seconds = sum(min(float(amount), _LARGEST_SECONDS) * _UNITS[unit] for amount, unit in parts)
    if seconds >= _LARGEST_SECONDS:
        raise InputError(f"{_shown(text)} is longer than a century: write something shorter")
    return seconds


def format_number(value: float) -> str:
    """Return ``value`` as :func:`parse_number` reads it, large ones with exponents of three: ``989e12``."""
    return Decimal(repr(value)).normalize().to_eng_string().replace("E+", "e").replace("E", "e")


def format_duration(seconds: float) -> str:
    """Return ``seconds`` as :func:`parse_duration` reads it, to the millisecond."""
    left = round(seconds * 1000)
    if left == 0:
        return "0s"
    parts = []
    for unit, size in _UNITS.items():
        amount, left = divmod(left, round(size * 1000))
        if amount:
            parts.append(f"{amount}{unit}")
    if len(parts) > 1 and seconds % 86_400 == 0:
        return f"{round(seconds / 86_400)}d"
    return "".join(parts)


def _shown(text: str) -> str:
    """Return ``text`` quoted, on one line and short enough for a message."""
    shown = ascii(text)
    return shown if len(shown) <= 40 else shown[:37] + "...'"  # noqa: PLR2004 - half a terminal line
