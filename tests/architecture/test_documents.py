"""Documents name files that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
#: A path with a folder in backticks; ``<op>.py`` and patterns are not one.
_PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*)`")
_ROOTS = (ROOT, ROOT / "quire")


def test_files_that_a_document_names_exist() -> None:
    # build/ is made by scripts.
    folders = {
        path.name
        for root in _ROOTS
        for path in root.iterdir()
        if path.is_dir() and path.name != "build"
    }
    missing = []
    for document in DOCUMENTS:
        paths = _PATH.findall(document.read_text())
        named = [path for path in paths if path.split("/")[0] in folders]
        assert named or document.parent != ROOT, f"nothing found in {document}: a wrong pattern"
        missing += [
            f"{document.name}: {path}"
            for path in named
            if not any((root / path).exists() for root in _ROOTS)
        ]
    assert missing == []
