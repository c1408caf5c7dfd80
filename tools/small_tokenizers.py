"""Train small tokenizers of the kinds that checkpoints bring, in a checkpoint's folder.

They are made in a second; what they are good for is whatever depends on the kind.
"""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers import Tokenizer as Backend
from tokenizers.trainers import BpeTrainer

from quire.text.tokenizers.tokenizer import load_tokenizer
from tools.random_checkpoint import CHAT_TEMPLATE, PRESETS, random_checkpoint

CORPUS = [
    "Hello world, this is a small text about cats and dogs, and about dogs and cats.",
    "Der schnelle braune Fuchs springt über den faulen Hund; naïve cafés serve crêpes.",
    "for i in range(10):\n    print(i)\n",
    "1234 5678  double  spaces, tabs\tand 東京 in the middle 😀 of it.",
] * 20


def save_config(folder: Path, **config: Any) -> None:
    """Write ``tokenizer_config.json`` and a ``config.json`` that oracles want to see."""
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": config.pop("kind", "llama")}))


def make_byte_level(folder: Path) -> None:
    """A byte-level BPE as GPT-2, Llama 3 and Qwen have it."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens([AddedToken("<tool_call>", special=False), "két szó"])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    backend.enable_truncation(8)  # Must not apply: prompts are never cut silently.
    backend.save(str(folder / "tokenizer.json"))
    save_config(
        folder, tokenizer_class="PreTrainedTokenizerFast", bos_token="<s>", eos_token="<|im_end|>"
    )


def make_metaspace(folder: Path) -> None:
    """A BPE with byte fallback as the ``tokenizer.json`` of Llama 2 and Mistral has it."""
    backend = Backend(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    special = ["<unk>", "<s>", "</s>"]
    trainer = BpeTrainer(
        vocab_size=600,
        special_tokens=special + [f"<0x{byte:02X}>" for byte in range(256)],
        limit_alphabet=60,
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    saved = json.loads(backend.to_str())
    saved["added_tokens"] = saved["added_tokens"][: len(special)]  # Byte tokens are no text.
    (folder / "tokenizer.json").write_text(json.dumps(saved))
    save_config(
        folder,
        tokenizer_class="PreTrainedTokenizerFast",
        bos_token={"__type": "AddedToken", "content": "<s>", "lstrip": False},
        eos_token="</s>",
        unk_token="<unk>",
    )


def make_sentencepiece(folder: Path, **trainer: Any) -> None:
    """A ``tokenizer.model`` as Llama 2 and Mistral have it."""
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(CORPUS))
    options = {
        "vocab_size": 420,
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "user_defined_symbols": ["<tool_call>"],
        "split_digits": True,
        "character_coverage": 0.99,
        "num_threads": 1,
        "minloglevel": 2,
    }
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(folder / "tokenizer"), **{**options, **trainer}
    )
    # The oracle's own way; ours without the option is tested against sentencepiece.
    save_config(folder, tokenizer_class="LlamaTokenizer", add_bos_token=True, legacy=False)


def make_unigram(folder: Path) -> None:
    """A ``tokenizer.model`` of the unigram kind."""
    make_sentencepiece(folder, model_type="unigram", vocab_size=330)


def make_word_piece(folder: Path) -> None:
    """Words and their ``##parts``, in lower case and without spaces: encoding changes a text."""
    marks = ["[UNK]", "[CLS]", "[SEP]"]
    words = sorted({word for line in CORPUS for word in line.lower().split() if word.isascii()})
    letters = [*string.printable, *(chr(code) for code in range(0xA1, 0x180)), *"東京🙂"]
    pieces = dict.fromkeys([*marks, *letters, *(f"##{letter}" for letter in letters), *words])
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    backend = Backend(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.Sequence([decoders.Replace("##", ""), decoders.Fuse()])
    backend.add_special_tokens(marks)
    backend.save(str(folder / "tokenizer.json"))
    save_config(
        folder,
        tokenizer_class="PreTrainedTokenizerFast",
        bos_token="[CLS]",
        eos_token="[SEP]",
        unk_token="[UNK]",
    )


MAKERS = {
    "byte_level": make_byte_level,
    "metaspace": make_metaspace,
    "sentencepiece": make_sentencepiece,
    "unigram": make_unigram,
    "word_piece": make_word_piece,
}


def small_checkpoint(folder: Path, kind: str, **config: Any) -> None:
    """Write a random checkpoint with a tokenizer of a kind and a chat template.

    Args:
        folder: Empty or not there.
        kind: One of :data:`MAKERS`.
        **config: Further fields of ``config.json``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    MAKERS[kind](folder)
    tokenizer = load_tokenizer(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {**tokenizer.special_tokens, "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    kept = {path.name: path.read_bytes() for path in folder.glob("tokenizer*")}
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    fields = {"vocab_size": -(-tokenizer.vocab_size // 64) * 64, **ids, **config}
    random_checkpoint(folder, PRESETS["tiny-llama"] | fields)
    (folder / "tokenizer.json").unlink()
    for name, data in kept.items():
        (folder / name).write_bytes(data)
