"""Rows of text in columns, on stdout."""

from __future__ import annotations

import click


def print_table(rows: list[tuple[str, ...]]) -> None:
    """Print rows in columns as wide as what is in them, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *numbers in rows:
        cells = (text.rjust(width) for text, width in zip(numbers, widths[1:], strict=True))
        click.echo("  ".join((first.ljust(widths[0]), *cells)).rstrip())
