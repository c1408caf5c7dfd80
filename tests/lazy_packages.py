"""Packages that take long to import: imported by the test that uses them, not by collection."""

from __future__ import annotations

import warnings
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

_named: set[str] = set()


class _Package:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        # pytest looks at what each name of a module may be: a fixture, a test, a wrapped function.
        if attribute.startswith(("_", "pytest")):
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)


def lazy_package(name: str) -> Any:
    """Return what stands for a module and imports it when an attribute of it is first read.

    The test module is skipped where the package is not installed.

    Args:
        name: Of a package, or of a module in one, with dots.
    """
    package = name.partition(".")[0]
    if find_spec(package) is None:
        pytest.skip(f"could not import {package!r}", allow_module_level=True)
    _named.add(name)
    return _Package(name)


def import_named() -> None:
    """Import all packages that stand-ins were made for, before processes are forked of this one.

    Each would import them again. One that cannot be imported fails the test that uses it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in sorted(_named):
            with suppress(ImportError):
                import_module(name)
