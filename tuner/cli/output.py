"""What every verb prints with: boxed tables on a terminal, plain aligned text elsewhere, or JSON."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def print_json(document: Mapping[str, Any]) -> None:
    """Print ``document``; a NaN or an infinity in it is a defect and raises ``ValueError``."""
    click.echo(json.dumps(document, indent=2, allow_nan=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> None:
    """Print a table whose first column is left-aligned and whose others are right-aligned.

    Args:
        columns: headings.
        rows: cells as text, one sequence of ``len(columns)`` each.
        title: printed above.
    """
    if sys.stdout.isatty():
        _print_boxed(columns, rows, title)
        return
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    if title:
        click.echo(title)
    for row in (columns, *rows):
        first, *others = (
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        click.echo("  ".join([first, *others]).rstrip())


def _print_boxed(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    """Print with rich, which is imported here since it costs 40 ms."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
