"""Check of the rules of a ``tokenizer.json``: how long they make a text, before they are used."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import prod
from typing import Any

import msgspec

from quire.text.tokenizers.gguf_pre_tokenizers import PRE_TOKENIZERS

#: How many times as long normalizers may make a text. Those that are published reach about 70.
MAX_GROWTH = 256
#: Of rules without settings that say it; others keep the length, about.
_GROWTH = {"NFD": 4, "NFC": 3, "NFKD": 18, "NFKC": 18, "Lowercase": 3, "ByteLevel": 4}
_SIZE = 4
#: Patterns that are known to take time in proportion to a text.
_KNOWN_PATTERNS = {" {2,}", r"\s+", *(p for pre in PRE_TOKENIZERS.values() for p in pre.patterns)}


class _Rules(msgspec.Struct):
    """The parts of a file that are rules; the others are skipped."""

    normalizer: Any = None
    pre_tokenizer: Any = None
    post_processor: Any = None
    decoder: Any = None


def charsmap_growth(charsmap: bytes) -> float:
    """Return the length of the longest text that compiled rules write for a character."""
    texts = charsmap[_SIZE + int.from_bytes(charsmap[:_SIZE], "little") :]
    return float(max(len(text.decode(errors="replace")) for text in texts.split(b"\0")))


def check_growth(growth: float) -> None:
    """Check that normalizers may make a text ``growth`` times as long.

    Raises:
        ValueError: The growth is above :data:`MAX_GROWTH`.
    """
    if growth > MAX_GROWTH:
        raise ValueError(
            f"normalizers that may make a text {growth:.3g} times as long, more than {MAX_GROWTH}"
        )


def check_rules(data: bytes) -> bool:
    """Return whether the rules of a file are of a kind whose cost is known.

    Args:
        data: The file.

    Raises:
        ValueError: The file is not a ``tokenizer.json``, or a text may become too long.
    """
    try:
        rules = msgspec.json.decode(data, type=_Rules)
        growth = _growth(rules.normalizer)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"a file that is no JSON of a tokenizer ({error})") from error
    check_growth(growth)
    parts = (rules.normalizer, rules.pre_tokenizer, rules.post_processor, rules.decoder)
    return _KNOWN_PATTERNS.issuperset(pattern for part in parts for pattern in _patterns(part))


def _growth(rule: Any) -> float:
    """Return how many times as long a normalizer may make a text, at most."""
    if not isinstance(rule, Mapping):
        return 1.0
    kind = rule.get("type")
    if kind == "Sequence":
        steps = rule.get("normalizers")
        return prod(map(_growth, steps)) if isinstance(steps, list) else 1.0
    if kind == "Precompiled":
        with suppress(TypeError, ValueError):  # the library says what is wrong
            return charsmap_growth(b64decode(rule.get("precompiled_charsmap", "")))
    if kind == "Replace":
        return _replace_growth(rule.get("pattern"), rule.get("content"))
    return float(_GROWTH.get(str(kind), 1))


def _replace_growth(pattern: Any, content: Any) -> float:
    length = len(content) if isinstance(content, str) else 0
    found = pattern.get("String") if isinstance(pattern, Mapping) else None
    if isinstance(found, str) and found:
        return max(1.0, length / len(found))
    # A regular expression may match nothing between two characters.
    return 1.0 + length if length > 1 else 1.0


def _patterns(rule: Any) -> Iterator[str]:
    if isinstance(rule, Mapping):
        if isinstance(rule.get("Regex"), str):
            yield rule["Regex"]
        for part in rule.values():
            yield from _patterns(part)
    elif isinstance(rule, list):
        for part in rule:
            yield from _patterns(part)
