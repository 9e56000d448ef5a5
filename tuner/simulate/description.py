"""Fleet descriptions in YAML -> frozen values; an error is one line that names place and remedy."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from tuner._exceptions import InputError
from tuner.quantities import parse_duration
from tuner.simulate import spec as specs
from tuner.simulate.spec import FleetSpec

if TYPE_CHECKING:
    from pathlib import Path

Spec = TypeVar("Spec")

LARGEST_FILE = 1024 * 1024


def read_fleet(path: Path) -> FleetSpec:
    """Return the fleet that a file describes.

    Raises:
        InputError: it cannot be read, is not YAML, or describes no fleet.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise InputError(f"{path}: cannot be read: {reason}") from None
    if len(text) > LARGEST_FILE:
        raise InputError(f"{path}: over {LARGEST_FILE} bytes: a fleet is described by a few lines per pool")
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark is not None else ""
        raise InputError(f"{path}:{line} is not YAML: {getattr(error, 'problem', None) or error}") from None
    try:
        return fleet_of(document)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def fleet_of(document: object) -> FleetSpec:
    """Return the fleet that a parsed document describes.

    Raises:
        InputError: a key is unknown or a value is of another kind.
    """
    return _build(FleetSpec, document, "fleet")


def _build(kind: type[Spec], value: object, where: str) -> Spec:
    """Build a dataclass from a mapping."""
    if not isinstance(value, dict):
        raise InputError(f"{where} must be a mapping of fields")
    assert dataclasses.is_dataclass(kind)
    hints = typing.get_type_hints(kind, vars(specs))
    known = [item.name for item in dataclasses.fields(kind)]
    built: dict[str, Any] = {}
    for key, given in value.items():
        if key not in known:
            raise InputError(f"{where}: unknown key {str(key)[:60]!r}: use one of {', '.join(known)}")
        built[key] = _convert(hints[key], given, f"{where}.{key}")
    result = kind(**built)
    assert isinstance(result, kind)
    return result


def _convert(hint: Any, value: object, where: str) -> Any:  # noqa: ANN401 - a type hint has no type of its own
    """Return a value as its field has it."""
    origin = typing.get_origin(hint)
    if origin is tuple:
        return _row(typing.get_args(hint), value, where)
    if origin is typing.Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise InputError(f"{where} is {str(value)[:60]!r}: use one of {', '.join(choices)}")
        return value
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast("type[Any]", hint), value, where)
    assert not isinstance(hint, types.UnionType)
    return _scalar(hint, value, where)


def _row(inner: tuple[Any, ...], value: object, where: str) -> tuple[Any, ...]:
    """Return a list as a tuple, each item converted."""
    if not isinstance(value, list):
        raise InputError(f"{where} must be a list")
    if inner[-1] is Ellipsis:
        kinds = [inner[0]] * len(value)
    elif len(value) == len(inner):
        kinds = list(inner)
    else:
        raise InputError(f"{where} must have {len(inner)} items")
    return tuple(
        _convert(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(zip(kinds, value, strict=True))
    )


def _scalar(hint: type, value: object, where: str) -> object:
    """Return a number, a text or a switch; a duration such as ``10m`` is a number of seconds."""
    if hint is bool or isinstance(value, bool):
        if hint is bool and isinstance(value, bool):
            return value
        raise InputError(f"{where} must be {'true or false' if hint is bool else 'a ' + hint.__name__}")
    if hint is str and isinstance(value, str):
        return value
    if hint is int and isinstance(value, int):
        return value
    if hint is float and isinstance(value, int | float):
        return float(value)
    if hint is float and isinstance(value, str):
        # YAML reads 1e-7 as text, and people write 10m.
        try:
            return float(value)
        except ValueError:
            pass
        try:
            return parse_duration(value)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
    names = {str: "text", int: "a whole number", float: "a number"}
    raise InputError(f"{where} must be {names[hint]}")
