"""A schedule as people give it: a JSON literal, a file that holds one, or standard input."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tuner._exceptions import InputError, ScheduleError
from tuner.fleet import Schedule

LARGEST_SCHEDULE = 2**20
"""Bytes of a schedule file; a table with a row per batch size up to a thousand has 20 kB."""

EXAMPLE = "[[1,4,4],[5,64,2]]"


def read_json(argument: str, where: str) -> object:
    """Return the JSON that ``argument`` is, names, or points to with ``-``.

    Raises:
        InputError: it cannot be read, is too large, or is not JSON; the message starts with ``where``.
    """
    text = argument
    if not argument.lstrip().startswith(("[", "{")):
        try:
            if argument == "-":
                text = sys.stdin.buffer.read(LARGEST_SCHEDULE + 1).decode()
            else:
                with Path(argument).open("rb") as file:
                    text = file.read(LARGEST_SCHEDULE + 1).decode()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise InputError(f"{where}: {argument}: {why}: give a JSON literal, a file or -") from None
    if len(text) > LARGEST_SCHEDULE:
        raise InputError(f"{where}: over {LARGEST_SCHEDULE} bytes: is this the right file?")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        place = f"line {error.lineno} column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise InputError(f"{where}: not JSON ({place or 'cannot be read'}): give {EXAMPLE}") from None


def as_schedule(document: object, where: str, remedy: str = f"give {EXAMPLE}") -> Schedule:
    """Build a schedule from ``[[first, last, K], ...]``, bare or under ``schedule``.

    Raises:
        InputError: it is no such list, or the table breaks a rule.
    """
    rows = document.get("schedule") if isinstance(document, dict) else document
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise InputError(f"{where}: not [[first, last, K], ...]: {remedy}")
    try:
        return Schedule.from_ranges(rows)
    except ScheduleError as error:
        raise InputError(f"{where}: {error}") from None


def read_schedule(argument: str, where: str) -> Schedule:
    """Return the schedule that ``argument`` is, names, or points to with ``-``.

    Raises:
        InputError: as :func:`read_json` and :func:`as_schedule`.
    """
    return as_schedule(read_json(argument, where), where)
