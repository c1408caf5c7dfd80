"""The tokenizer of a model folder as the metadata of a GGUF file."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

from quire.checkpoints.gguf.gguf_keys import PREFIX
from quire.core.errors import ModelLoadError
from quire.system.regular_files import TABLE_BYTES, read_regular
from quire.text.tokenizers.gguf_encoder_vocabulary import (
    DEFAULT_IDS,
    is_unigram,
    is_word_piece,
    unigram_metadata,
    word_piece_metadata,
)
from quire.text.tokenizers.gguf_pre_tokenizers import find_pre_tokenizer
from quire.text.tokenizers.gguf_tokenizer import SPECIAL
from quire.text.tokenizers.sentencepiece_model import (
    BPE,
    CONTROL,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    parse_model,
)
from quire.text.tokenizers.tokenizer import Tokenizer, load_tokenizer

#: Below every score of a real piece.
ADDED_SCORE = -1000.0


def gguf_vocabulary(folder: Path, vocab_size: int) -> dict[str, Any]:
    """Return the tokenizer's metadata, chat templates included.

    Args:
        folder: A folder in the layout of the Hugging Face hub.
        vocab_size: Rows of the embedding; ids without a token become unused ones.

    Raises:
        ModelLoadError: The tokenizer is of a kind that a GGUF file cannot say, or larger than the
            embedding.
    """
    tokenizer = load_tokenizer(folder)
    if tokenizer.vocab_size > vocab_size:
        raise ModelLoadError(
            f"[convert] the tokenizer of {folder} must have at most {vocab_size} tokens, the rows "
            f"of the embedding; got {tokenizer.vocab_size}."
        )
    pre = find_pre_tokenizer(tokenizer.backend)
    if pre is not None:
        metadata = _byte_level(tokenizer, pre, vocab_size)
    elif is_word_piece(tokenizer.backend):
        metadata = word_piece_metadata(tokenizer.backend, *_own_tokens(tokenizer, vocab_size))
    elif is_unigram(tokenizer.backend):
        metadata = unigram_metadata(tokenizer.backend, *_own_tokens(tokenizer, vocab_size))
    elif (folder / "tokenizer.model").is_file():
        metadata = _sentencepiece(folder, tokenizer, vocab_size)
    else:
        raise ModelLoadError(
            f"[convert] the tokenizer of {folder} must be byte-level BPE with a known "
            "pre-tokenizer, a tokenizer.model, WordPiece or unigram; got another. A GGUF file "
            "cannot say it."
        )
    for name, key in SPECIAL.items():
        token_id = tokenizer.token_to_id(tokenizer.special_tokens.get(f"{name}_token"))
        if token_id is not None:
            metadata[f"{key}_token_id"] = token_id
    if metadata["model"] in DEFAULT_IDS:  # Readers know of encoders' ends under these names.
        for name, key in {"bos": "cls", "eos": "seperator"}.items():
            if f"{key}_token_id" in metadata:
                metadata.setdefault(f"{name}_token_id", metadata[f"{key}_token_id"])
    added = tokenizer.encode("a")
    metadata["add_bos_token"] = added[:1] == [metadata.get("bos_token_id")]
    metadata["add_eos_token"] = added[-1:] == [metadata.get("eos_token_id")]
    return {f"{PREFIX}{key}": value for key, value in metadata.items()} | _templates(tokenizer)


def _byte_level(tokenizer: Tokenizer, pre: str, vocab_size: int) -> dict[str, Any]:
    model = json.loads(tokenizer.backend.to_str())["model"]
    tokens, types = _tokens(tokenizer, model["vocab"], vocab_size)
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": array("i", types),
        "merges": merges,
    }


def _sentencepiece(folder: Path, tokenizer: Tokenizer, vocab_size: int) -> dict[str, Any]:
    model = parse_model(read_regular(folder / "tokenizer.model", TABLE_BYTES))
    if model.algorithm != BPE:
        raise ModelLoadError(
            f"[convert] the tokenizer.model of {folder} must be BPE; got unigram, which no "
            "supported architecture has in a GGUF file."
        )
    vocabulary = {piece: index for index, piece in enumerate(model.pieces)}
    tokens, types = _tokens(tokenizer, vocabulary, vocab_size)
    types[: len(model.types)] = model.types
    scores = model.scores + [ADDED_SCORE] * (vocab_size - len(model.scores))
    metadata = {
        "model": "llama",
        "pre": "default",
        "tokens": tokens,
        "scores": array("f", scores),
        "token_type": array("i", types),
        "add_space_prefix": model.add_dummy_prefix,
        "remove_extra_whitespaces": model.remove_extra_whitespaces,
    }
    if model.charsmap:
        metadata["precompiled_charsmap"] = array("B", model.charsmap)
    return metadata


def _own_tokens(tokenizer: Tokenizer, vocab_size: int) -> tuple[list[str], list[int]]:
    return _tokens(tokenizer, tokenizer.backend.get_vocab(False), vocab_size)


def _tokens(
    tokenizer: Tokenizer, vocabulary: dict[str, int], vocab_size: int
) -> tuple[list[str], list[int]]:
    """Return text and kind of every id, those without a token included."""
    tokens = [f"[PAD{index}]" for index in range(vocab_size)]
    types = [UNUSED] * vocab_size
    for token, index in vocabulary.items():
        tokens[index], types[index] = token, NORMAL
    for index, added in tokenizer.backend.get_added_tokens_decoder().items():
        tokens[index] = added.content
        types[index] = CONTROL if added.special else USER_DEFINED
    return tokens, types


def _templates(tokenizer: Tokenizer) -> dict[str, Any]:
    if tokenizer.chat_template is None:
        return {}
    templates = tokenizer.chat_template.templates
    prefix = "tokenizer.chat_template"
    metadata: dict[str, Any] = {
        prefix if name == "default" else f"{prefix}.{name}": source
        for name, source in templates.items()
    }
    named = [name for name in templates if name != "default"]
    return metadata | ({"tokenizer.chat_templates": named} if named else {})
