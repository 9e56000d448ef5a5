"""Reading settings: file and environment → :class:`Config`, or every fault with its line and remedy."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_settings import SettingsError

from tuner._exceptions import InputError
from tuner.config.document import Document, Loc, read_document
from tuner.config.models import ENV_PREFIX, Config, variable_loc
from tuner.config.structure import dotted, fields_at, settable

if TYPE_CHECKING:
    from collections.abc import Mapping

LARGEST_FILE = 1 << 20
"""Bytes taken for a settings file; a pool needs about 1 000, PyYAML reads 1 MiB in seconds."""
LARGEST_SECRET = 1 << 16
"""Bytes taken for a secret."""

_KUBERNETES = re.compile(
    r"TUNER_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)",
    re.ASCII,
)
"""Variables that Kubernetes sets in every container for a Service called ``tuner`` or ``tuner-...``."""

_BOUNDS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}
_SHAPES = {
    "missing": ("is missing", "add it"),
    "too_short": ("is empty", "give at least one"),
    "string_too_short": ("is empty", "fill it in, or remove the key"),
    "string_too_long": ("is too long", "shorten it"),
    "string_type": ("is not text", "put it in quotes"),
    "path_type": ("is not a path", "write it as in /etc/tuner/token"),
    "dict_type": ("is not a section", "write key: value lines under it"),
    "model_type": ("is not a section", "write key: value lines under it"),
    "model_attributes_type": ("is not a section", "write key: value lines under it"),
    "tuple_type": ("is not a list", "write it as [a, b]"),
    "finite_number": ("is not a finite number", "write a number"),
}
"""pydantic's error types in the words of whoever writes the file."""

_NUMBERS = {
    "int": ("is not a whole number", "write a whole number"),
    "float": ("is not a number", "write a number, as in 70e9"),
}
"""The same, by the first word of types such as ``int_parsing`` and ``int_from_float``."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with the settings."""

    place: str
    """The file, or the environment variable."""
    line: int | None
    """1-based line in the file."""
    field: str
    """Dotted name of the setting; empty for the file as a whole."""
    problem: str
    remedy: str

    def __str__(self) -> str:
        """Return ``file:line: field: problem: remedy``, one line."""
        where = self.place if self.line is None else f"{self.place}:{self.line}"
        return f"{where}: {self.field + ' ' if self.field else ''}{self.problem}: {self.remedy}"


@dataclass(frozen=True, slots=True)
class Checked:
    """What a settings file was found to be."""

    config: Config | None
    """``None`` where there are faults."""
    faults: tuple[Fault, ...]
    notes: tuple[str, ...]
    """What is worth knowing and no fault."""
    lines: Mapping[Loc, int]
    """Line of every key in the file."""


def load_config(path: str | Path) -> Config:
    """Return the settings in ``path``, overridden by ``TUNER_*`` variables.

    Raises:
        InputError: the file cannot be read or has a fault; one line with file, line, field and remedy,
            and how many more faults there are.
    """
    checked = check_config(path)
    if checked.config is not None:
        return checked.config
    more = len(checked.faults) - 1
    rest = f" (and {more} more, see `tuner check config {path}`)" if more else ""
    raise InputError(f"{checked.faults[0]}{rest}")


def check_config(path: str | Path) -> Checked:
    """Return the settings in ``path`` or all their faults, in the order of the file.

    Raises:
        InputError: the file cannot be opened.
    """
    place = str(path)
    document = read_document(_read(Path(path)))
    faults = [
        Fault(place, fault.line, dotted(fault.loc), fault.problem, fault.remedy) for fault in document.faults
    ]
    if faults and not document.data:
        return Checked(None, tuple(faults), (), {})
    faults += _unknown_variables()
    overrides = _variables()
    known = {key: value for key, value in document.data.items() if key in Config.model_fields}
    for key in document.data.keys() - known.keys():
        faults.append(_unknown_key((key,), place, document, overrides))
    config: Config | None = None
    try:
        config = Config(**known)
    except ValidationError as error:
        faults += [_fault(details, place, document, overrides) for details in error.errors(include_url=False)]
    except SettingsError as error:
        faults.append(_bad_variable(error))
    if faults:
        return Checked(None, _in_order(faults), (), document.lines)
    assert config is not None
    return Checked(config, (), tuple(_notes(config, overrides)), document.lines)


def read_secret(path: Path) -> str:
    """Return the secret in a file, without the newline at its end.

    Raises:
        InputError: the file cannot be read, is empty, or holds more than one line.
    """
    try:
        content = path.read_bytes()[: LARGEST_SECRET + 1]
        secret = content.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}): create it, or name another file"
        ) from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not text: write the secret as one line of UTF-8") from None
    if not secret or len(content) > LARGEST_SECRET or not secret.isprintable():
        raise InputError(f"{path}: is not one line of text: write the secret and nothing else")
    return secret


def _read(path: Path) -> bytes:
    """Return the content of a settings file."""
    if path.is_dir():
        raise InputError(f"{path}: is a folder: name the settings file in it")
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no such name"
        raise InputError(f"{path}: cannot be read ({reason}): name a settings file") from None
    if len(content) > LARGEST_FILE:
        raise InputError(f"{path}: is larger than {LARGEST_FILE} bytes: name a settings file")
    return content


def _variables() -> dict[Loc, str]:
    """Return the ``TUNER_*`` variables that set something, by what they set."""
    named = {variable_loc(name): name for name in sorted(os.environ)}
    return {loc: name for loc, name in named.items() if loc is not None and settable(Config, loc)}


def _unknown_variables() -> list[Fault]:
    """Return a fault for every ``TUNER_*`` variable that sets nothing."""
    remedy = "unset it, or name a setting as in TUNER_CYCLE__INTERVAL"
    return [
        Fault(name, None, "", "is not a setting", remedy)
        for name in sorted(os.environ)
        if (loc := variable_loc(name)) is not None
        and not settable(Config, loc)
        and not _KUBERNETES.fullmatch(name.upper())
    ]


def _bad_variable(error: SettingsError) -> Fault:
    """Return the fault of a variable that must hold JSON and does not."""
    named = re.search(r'field "(\w+)"', str(error))
    name = f"{ENV_PREFIX}{named[1].upper()}" if named else f"{ENV_PREFIX}*"
    return Fault(name, None, "", "is not JSON", "write lists and sections in variables as JSON")


def _fault(details: Any, place: str, document: Document, overrides: Mapping[Loc, str]) -> Fault:  # noqa: ANN401 - pydantic's ErrorDetails
    """Turn one of pydantic's complaints into a fault."""
    loc: Loc = tuple(part for part in details["loc"] if part != "[key]")
    if details["type"] == "extra_forbidden":
        return _unknown_key(loc, place, document, overrides)
    problem, remedy = _explain(details["type"], details.get("ctx", {}), details["msg"])
    return _placed(loc, problem, remedy, place, document, overrides)


def _explain(kind: str, context: Mapping[str, Any], message: str) -> tuple[str, str]:
    """Return problem and remedy for one of pydantic's error types."""
    if kind in {"value_error", "across"}:
        problem, _, remedy = str(context.get("error", message)).rpartition(": ")
        return problem, remedy
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return "is out of range", f"give a value {words} {context[key]:g}"
    if kind == "literal_error":
        return "is not one of the choices", f"write {context['expected']}"
    otherwise = ("cannot be used", message[:1].lower() + message[1:])
    return _SHAPES.get(kind) or _NUMBERS.get(kind.partition("_")[0], otherwise)


def _unknown_key(loc: Loc, place: str, document: Document, overrides: Mapping[Loc, str]) -> Fault:
    """Return the fault of a key that no section has, with the nearest one that it has."""
    known = list(fields_at(Config, loc[:-1]))
    near = difflib.get_close_matches(str(loc[-1]), known, n=1)
    remedy = f"did you mean {near[0]}?" if near else f"known here are {', '.join(known)}"
    return _placed(loc, "is not a known key", remedy, place, document, overrides)


def _placed(
    loc: Loc, problem: str, remedy: str, place: str, document: Document, overrides: Mapping[Loc, str]
) -> Fault:
    """Return a fault at the line of ``loc``, or at the variable that set it."""
    for depth in range(len(loc), 0, -1):
        if loc[:depth] in overrides:
            return Fault(overrides[loc[:depth]], None, dotted(loc), problem, remedy)
    return Fault(place, document.line_of(loc), dotted(loc), problem, remedy)


def _in_order(faults: list[Fault]) -> tuple[Fault, ...]:
    """Return faults in the order of the file, variables last, one for each place and field."""
    unique: dict[tuple[str, str], Fault] = {}
    for fault in faults:
        unique.setdefault((fault.place, fault.field or f"{fault.line} {fault.problem}"), fault)
    return tuple(
        sorted(unique.values(), key=lambda fault: (fault.line is None, fault.line or 0, fault.field))
    )


def _notes(config: Config, overrides: Mapping[Loc, str]) -> list[str]:
    """Return what is worth knowing about settings without fault."""
    notes = [f"{dotted(loc)} is set by the variable {name}" for loc, name in overrides.items()]
    notes += [
        f"pool {pool.name} names no engines: it serves replays only"
        for pool in config.pools
        if not pool.engines.named
    ]
    notes += [
        f"pool {pool.name} is auto: this release proposes schedules and pushes none"
        for pool in config.pools
        if pool.mode == "auto"
    ]
    return notes + [f"{path}: does not exist on this host" for path in _files(config) if not path.exists()]


def _files(config: Config) -> list[Path]:
    """Return every file that the settings refer to."""
    web, store = config.web, config.store
    files = [web.config_file, web.token_file, store.password_file]
    for source in config.sources.prometheus:
        files += [source.bearer_token_file, source.password_file, source.ca_file]
    files += [pool.admin.token_file for pool in config.pools if pool.admin is not None]
    return [path for path in files if path is not None]
