"""Query parameters: read strictly, described once for the reader and the OpenAPI document."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from tuner._exceptions import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.datastructures import QueryParams

MAX_TEXT: Final = 256
_WHOLE = re.compile(r"[0-9]{1,12}")
_NUMBER = re.compile(r"[0-9]{1,20}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,3})?")
"""Numbers as JSON writes them, without a sign: no NaN, no digits of other scripts."""


class QueryError(InputError):
    """A query parameter that cannot be used; the message begins with its name."""


@dataclass(frozen=True, slots=True)
class Param:
    """One query parameter."""

    name: str
    kind: Literal["text", "whole", "number", "choice"]
    meaning: str
    default: Any = None
    """``None`` for optional ones without a default."""
    required: bool = False
    low: int = 0
    high: int | None = None
    choices: tuple[str, ...] = ()

    def read(self, text: str) -> Any:  # noqa: ANN401  # text, number or whole number, by its kind
        """Return the value of ``text``.

        Raises:
            QueryError: it is of another kind or out of bounds.
        """
        if self.kind == "choice":
            if text not in self.choices:
                raise QueryError(f"{self.name}: must be one of {', '.join(self.choices)}")
            return text
        if self.kind == "text":
            if not 0 < len(text) <= MAX_TEXT:
                raise QueryError(f"{self.name}: must have 1 to {MAX_TEXT} characters")
            return text
        pattern, number = (_WHOLE, int) if self.kind == "whole" else (_NUMBER, float)
        whole = ", without a fraction" if self.kind == "whole" else ""
        if not pattern.fullmatch(text):
            raise QueryError(f"{self.name}: must be a number of at least {self.low}{whole}")
        value = number(text)
        if value < self.low or value > (math.inf if self.high is None else self.high):
            top = "" if self.high is None else f" to {self.high}"
            raise QueryError(f"{self.name}: must be {self.low}{top or ' or more'}")
        return value

    def schema(self) -> dict[str, Any]:
        """Return the OpenAPI parameter object."""
        schema: dict[str, Any]
        if self.kind == "choice":
            schema = {"type": "string", "enum": list(self.choices)}
        elif self.kind == "text":
            schema = {"type": "string", "minLength": 1, "maxLength": MAX_TEXT}
        else:
            schema = {"type": "integer" if self.kind == "whole" else "number", "minimum": self.low}
            schema |= {} if self.high is None else {"maximum": self.high}
        if self.default is not None:
            schema["default"] = self.default
        return {
            "name": self.name,
            "in": "query",
            "required": self.required,
            "description": self.meaning,
            "schema": schema,
        }


def read_query(query: QueryParams, params: Sequence[Param]) -> dict[str, Any]:
    """Return the value of every parameter, defaults where one is not given.

    Raises:
        QueryError: a parameter is unknown, given twice, missing or cannot be used.
    """
    known = {param.name: param for param in params}
    for name in query:
        if name not in known:
            told = f"use {', '.join(known)}" if known else "there are none"
            # Other people's words are not repeated whole: a message is one line.
            raise QueryError(f"{name[:40]!r}: no such query parameter, {told}")
        if len(query.getlist(name)) > 1:
            raise QueryError(f"{name}: given more than once")
    out: dict[str, Any] = {}
    for name, param in known.items():
        if name in query:
            out[name] = param.read(query[name])
        elif param.required:
            raise QueryError(f"{name}: is missing")
        else:
            out[name] = param.default
    return out


POOL: Final = Param("pool", "text", "Only this pool; an unknown one is 404.")
LIMIT: Final = Param("limit", "whole", "Most entries to return.", default=100, low=1, high=1000)
OFFSET: Final = Param("offset", "whole", "Entries to pass over.", default=0, high=1_000_000)
