"""Targets from files: read again only where a file changed, and a bad file keeps what it said last."""

from __future__ import annotations

import glob
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from tuner._exceptions import InputError
from tuner.observe.discovery.groups import read_groups
from tuner.observe.discovery.spec import Answer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LARGEST_FILE = 4 * 2**20
"""Bytes of one file: 20 000 targets with some labels in JSON. YAML of that size takes seconds."""
_SUFFIXES = (".json", ".yml", ".yaml")

_State = tuple[int, int, int]
"""Time of change, size and inode of a file."""


class FileSd:
    """The files of one pool."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = patterns
        self._said: dict[str, tuple[Mapping[str, str], ...]] = {}
        """Path -> what the file said when it could be read last."""
        self._seen: dict[str, tuple[_State, str]] = {}
        """Path -> the file's state at the last reading, and what was wrong with it."""

    def read(self) -> Answer:
        """Return what all files say now."""
        errors: list[str] = []
        unmatched: list[str] = []
        paths: dict[str, None] = {}
        for pattern in self._patterns:
            matched = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 - patterns may be absolute
            if not matched and (missing := _missing_folder(pattern)):
                errors.append(f"{pattern}: folder {missing} cannot be read: create it, or mount it")
                matched = [path for path in self._said if Path(path).match(pattern)]
            elif not matched:
                unmatched.append(pattern)
            paths.update(dict.fromkeys(matched))
        for path in self._seen.keys() - paths.keys():
            self._said.pop(path, None)
            del self._seen[path]
        for path in paths:
            errors += self._read(path)
        groups = tuple(group for path in paths for group in self._said.get(path, ()))
        return Answer(groups, tuple(errors), tuple(unmatched))

    def _read(self, path: str) -> Iterator[str]:
        """Read one file if it changed; yield what is wrong with it."""
        try:
            state = _state(path)
        except OSError as error:
            yield f"{path}: cannot be read ({error.strerror}): check its owner and mode"
            return
        before = self._seen.get(path)
        if before is None or before[0] != state:
            fault = ""
            try:
                self._said[path] = read_groups(_document(path))
            except InputError as error:
                fault = f"{path}: {error}"
            self._seen[path] = (state, fault)
        if fault := self._seen[path][1]:
            yield fault


def _state(path: str) -> _State:
    found = os.stat(path)  # noqa: PTH116 - as many as there are files, each refresh
    return found.st_mtime_ns, found.st_size, found.st_ino


def _missing_folder(pattern: str) -> str:
    """Return the folder in front of the first wildcard if it cannot be listed; empty if it can."""
    folder = Path(pattern).parent
    while glob.has_magic(str(folder)):
        folder = folder.parent
    return "" if os.access(folder, os.R_OK | os.X_OK) and folder.is_dir() else str(folder)


def _document(path: str) -> object:
    """Return what one file holds.

    Raises:
        InputError: it cannot be read, is too large, or is neither JSON nor YAML.
    """
    if not path.endswith(_SUFFIXES):
        raise InputError(f"has none of the endings {', '.join(_SUFFIXES)}: rename it")
    try:
        with Path(path).open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror}): check its owner and mode") from None
    if len(content) > LARGEST_FILE:
        raise InputError(f"is larger than {LARGEST_FILE} bytes: split it")
    try:
        text = content.decode("utf-8-sig")
        return json.loads(text) if path.endswith(".json") else _yaml(text)
    except RecursionError:
        raise InputError("is nested too deep: write a list of groups") from None
    except ValueError as error:
        raise InputError(f"cannot be read ({' '.join(str(error).split())[:120]}): write it anew") from None


def _yaml(text: str) -> object:
    """Return what YAML text holds.

    Raises:
        ValueError: it is not YAML.
    """
    import yaml  # noqa: PLC0415 - most pools have no YAML files, and it costs 20 ms

    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
