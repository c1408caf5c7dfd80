"""Rules by which byte-level BPE vocabularies cut text before merging, by GGUF files' names.

A file has no patterns, only such a name (``tokenizer.ggml.pre``). Names are llama.cpp's; patterns
are those of the models' own ``tokenizer.json`` where llama.cpp quotes them, else llama.cpp's.
Left out: names of vocabularies that are no byte-level BPE (gemma4, granite-embed-multi-311m,
sarvam-moe, whitespace) and those of encoders that end text with a separator (jina-v1-en,
jina-v2-code, roberta-bpe).

Source: src/llama-vocab.cpp of llama.cpp.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_REST = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACE}"
LLAMA3 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_REST}"
QWEN2 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_REST}"
QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}|"
    rf" ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACE}"
)
UFAKZEKA = rf"{_WORD}|\p{{N}}|{_REST}"
MINICPM5 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}+|{_REST}"
SEED_CODER = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACE}"
BAILING = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
EXAONE_MOE = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
#: Cuts runs of spaces at powers of two.
JAIS2 = (
    rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|"
    + "".join(rf"\s{{{2**n}}}(?!\S)|" for n in range(9, 1, -1))
    + r"\s{1,2}(?!\S)|\s"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_REST_WITH_SLASH = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACE}"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{{end}}|"
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{{end}}"
)
_CONTRACTED = _CASED.replace("{end}", f"{_CONTRACTIONS}?")
TEKKEN = rf"{_CASED.replace('{end}', '')}|\p{{N}}|{_REST_WITH_SLASH}"
GPT4O = rf"{_CONTRACTED}|\p{{N}}{{1,3}}|{_REST_WITH_SLASH}"
YOUTU = rf"{_CONTRACTED}|\p{{N}}|{_REST_WITH_SLASH}"
_NOT_HAN = _CONTRACTED.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]")
KIMI_K2 = rf"\p{{Han}}+|{_NOT_HAN}|\p{{N}}{{1,3}}|{_REST}"
_MARKED = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"""
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
)
DEEPSEEK3 = rf"{_MARKED}[\r\n]*|{_SPACE}"
SPARK = rf"{_MARKED}|[\r\n]|\s+(?!\S)|\s+"
_CJK = "[一-龥぀-ゟ゠-ヿ]+"
_CJK_AND_HANGUL = "[一-龥ࠀ-一가-퟿]+"
#: Scripts without spaces between words.
_UNSPACED = "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+"
#: Letters that have a case, as DeepSeek LLM's tokenizer lists them.
_CASED_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚ"
    "Ḁ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄ"
    "Ⰰ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
#: Groups of three digits, counted from the last one.
_THOUSANDS = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
_UNPUNCTUATED = " ?[^(\\s|.,!?…。，、।۔،)]+"


@dataclass(frozen=True, slots=True)
class GgufPreTokenizer:
    """One way to cut text.

    Attributes:
        patterns: Patterns, each of which cuts the pieces that the one before left; matches and the
            text between them become pieces.
        ignore_merges: Whether a piece that is a token stays whole, whatever the merges say.
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


_LLAMA3 = GgufPreTokenizer((LLAMA3,), ignore_merges=True, add_bos=True)
#: Names, separated by spaces, that share a cut.
_CUTS = {
    "default": GgufPreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2 phi-2 olmo mpt jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum "
    "jina-es jina-de jina-v2-es jina-v2-de modern-bert": GgufPreTokenizer((GPT2,)),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": _LLAMA3,
    "smaug-bpe dbrx chatglm-bpe": GgufPreTokenizer((LLAMA3,)),
    "glm4 glm5": GgufPreTokenizer((LLAMA3,), ignore_merges=True),
    "qwen2": GgufPreTokenizer((QWEN2,), nfc=True),
    "deepseek-r1-qwen stablelm2 hunyuan solar-open megrez kormo f2llmv2 grok-2": GgufPreTokenizer(
        (QWEN2,)
    ),
    "qwen35": GgufPreTokenizer((QWEN35,)),
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": GgufPreTokenizer(
        (r"\p{N}", GPT2)
    ),
    "tekken": GgufPreTokenizer((TEKKEN,), ignore_merges=True, add_bos=True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": GgufPreTokenizer((GPT4O,)),
    "granite-embed-multi-97m": GgufPreTokenizer((GPT4O,), ignore_merges=True),
    "deepseek-llm": GgufPreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{_CASED_LETTERS}]+",
            "\\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            _CJK_AND_HANGUL,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": GgufPreTokenizer(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_AND_HANGUL, r"\p{N}")
    ),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": GgufPreTokenizer((r"\p{N}{1,3}", _CJK, DEEPSEEK3)),
    "spark2_5": GgufPreTokenizer((r"\p{N}{1,3}", _CJK, SPARK, r"\p{N}")),
    "falcon": GgufPreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")),
    "poro-chat bloom gpt3-finnish": GgufPreTokenizer((_UNPUNCTUATED,)),
    "viking": GgufPreTokenizer((_UNPUNCTUATED, r"\p{N}")),
    "jais-2": GgufPreTokenizer((JAIS2,)),
    "chameleon": GgufPreTokenizer(
        (
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT2,
        ),
        add_bos=True,
    ),
    "superbpe": GgufPreTokenizer((r"\p{N}+", _THOUSANDS)),
    "tiny_aya cohere2moe": GgufPreTokenizer((_THOUSANDS, GPT4O)),
    "afmoe": GgufPreTokenizer((_THOUSANDS, _UNSPACED, DEEPSEEK3)),
    "bailingmoe bailingmoe2 llada-moe": GgufPreTokenizer((BAILING,)),
    "seed-coder": GgufPreTokenizer((SEED_CODER,)),
    "kimi-k2": GgufPreTokenizer((KIMI_K2,)),
    "youtu": GgufPreTokenizer(
        (
            rf"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|{_CJK}",
            YOUTU,
        ),
        ignore_merges=True,
    ),
    "ufakzeka": GgufPreTokenizer((UFAKZEKA,)),
    "laguna": GgufPreTokenizer((r"[^\n]+|\n+", QWEN2)),
    "exaone-moe": GgufPreTokenizer((EXAONE_MOE,)),
    "minicpm5": GgufPreTokenizer((r"\p{N}{1,3}", MINICPM5), ignore_merges=True),
}

PRE_TOKENIZERS = {name: pre for names, pre in _CUTS.items() for name in names.split()}


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
