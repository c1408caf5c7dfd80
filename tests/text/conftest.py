"""Small tokenizers in the three kinds that checkpoints bring."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.text.tokenizers.tokenizer import Tokenizer, load_tokenizer
from tools.small_tokenizers import make_byte_level, make_metaspace, make_sentencepiece

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
