"""Captures put into a page, and one made a picture; it records nothing."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping

from rich.console import Console
from rich.text import Text


def with_captures(page: str, captures: Mapping[str, str]) -> str:
    """Return the document with the code block after each ``<!-- name -->`` replaced.

    Raises:
        ValueError: A capture has no place in it.
    """
    for name, text in captures.items():
        block = re.compile(rf"(<!-- {re.escape(name)} -->\n```\n).*?\n```", re.DOTALL)
        page, count = block.subn(lambda found, text=text: f"{found[1]}{text}\n```", page)
        if count != 1:
            raise ValueError(f"[record] the page must have one block {name}; got {count}.")
    return page


def picture(screen: str, columns: int) -> str:
    """Return a screen with escape sequences as SVG.

    Fonts are the reader's own: the file fetches nothing.
    """
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(screen), soft_wrap=True)
    svg = console.export_svg(title="quire top", unique_id="top")
    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"
