"""Vocabularies of encoders in GGUF files, both ways: WordPiece and sentencepiece's unigram.

Source: llama.cpp, whose files mark words' first pieces where WordPiece marks the others.
"""

from __future__ import annotations

import base64
import json
from array import array
from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from quire.checkpoints.gguf.gguf_file import GgufHeader
from quire.checkpoints.gguf.gguf_keys import PREFIX
from quire.text.tokenizers.sentencepiece_model import (
    CONTROL,
    NORMAL,
    SPACE,
    UNIGRAM,
    UNKNOWN,
    USER_DEFINED,
    SentencePieceModel,
    build_tokenizer,
)

#: What a piece begins with that goes on with a word.
JOINED = "##"
#: Ids that files may leave out, by the vocabulary's kind.
DEFAULT_IDS = {
    "bert": {"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103},
    "t5": {"eos": 1, "unk": 2, "pad": 0},
}


def word_piece(file: GgufHeader, tokens: Sequence[str], types: Sequence[int]) -> Tokenizer:
    """Build the WordPiece tokenizer of a file.

    Raises:
        ValueError: Two tokens are the same, or none is for what is unknown.
    """
    vocabulary = {_marked(token, kind): i for i, (token, kind) in _numbered(tokens, types)}
    unknown = file.token_id(f"{PREFIX}unknown_token_id", DEFAULT_IDS["bert"]["unk"])
    if len(vocabulary) < len(tokens):
        raise ValueError("a piece twice, as a word's first and as another")
    if unknown is None or unknown >= len(tokens):
        raise ValueError(f"an unknown_token_id {unknown} beyond {len(tokens)} tokens")
    names = list(vocabulary)
    tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token=names[unknown]))
    lowercase = file.boolean(f"{PREFIX}normalizer.lowercase", True)
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase,
        strip_accents=file.boolean(f"{PREFIX}normalizer.strip_accents", lowercase),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=JOINED)
    kept = (CONTROL, USER_DEFINED, UNKNOWN)
    tokenizer.add_tokens(
        [
            AddedToken(token, normalized=False, special=kind != USER_DEFINED)
            for token, kind in zip(tokens, types, strict=True)
            if kind in kept
        ]
    )
    return tokenizer


def unigram(file: GgufHeader, tokens: list[str], types: list[int], charsmap: bytes) -> Tokenizer:
    """Build the unigram tokenizer of a file."""
    scores = [float(score) for score in file.numbers(f"{PREFIX}scores")]
    if len(scores) != len(tokens):
        raise ValueError(f"{len(scores)} scores for {len(tokens)} tokens")
    if UNKNOWN not in types:
        unknown = file.token_id(f"{PREFIX}unknown_token_id", DEFAULT_IDS["t5"]["unk"])
        if unknown is None or unknown >= len(tokens):
            raise ValueError("no unknown token")
        types = [*types[:unknown], UNKNOWN, *types[unknown + 1 :]]
    model = SentencePieceModel(
        pieces=tokens,
        scores=scores,
        types=types,
        algorithm=UNIGRAM,
        charsmap=charsmap,
        add_dummy_prefix=file.boolean(f"{PREFIX}add_space_prefix", True),
        remove_extra_whitespaces=file.boolean(f"{PREFIX}remove_extra_whitespaces", False),
    )
    return build_tokenizer(model)


def encoder_templates(kind: str, named: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return what an encoder reads of a text, and of two, as the library's templates."""
    start, end, separator = (named.get(f"{name}_token") for name in ("bos", "eos", "sep"))
    start = named.get("cls_token", start)
    if kind == "bert":
        end, between, second = separator or end, [], ":1"
    else:
        between, second = [separator or end], ""
    before, after = ([token] if token else [] for token in (start, end))
    between = [token for token in between if token]
    pair = [*before, "$A", *after, *between, f"$B{second}", *(f"{t}{second}" for t in after)]
    return [*before, "$A", *after], pair


def is_word_piece(backend: Tokenizer) -> bool:
    """Whether a tokenizer is WordPiece as a file can say it."""
    whole = json.loads(backend.to_str())
    model, normalizer, pre = whole["model"], whole["normalizer"] or {}, whole["pre_tokenizer"] or {}
    return (
        model["type"] == "WordPiece"
        and model["continuing_subword_prefix"] == JOINED
        and normalizer.get("type") == "BertNormalizer"
        and pre.get("type") == "BertPreTokenizer"
    )


def word_piece_metadata(
    backend: Tokenizer, tokens: Sequence[str], types: Sequence[int]
) -> dict[str, Any]:
    """Return the metadata of a WordPiece vocabulary, without its prefix."""
    normalizer = json.loads(backend.to_str())["normalizer"]
    accents = normalizer["strip_accents"]
    return {
        "model": "bert",
        "pre": "default",
        "tokens": [_unmarked(*pair) for pair in zip(tokens, types, strict=True)],
        "token_type": array("i", types),
        "normalizer.lowercase": normalizer["lowercase"],
        "normalizer.strip_accents": normalizer["lowercase"] if accents is None else accents,
    }


def is_unigram(backend: Tokenizer) -> bool:
    """Whether a tokenizer is a unigram model as sentencepiece makes them."""
    model = json.loads(backend.to_str())["model"]
    return bool(model["type"] == "Unigram" and model["unk_id"] is not None)


def unigram_metadata(backend: Tokenizer, tokens: list[str], types: list[int]) -> dict[str, Any]:
    """Return the metadata of a unigram vocabulary, without its prefix."""
    whole = json.loads(backend.to_str())
    pieces, unknown = whole["model"]["vocab"], whole["model"]["unk_id"]
    steps = _steps(whole["normalizer"], "normalizers") + _steps(
        whole["pre_tokenizer"], "pretokenizers"
    )
    scores = [score for _, score in pieces]
    types[unknown] = UNKNOWN
    metadata = {
        "model": "t5",
        "pre": "default",
        "tokens": tokens,
        "scores": array("f", scores + [0.0] * (len(tokens) - len(scores))),
        "token_type": array("i", types),
        "add_space_prefix": True,
        "remove_extra_whitespaces": any(
            step["type"] in ("WhitespaceSplit", "Replace", "Strip") for step in steps
        ),
    }
    for step in steps:
        if step["type"] == "Precompiled":
            charsmap = base64.b64decode(step["precompiled_charsmap"])
            metadata["precompiled_charsmap"] = array("B", charsmap)
    return metadata


def _steps(step: dict[str, Any] | None, several: str) -> list[dict[str, Any]]:
    return [] if step is None else list(step.get(several, [step]))


def _numbered(tokens: Sequence[str], types: Sequence[int]) -> Any:
    return enumerate(zip(tokens, types, strict=True))


def _marked(token: str, kind: int) -> str:
    """Return a piece as WordPiece has it."""
    if kind != NORMAL or (token.startswith("[") and token.endswith("]")):
        return token
    return token[1:] if token.startswith(SPACE) else JOINED + token


def _unmarked(token: str, kind: int) -> str:
    """Return a piece as files have it."""
    if kind != NORMAL:
        return token
    return token.removeprefix(JOINED) if token.startswith(JOINED) else SPACE + token
