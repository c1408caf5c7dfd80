"""How byte-level BPE vocabularies cut text before merging, by the names GGUF files give it.

A file has no patterns, only such a name (``tokenizer.ggml.pre``). The patterns are those of the
models' own ``tokenizer.json``, where llama.cpp's are equal or stand in for them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_REST_WITH_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{{end}}|"
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{{end}}"
)
TEKKEN = rf"{_CASED.replace('{end}', '')}|\p{{N}}|{_REST_WITH_SLASH}"
GPT4O = rf"{_CASED.replace('{end}', f'{_CONTRACTIONS}?')}|\p{{N}}{{1,3}}|{_REST_WITH_SLASH}"


@dataclass(frozen=True, slots=True)
class GgufPreTokenizer:
    """One way of cutting.

    Attributes:
        patterns: Applied one after the other to what the one before left; matches and what is
            between them become pieces.
        ignore_merges: A piece that is a token stays whole, whatever the merges say.
        add_bos: Whether the start token is added where a file does not say.
        nfc: Whether text is normalised first.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False

    def build(self) -> PreTokenizer:
        """Return the equal object of the tokenizers library."""
        splits = [pre_tokenizers.Split(Regex(p), "isolated") for p in self.patterns]
        letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*splits, letters])


_GPT2 = GgufPreTokenizer((GPT2,))
_LLAMA3 = GgufPreTokenizer((LLAMA3,), ignore_merges=True, add_bos=True)
_DIGITS = GgufPreTokenizer((r"\p{N}", GPT2))

PRE_TOKENIZERS = {
    "default": GgufPreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "olmo": _GPT2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "smaug-bpe": GgufPreTokenizer((LLAMA3,)),
    "dbrx": GgufPreTokenizer((LLAMA3,)),
    "qwen2": GgufPreTokenizer((QWEN2,), nfc=True),
    "deepseek-r1-qwen": GgufPreTokenizer((QWEN2,)),
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "command-r": _DIGITS,
    "tekken": GgufPreTokenizer((TEKKEN,), ignore_merges=True, add_bos=True),
    "gpt-4o": GgufPreTokenizer((GPT4O,)),
}


def find_pre_tokenizer(backend: Any) -> str | None:
    """Return the name for how a tokenizer of the library cuts text, or None when there is none."""
    state = json.loads(backend.pre_tokenizer.__getstate__()) if backend.pre_tokenizer else {}
    steps = state.get("pretokenizers", [state])
    if not steps or steps[-1].get("type") != "ByteLevel" or steps[-1].get("add_prefix_space"):
        return None
    patterns = [_pattern(step) for step in steps[:-1]]
    if steps[-1].get("use_regex", True):
        patterns.append(GPT2)
    model = json.loads(backend.to_str())["model"]
    if not model["merges"] and not patterns:
        # Nothing is merged, so where text is cut makes no difference.
        return "gpt-2"
    normalizer = json.loads(backend.normalizer.__getstate__())["type"] if backend.normalizer else ""
    wanted = tuple(patterns), bool(model.get("ignore_merges")), normalizer
    for name, pre in PRE_TOKENIZERS.items():
        if wanted == (pre.patterns, pre.ignore_merges, "NFC" if pre.nfc else ""):
            return name
    return None


def _pattern(step: dict[str, Any]) -> str | None:
    if step["type"] == "Digits" and step["individual_digits"]:
        return r"\p{N}"
    if step["type"] == "Split" and step["behavior"] == "Isolated" and not step["invert"]:
        pattern: str | None = step["pattern"].get("Regex")
        return pattern
    return None
