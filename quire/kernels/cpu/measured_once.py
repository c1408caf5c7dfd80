"""Numbers measured once on this processor, kept in ``QUIRE_CACHE`` for the starts that follow."""

from __future__ import annotations

import json
import math
import os
from contextlib import suppress
from typing import Any

from quire.system import env
from quire.system.processor import read_processor

FILE = "measured_kernels.json"
#: RuntimeError: the user has no home folder.
NO_FILE = (OSError, RuntimeError)


def remembered(name: str, keys: tuple[str, ...]) -> tuple[float, ...] | None:
    """Return the positive numbers that were kept as ``name``; None unless all are there."""
    try:
        found = _read()[read_processor()][name]
        values = tuple(float(found[key]) for key in keys)
    except (*NO_FILE, ValueError, TypeError, KeyError, OverflowError):
        return None
    return values if all(math.isfinite(value) and value > 0 for value in values) else None


def remember(name: str, values: dict[str, float]) -> None:
    """Keep ``values`` as ``name``; where the folder cannot be written, do nothing."""
    found: dict[str, Any] = {}
    with suppress(*NO_FILE, ValueError, TypeError):
        found = dict(_read())
    own = found.get(read_processor())
    found[read_processor()] = {**(own if isinstance(own, dict) else {}), name: values}
    with suppress(*NO_FILE):
        path = env.cache_folder() / FILE
        whole = path.with_name(f"{path.name}.{os.getpid()}")
        path.parent.mkdir(parents=True, exist_ok=True)
        whole.write_text(json.dumps(found))
        whole.replace(path)  # readers see all of it or what was there before


def _read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((env.cache_folder() / FILE).read_text())
    return found
