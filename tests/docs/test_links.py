"""Every link of the documents leads somewhere: files that exist, and headings that they have."""

from __future__ import annotations

import re

import pytest

from tests.docs.test_code_blocks import DOCUMENTS, ROOT

LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(text: str) -> set[str]:
    """Return what can follow ``#``, as GitHub makes it of headings."""
    headings = re.findall("^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in LINK.findall(page.read_text()):
        if "://" in link or link.startswith("mailto:"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text()), link


def test_every_page_is_in_the_index():
    """A page that no list names is read by those alone who know that it is there."""
    index = (ROOT / "docs/index.md").read_text()
    named = {link.partition("#")[0] for link in LINK.findall(index)}
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - named == {"index.md"}
