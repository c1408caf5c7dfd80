"""The tokenizer of a GGUF file's metadata: sentencepiece pieces, byte-level BPE or WordPiece.

Source: the format's description (docs/gguf.md in ggml) and the defaults of llama.cpp's loader.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from quire.checkpoints.gguf.gguf_file import GgufFile, open_gguf
from quire.checkpoints.gguf.gguf_keys import PREFIX
from quire.text.tokenizers.fim_tokens import GGUF_NAMES
from quire.text.tokenizers.gguf_encoder_vocabulary import (
    DEFAULT_IDS,
    encoder_templates,
    unigram,
    word_piece,
)
from quire.text.tokenizers.gguf_pre_tokenizers import PRE_TOKENIZERS, GgufPreTokenizer
from quire.text.tokenizers.library_errors import library_errors
from quire.text.tokenizers.sentencepiece_model import (
    BPE,
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    SentencePieceModel,
    build_tokenizer,
)

#: Kinds of vocabularies.
KINDS = ("llama", "gpt2", "bert", "t5")
#: Architectures that read texts between a start and an end token, and two of them as a pair.
ENCODERS = ("bert",)
#: Named special tokens; the format has the misspelling.
SPECIAL = {
    "bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding",
    "mask": "mask", "cls": "cls", **{name: name for name in GGUF_NAMES.values()},
}  # fmt: skip
#: What files of codellama call the same.
_OLDER = {"fim_pre": "prefix", "fim_suf": "suffix", "fim_mid": "middle"}
#: Ids that files of sentencepiece may leave out.
SENTENCEPIECE_IDS = {"bos": 1, "eos": 2, "unk": 0}


def read_gguf_tokenizer(path: Path) -> tuple[Tokenizer, dict[str, Any]]:
    """Build the tokenizer of a GGUF file.

    Returns:
        The tokenizer without start and end tokens, and what a ``tokenizer_config.json`` would say:
        special tokens, which of them are added, and chat templates.

    Raises:
        ModelLoadError: The file is damaged or a value is of the wrong kind.
        ValueError: The vocabulary is of a kind we do not know, or contradicts itself.
    """
    file = open_gguf(path)
    tokens = _read_tokens(file)
    backend, defaults, add_bos = _build(file, tokens)
    config: dict[str, Any] = {
        "added_tokens_decoder": {},
        "add_bos_token": file.boolean(f"{PREFIX}add_bos_token", add_bos),
        "add_eos_token": file.boolean(f"{PREFIX}add_eos_token", False),
        "chat_template": read_templates(file),
    }
    for name, key in SPECIAL.items():
        if name in _OLDER and f"{PREFIX}{key}_token_id" not in file.metadata:
            key = _OLDER[name]
        token_id = file.token_id(f"{PREFIX}{key}_token_id", defaults.get(name))
        if token_id is None:
            continue
        if token_id >= len(tokens):
            if f"{PREFIX}{key}_token_id" in file.metadata:
                raise ValueError(f"{key}_token_id {token_id} beyond {len(tokens)} tokens")
            continue
        config[f"{name}_token"] = tokens[token_id]
    if file.text("general.architecture", "") in ENCODERS:
        config["templates"] = encoder_templates(file.text(f"{PREFIX}model"), config)
    return backend, config


def _build(file: GgufFile, tokens: list[str]) -> tuple[Tokenizer, dict[str, int], bool]:
    """Return the tokenizer, and what holds unless said: special ids, whether bos is added."""
    model = file.text(f"{PREFIX}model")
    if model not in KINDS:
        raise ValueError(f"a vocabulary of kind {model!r:.80}; supported: {', '.join(KINDS)}")
    with library_errors("a vocabulary"):
        types = list(map(int, file.numbers(f"{PREFIX}token_type")))
        types = types or [NORMAL] * len(tokens)
        if len(types) != len(tokens):
            raise ValueError(f"{len(types)} token types for {len(tokens)} tokens")
        if model == "bert":
            return word_piece(file, tokens, types), DEFAULT_IDS[model], True
        if model == "t5":
            return unigram(file, tokens, types, _charsmap(file)), DEFAULT_IDS[model], False
        if model == "llama":
            return _sentencepiece(file, tokens, types), SENTENCEPIECE_IDS, True
        pre = PRE_TOKENIZERS[_pre_tokenizer(file)]
        return _byte_level(file, pre, tokens, types), {}, pre.add_bos


def _read_tokens(file: GgufFile) -> list[str]:
    tokens = file.texts(f"{PREFIX}tokens")
    if "" in tokens:  # the library has no empty tokens, and the id must stay taken
        tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]
    if not tokens:
        raise ValueError("no tokens")
    if len(set(tokens)) < len(tokens):
        ((twice, _),) = Counter(tokens).most_common(1)
        raise ValueError(f"the token {twice!r:.80} twice")
    return tokens


def _sentencepiece(file: GgufFile, tokens: list[str], types: list[int]) -> Tokenizer:
    scores = [float(score) for score in file.numbers(f"{PREFIX}scores")]
    if len(scores) != len(tokens):
        raise ValueError(f"{len(scores)} scores for {len(tokens)} tokens")
    if UNKNOWN not in types:
        raise ValueError("no unknown token")
    model = SentencePieceModel(
        pieces=tokens,
        scores=scores,
        types=types,
        algorithm=BPE,
        byte_fallback=BYTE in types,
        charsmap=_charsmap(file),
        add_dummy_prefix=file.boolean(f"{PREFIX}add_space_prefix", True),
        remove_extra_whitespaces=file.boolean(f"{PREFIX}remove_extra_whitespaces", False),
    )
    return build_tokenizer(model)


def _charsmap(file: GgufFile) -> bytes:
    numbers = file.metadata.get(f"{PREFIX}precompiled_charsmap")
    return b"" if numbers is None else bytes(number & 255 for number in numbers)


def _byte_level(
    file: GgufFile, pre: GgufPreTokenizer, tokens: list[str], types: list[int]
) -> Tokenizer:
    merges = []
    for merge in file.texts(f"{PREFIX}merges"):
        # A token may begin with the separating space, never hold it elsewhere.
        cut = merge.find(" ", 1)
        if cut < 0:
            raise ValueError(f"a merge that is no pair: {merge!r:.80}")
        merges.append((merge[:cut], merge[cut + 1 :]))
    vocabulary = dict(zip(tokens, range(len(tokens)), strict=True))
    try:
        model = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre.ignore_merges)
    except Exception:
        for left, right in merges:
            if not {left, right, left + right} <= vocabulary.keys():
                message = f"a merge of or to an unknown token: {left!r:.40} {right!r:.40}"
                raise ValueError(message) from None
        raise
    tokenizer = Tokenizer(model)
    if pre.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre.build()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [
            AddedToken(token, normalized=False, special=kind != USER_DEFINED)
            for token, kind in zip(tokens, types, strict=True)
            if kind in (UNKNOWN, CONTROL, USER_DEFINED)
        ]
    )
    return tokenizer


def _pre_tokenizer(file: GgufFile) -> str:
    name = file.text(f"{PREFIX}pre", "default")
    name = {"roberta-bpe": "gpt-2"}.get(name, name)  # what ends a text is apart
    if name not in PRE_TOKENIZERS:
        raise ValueError(
            f"the pre-tokenizer {name!r:.80}; supported: {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    return name


def read_templates(file: GgufFile) -> list[dict[str, str]] | None:
    """Return the chat templates of a file as ``tokenizer_config.json`` has them, None for none."""
    prefix = "tokenizer.chat_template"
    named = {"default": prefix} if prefix in file.metadata else {}
    named |= {
        key.removeprefix(f"{prefix}."): key for key in file.metadata if key.startswith(f"{prefix}.")
    }
    return [{"name": name, "template": file.text(key)} for name, key in named.items()] or None
