"""A plugin of pytest: tests run on the native module that was built with sanitizers.

``SANITIZED_MODULE`` is the folder it is in. Of each test one case per instruction set is kept, of
another shape on each; ``SANITIZED_CASES=all`` keeps them all, but of the longest ones.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import quire

#: Tests whose shapes are long; scalar takes half a minute or a minute for each. Of them the best
#: instruction set is kept alone: what they index is the same code, and shorter ones run on both.
BEST_ALONE = {"test_heads_in_turn_give_the_same_bits", "test_the_last_rows_of_131072_tokens"}
#: Of instruction sets this one is slow.
EMULATED = "amx_emulated"


def _load(folder: Path) -> None:
    (path,) = folder.glob("_native*.so")
    spec = importlib.util.spec_from_file_location("quire._native", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["quire._native"] = quire._native = module  # type: ignore[attr-defined]
    spec.loader.exec_module(module)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one case of each test and instruction set, or all."""
    cases: dict[str, dict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        test = item.nodeid.partition("[")[0]
        cases[test][parameters.get("isa", "")].append(item)
    for test, by_isa in cases.items():
        if test.rpartition("::")[2] in BEST_ALONE:
            best = [isa for isa in by_isa if isa != EMULATED][-1]
            cases[test] = {best: by_isa[best]}
    some = os.environ.get("SANITIZED_CASES") != "all"
    kept = {
        item
        for by_isa in cases.values()
        for number, of_isa in enumerate(by_isa.values())
        for item in ([of_isa[number % len(of_isa)]] if some else of_isa)
    }
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


_load(Path(os.environ["SANITIZED_MODULE"]))
