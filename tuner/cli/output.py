"""What every verb prints with: boxed tables on a terminal, plain aligned text elsewhere, or JSON."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

HANGING = "      "
"""Indent of the lines that a long line goes on in."""
NARROWEST = 40
"""Columns below which nothing is wrapped: words would stand alone on their lines."""


def takes_escapes(stream: TextIO) -> bool:
    """Tell whether a stream is a terminal that may be sent colours and cursor movements.

    ``NO_COLOR`` (https://no-color.org) and ``TERM=dumb`` ask for none.
    """
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_json(document: Mapping[str, Any]) -> None:
    """Print ``document``; a NaN or an infinity in it is a defect and raises ``ValueError``."""
    click.echo(json.dumps(document, indent=2, allow_nan=False))


def print_heading(text: str) -> None:
    """Print a line that stands out where the terminal can."""
    click.echo(click.style(text, bold=True) if takes_escapes(sys.stdout) else text)


def print_line(text: str, indent: str = "  ") -> None:
    """Print one line; on a terminal it is wrapped to the width and goes on indented."""
    width = shutil.get_terminal_size().columns
    if not sys.stdout.isatty() or width < NARROWEST:
        click.echo(indent + text)
        return
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent + HANGING if indent else "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    click.echo("\n".join(lines))


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str = "",
    words: Collection[str] = (),
) -> None:
    """Print a table whose first column and columns of words are left-aligned, the others right-aligned.

    Args:
        columns: headings.
        rows: cells as text, one sequence of ``len(columns)`` each.
        title: printed above.
        words: headings of further columns that hold words and not numbers.
    """
    left = {index for index, column in enumerate(columns) if index == 0 or column in words}
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        _print_boxed(columns, rows, title, left)
        return
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    if title:
        click.echo(title)
    for row in (columns, *rows):
        cells = (
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        click.echo("  ".join(cells).rstrip())


def _print_boxed(
    columns: Sequence[str], rows: Sequence[Sequence[str]], title: str, left: Collection[int]
) -> None:
    """Print with rich, which is imported here since it costs 40 ms."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index in left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    if title:
        print_line(title, indent="")
    console = Console() if takes_escapes(sys.stdout) else Console(color_system=None)
    console.print(table)
