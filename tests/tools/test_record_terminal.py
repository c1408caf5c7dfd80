"""Captures in a page and as a picture; the terminal itself is scripts/record_terminal's."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tools.record_terminal.page import picture, with_captures

PAGE = Path(__file__).parents[2] / "docs/terminal.md"


def test_a_capture_replaces_its_block_and_no_other():
    names = re.findall(r"<!-- (\w+) -->", PAGE.read_text())
    assert {"pull", "list", "run", "ps", "top", "stop"} <= set(names)
    page = with_captures(PAGE.read_text(), {name: rf"$ {name} \1" for name in names})
    assert all(f"<!-- {name} -->\n```\n$ {name} \\1\n```\n" in page for name in names)
    assert page.count("```") == 2 * len(names)
    with pytest.raises(ValueError, match="one block other"):
        with_captures(page, {"other": ""})


def test_a_picture_is_svg_that_fetches_nothing():
    svg = picture("\x1b[1mquire top\x1b[0m <ready>", 40)
    ElementTree.fromstring(svg)
    text = svg.replace("&#160;", " ")
    assert "quire top" in text and "&lt;ready&gt;" in text
    assert "url(http" not in svg and "@import" not in svg


def test_the_page_names_no_machine():
    text = PAGE.read_text()
    assert not re.search(r"/root|/home/|/tmp|/work|@[\w-]+[:$]", text)
    assert "Traceback" not in text and "ALARM" not in text
