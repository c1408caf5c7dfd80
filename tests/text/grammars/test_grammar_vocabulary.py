"""How texts that a grammar forces are tokenized, whatever a tokenizer does to texts."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from quire.text.grammars.grammar_vocabulary import GrammarVocabulary
from quire.text.tokenizers.tokenizer import Tokenizer, load_tokenizer
from tools.small_tokenizers import MAKERS

TEXTS = ["a", " ", '{"name": ', "  two", "Hello world", "É 東京 😀", "</s>", "<s>x[SEP]", "a\n\tb"]


@pytest.fixture(scope="module", params=MAKERS)
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp(request.param)
    MAKERS[request.param](folder)
    return load_tokenizer(folder)


def vocabulary_of(tokenizer: Tokenizer) -> GrammarVocabulary:
    return GrammarVocabulary(
        [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)],
        sorted(tokenizer.pieces.special_ids),
        None,
        [0],
        partial(tokenizer.encode, add_special_tokens=False),
    )


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_are_the_texts_own(tokenizer: Tokenizer, text: str) -> None:
    """A dummy prefix made the first token begin with a space that no grammar allows."""
    vocabulary = vocabulary_of(tokenizer)
    ids = vocabulary(text)
    found = b"".join(vocabulary.tokens[i] for i in ids)
    if ids[-1:] == [vocabulary.unwritable_id]:
        found = found.removesuffix(vocabulary.tokens[ids.pop()])
        assert text.encode().startswith(found)
        assert text[len(found.decode()) :][:1].encode() not in vocabulary.tokens
    else:
        assert found == text.encode()
    assert not tokenizer.pieces.special_ids & set(ids)


def test_a_long_text_is_tokenized_by_its_beginning(tokenizer: Tokenizer) -> None:
    vocabulary, asked = vocabulary_of(tokenizer), list[int]()
    encode = vocabulary._encode
    assert encode is not None

    def counted(text: str) -> list[int]:
        asked.append(len(text))
        return encode(text)

    vocabulary._encode = counted
    for letter in "xé":
        ids = vocabulary(letter * 100_000)
        assert 1 < len(ids) < 1000
    assert max(asked) < 1000


def test_ids_beyond_the_models_vocabulary_are_not_used(tokenizer: Tokenizer) -> None:
    vocabulary = vocabulary_of(tokenizer)
    small = GrammarVocabulary(vocabulary.tokens[:300], [0], None, [0], vocabulary._encode)
    assert all(token_id < 300 for text in TEXTS for token_id in small(text))
