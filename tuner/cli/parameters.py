"""Types of command-line values whose errors are one line that names the option and the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tuner._exceptions import InputError
from tuner.quantities import parse_number

if TYPE_CHECKING:
    _FloatParam = click.ParamType[float]
    _FloatsParam = click.ParamType[tuple[float, ...]]
else:  # generic since click 8.4, the range starts below
    _FloatParam = _FloatsParam = click.ParamType

LARGEST = 1e24
"""Largest rate or count taken for real, far above any machine, far below where products overflow."""

LONGEST_DRAFT = 1024
"""Longest draft length taken for real; the longest published drafts have about 30 tokens."""


class Number(_FloatParam):
    """A number such as ``70e9``, ``70B`` or ``0.1`` within bounds."""

    name = "number"

    def __init__(
        self, low: float = 0.0, high: float = LARGEST, *, whole: bool = False, hint: str = ""
    ) -> None:
        self.low, self.high, self.whole = low, high, whole
        self.hint = hint or ("give a whole number, as in 4" if whole else "give a number, as in 0.1")

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ARG002
        """Return the number, or raise one line that names the option and the remedy."""
        return value if isinstance(value, float | int) else self.parse(str(value), _option(param))

    def parse(self, text: str, where: str) -> float:
        """Return the number in ``text``, an int where whole numbers are asked for."""
        try:
            value = parse_number(text, self.hint)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        if not self.low <= value <= self.high or (self.whole and value != int(value)):
            kind = "a whole number" if self.whole else "a number"
            raise InputError(
                f"{where}: {text.strip()} must be {kind} from {_shown(self.low)} to {_shown(self.high)}"
                f": {self.hint}"
            )
        return int(value) if self.whole else value


class NumberList(_FloatsParam):
    """Numbers separated by commas."""

    name = "n,n,..."

    def __init__(self, each: Number) -> None:
        self.each = each

    def convert(
        self,
        value: object,
        param: click.Parameter | None,
        ctx: click.Context | None,  # noqa: ARG002
    ) -> tuple[float, ...]:
        """Return the numbers in order."""
        if isinstance(value, tuple):
            return value
        return tuple(self.each.parse(item, _option(param)) for item in str(value).split(","))


class WeightFormat(_FloatParam):
    """The name of a weight format, as bits per weight."""

    name = "dtype"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ARG002
        """Return the bits of one weight."""
        from tuner.theory.roofline import weight_bits

        try:
            return value if isinstance(value, float) else weight_bits(str(value))
        except InputError as error:
            raise InputError(f"{_option(param)}: {error}") from None


def _option(param: click.Parameter | None) -> str:
    """Return the option's name for a message."""
    return param.opts[0] if param is not None else "value"


def _shown(bound: float) -> str:
    """Return a bound as people write it: 1000000, but 1e+24."""
    return f"{bound:.15g}" if bound < 1e9 else f"{bound:g}"  # noqa: PLR2004 - ten digits are hard to count
