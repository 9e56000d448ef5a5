"""PromQL text: selectors and range queries."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_WRAPPED = re.compile(r"\s*(?:[a-zA-Z_:][a-zA-Z0-9_:]*)?\s*\{(.*)\}\s*", re.DOTALL)
_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$]")


def matchers(selector: str) -> str:
    """Return what stands between the braces of a selector, given with or without them."""
    wrapped = _WRAPPED.fullmatch(selector)
    return (wrapped[1] if wrapped else selector).strip().strip(",").strip()


def any_of(values: Collection[str]) -> str:
    """Return a quoted regular expression (RE2) that matches exactly one of ``values``."""
    pattern = "|".join(_SPECIAL.sub(r"\\\g<0>", value) for value in sorted(values))
    return '"' + pattern.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def raw_samples(
    names: Collection[str], selector: str, seconds: float, instances: Collection[str] | None = None
) -> str:
    """Return the query for raw samples of ``names`` in the last ``seconds``, of some instances or of all."""
    parts = [f"__name__=~{any_of(names)}" if len(names) > 1 else f'__name__="{next(iter(names))}"']
    if inner := matchers(selector):
        parts.append(inner)
    if instances is not None:
        parts.append(f"instance=~{any_of(instances)}")
    return f"{{{','.join(parts)}}}[{round(seconds * 1000)}ms]"
