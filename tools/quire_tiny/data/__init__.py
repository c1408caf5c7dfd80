"""What the corpus is made of, as TOML files for people to edit."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def load(name: str) -> dict[str, Any]:
    """Return the content of ``NAME.toml`` of this folder."""
    return tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))
