"""Small tokenizers, trained here in the three kinds that checkpoints bring."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from tokenizers.trainers import BpeTrainer

from quire.text.tokenizer import Tokenizer, load_tokenizer

CORPUS = [
    "Hello world, this is a small text about cats and dogs, and about dogs and cats.",
    "Der schnelle braune Fuchs springt über den faulen Hund; naïve cafés serve crêpes.",
    "for i in range(10):\n    print(i)\n",
    "1234 5678  double  spaces, tabs\tand 東京 in the middle 😀 of it.",
] * 20

#: Texts on which a tokenizer must agree with the oracle.
TEXTS = [
    "",
    " ",
    "Hello world",
    " leading and trailing ",
    "two  spaces,\n\nlines\tand tabs",
    "cafés in 東京, 日本語 and 😀👩‍👩‍👧 too",
    "e\u0301 composed, ẛ̣ and ﬁ",
    "a</s>b",
    "<s>twice",
    "text<|im_end|>\n<|im_start|>user",
    "<0x0A> is no byte",
    "null \x00 and \u200b zero width",
]


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


MAKERS = {
    "byte_level": make_byte_level,
    "metaspace": make_metaspace,
    "sentencepiece": make_sentencepiece,
}


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model folder of each kind."""
    made = {}
    for kind, make in MAKERS.items():
        made[kind] = tmp_path_factory.mktemp(kind)
        make(made[kind])
    return made


@pytest.fixture(scope="session")
def tokenizers_by_kind(folders: dict[str, Path]) -> dict[str, Tokenizer]:
    return {kind: load_tokenizer(folder) for kind, folder in folders.items()}


@pytest.fixture(params=sorted(MAKERS))
def kind(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


@pytest.fixture
def tokenizer(tokenizers_by_kind: dict[str, Tokenizer], kind: str) -> Tokenizer:
    return tokenizers_by_kind[kind]


@pytest.fixture
def folder(folders: dict[str, Path], kind: str) -> Path:
    return folders[kind]
