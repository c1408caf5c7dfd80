"""Classes of the engine and the runner have few methods and few attributes."""

from __future__ import annotations

import ast

from tests.architecture.test_layout import Function, statements

MAX_METHODS = 20
MAX_ATTRIBUTES = 14
ROOMS = ("quire/engine/", "quire/runner/")
#: Methods and attributes of classes that exceed the limits. These numbers only shrink.
LARGE = {
    "Engine": (24, 20),
    "EngineStats": (10, 19),
    "KVCacheManager": (25, 6),
    "Request": (12, 25),
    "Scheduler": (16, 19),
}


def attributes(node: ast.ClassDef) -> set[str]:
    """Return the fields of a class, and what its ``__init__`` sets."""
    names = {
        one.target.id
        for one in node.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }
    for function in node.body:
        if isinstance(function, Function) and function.name == "__init__":
            names |= {
                one.attr
                for one in ast.walk(function)
                if isinstance(one, ast.Attribute)
                and isinstance(one.ctx, ast.Store)
                and isinstance(one.value, ast.Name)
                and one.value.id == "self"
            }
    return names


def test_classes_are_small() -> None:
    sizes = {
        node.name: (sum(isinstance(one, Function) for one in node.body), len(attributes(node)))
        for file, node in statements()
        if file.startswith(ROOMS) and isinstance(node, ast.ClassDef)
    }
    large = {
        name: size
        for name, size in sizes.items()
        if size[0] > MAX_METHODS or size[1] > MAX_ATTRIBUTES
    }
    grown = {
        name: size
        for name, size in large.items()
        if size[0] > LARGE.get(name, (MAX_METHODS, 0))[0]
        or size[1] > LARGE.get(name, (0, MAX_ATTRIBUTES))[1]
    }
    assert grown == {}
    assert LARGE.keys() - large.keys() == set(), "they are small now: take them off the list"
