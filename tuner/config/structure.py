"""The tree of settings, walked by the loader and by the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, get_args, get_origin

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydantic.fields import FieldInfo


def section_of(annotation: object) -> tuple[type[BaseModel] | None, bool]:
    """Return the section behind a field's annotation, and whether the field is a list of it.

    ``Section``, ``Section | None`` and annotated forms give ``(Section, False)``,
    ``tuple[Section, ...]`` gives ``(Section, True)``, anything else ``(None, False)``.
    """
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    arguments = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return section_of(arguments[0])
    is_list = get_origin(annotation) is tuple
    for argument in arguments:
        section, _ = section_of(argument)
        if section is not None:
            return section, is_list
    return None, False


def fields_at(model: type[BaseModel], loc: Sequence[str | int]) -> Mapping[str, FieldInfo]:
    """Return the fields of the section at ``loc``; empty where there is no section."""
    here: type[BaseModel] | None = model
    for part in loc:
        if isinstance(part, int):
            continue
        field = here.model_fields.get(part) if here is not None else None
        here = section_of(field.annotation)[0] if field is not None else None
    return here.model_fields if here is not None else {}


def settable(model: type[BaseModel], loc: Sequence[str]) -> bool:
    """Whether one variable can set ``loc``: a field that is reached through single sections."""
    for depth, part in enumerate(loc):
        field = fields_at(model, loc[:depth]).get(part)
        if field is None:
            return False
        section, is_list = section_of(field.annotation)
        if depth < len(loc) - 1 and (section is None or is_list):
            return False
    return True


def settings_of(section: BaseModel, name: str = "") -> Iterator[tuple[str, FieldInfo, object]]:
    """Yield dotted name, field and value of every setting in a section and in those below it."""
    for key, field in type(section).model_fields.items():
        value = getattr(section, key)
        where = f"{name}.{key}" if name else key
        if isinstance(value, BaseModel):
            yield from settings_of(value, where)
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            for index, item in enumerate(value):
                yield from settings_of(item, f"{where}[{index}]")
        else:
            yield where, field, value


def dotted(loc: Sequence[str | int]) -> str:
    """Return ``pools[0].guard.tie`` for ``("pools", 0, "guard", "tie")``."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
