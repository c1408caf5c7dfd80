"""Types that msgspec decodes to, each built before two threads can meet in its building.

msgspec builds what it knows of a class when it first decodes to it, and keeps it with the class
before it is whole. A second thread that decodes to the class meanwhile uses what is not there yet,
and the process crashes (0.22.0: ``DataclassInfo_Convert``, ``StructInfo_Convert``). A decoder that
a module makes as it is imported is safe; elsewhere, ``type=built(kind)``.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_building = threading.Lock()
_built: set[Any] = set()


def built(kind: type[T]) -> type[T]:
    """Return ``kind``, a class or a union of some, which any thread may decode to from now on."""
    if kind not in _built:
        with _building:
            msgspec.json.Decoder(kind)
            _built.add(kind)
    return kind
