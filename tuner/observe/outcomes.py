"""What asking a source for one number can come to: a number, nothing, something undefined, an error.

None of the four is 0, and none is a float NaN: an idle engine's 0/0, an empty answer and a failed
request look alike only to code that turns them all into a number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

HTTP_OK = 200
HTTP_SERVER_ERROR = 500
HTTP_TOO_MANY = 429
HTTP_TIMEOUT = 408


@dataclass(frozen=True, slots=True)
class NoData:
    """The source is healthy and has nothing: no such series in that time."""

    reason: str = "empty result"


@dataclass(frozen=True, slots=True)
class Undefined:
    """The source answered with no number: 0/0 at idle, an infinite ratio."""

    reason: str


@dataclass(frozen=True, slots=True)
class SourceError:
    """The source could not answer; only this counts against its health."""

    reason: str
    retryable: bool


Reading = float | NoData | Undefined | SourceError


def reading(value: float | str) -> float | Undefined:
    """Return a finite number, or say why it is none. Prometheus writes values as strings."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return Undefined(f"{value!r} is not a number")
    if math.isnan(number):
        return Undefined("NaN: an undefined ratio, such as 0/0 while idle")
    if math.isinf(number):
        return Undefined("infinite: a ratio over zero")
    return number


def instant_value(status: int, document: Mapping[str, Any] | None) -> Reading:
    """Read the answer of Prometheus' ``/api/v1/query`` to a query for one number.

    Args:
        status: HTTP status.
        document: the parsed body, ``None`` where it was no JSON object.
    """
    if status != HTTP_OK:
        retryable = status >= HTTP_SERVER_ERROR or status in (HTTP_TOO_MANY, HTTP_TIMEOUT)
        return SourceError(f"HTTP {status}", retryable)
    if document is None or document.get("status") != "success":
        error = (document or {}).get("error", "no JSON object")
        return SourceError(f"no answer: {error}", retryable=False)
    data = document.get("data")
    result = data.get("result") if isinstance(data, dict) else None
    if not isinstance(result, list):
        return SourceError("answer without a result", retryable=False)
    scalar = isinstance(data, dict) and data.get("resultType") == "scalar"
    return _sample(result) if scalar else _vector(result)


def _vector(result: list[Any]) -> Reading:
    """Read a list of series of which there should be one."""
    if not result:
        return NoData()
    if len(result) > 1:
        return Undefined(f"{len(result)} series where one was asked for")
    return _sample(result[0].get("value") if isinstance(result[0], dict) else None)


def _sample(pair: object) -> Reading:
    """Read ``[time, "value"]``."""
    if isinstance(pair, list) and len(pair) == 2:  # noqa: PLR2004 - time and value
        return reading(pair[1])
    return SourceError("answer without a sample", retryable=False)
