"""Types of the keywords of ``LLM``, ``AsyncLLM`` and ``EngineArgs``, for editors and type checkers.

They read ``keyword_types.pyi`` next to this file, as they read no tables. The build makes it from
the settings, and so does ``python -m quire.settings.keyword_types``.
"""

from __future__ import annotations

from inspect import formatannotation
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypedDict, Union, get_args, get_origin, get_type_hints

from quire.settings.config import PARTS, SETTINGS, EngineConfig
from quire.settings.engine_keywords import keyword_names
from quire.settings.known_settings import engine_settings

_HEAD = '''"""Made by keyword_types.py; changes are lost."""
from os import PathLike
from typing import Any, Literal, TypedDict
from quire.settings.engine_keywords import KvCacheConfig

class EngineKeywords(TypedDict, total=False):
    """Every keyword but ``model``, with its type; ``quire serve --help-all`` explains them."""
'''
#: Keywords that are neither settings nor known from other engines.
_FORMS = {
    "kv_cache_config": "KvCacheConfig | dict[str, Any] | None",
    "enable_block_reuse": "bool",
}


class EngineKeywords(TypedDict, total=False):
    """Every keyword but ``model``; their types are in the stub."""


def stub() -> str:
    """Return the text of the stub."""
    hints: dict[str, Any] = {}
    for owner in (*PARTS.values(), EngineConfig):
        hints |= get_type_hints(owner)
    return _HEAD + "".join(f"    {name}: {_type(name, hints)}\n" for name in keyword_names())


def _type(name: str, hints: dict[str, Any]) -> str:
    """Return the type of a keyword as source text: the setting's own, and its further forms."""
    if name in _FORMS:
        return _FORMS[name]
    if known := engine_settings().get(name):
        return "bool" if known.is_switch else "Any" if known.least is None else "int | None"
    told, hint = SETTINGS[name].metadata, hints[name]
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    types = ["None" if part is NoneType else formatannotation(part) for part in parts]
    if told.get("is_json"):
        types += ["dict[str, Any]", "list[dict[str, Any]]"]
    elif str in parts:
        types.append("PathLike[str]")
    if isinstance(SETTINGS[name].default, tuple):
        types.append("list[str]")
    if told.get("sized") or isinstance(SETTINGS[name].default, tuple):
        types.append("str")
    if "spellings" in told:
        types.append(f"Literal[{', '.join(map(repr, told['spellings']))}]")
    return " | ".join(types)


if __name__ == "__main__":
    Path(__file__).with_suffix(".pyi").write_text(stub())
