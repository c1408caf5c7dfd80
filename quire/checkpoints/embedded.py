"""The models that are in the package: their names and their folder."""

from __future__ import annotations

from pathlib import Path

ASSETS = Path(__file__).parent.parent / "assets"
EMBEDDED = "quire-tiny"
EMBEDDED_VISION = "quire-tiny-vision"
#: Models of the package that have a name as those of the catalogue have.
LISTED = (EMBEDDED, EMBEDDED_VISION)
#: A draft model for :data:`EMBEDDED`, which is listed nowhere.
EMBEDDED_DRAFT = "quire-tiny-draft"
