"""A draft's text against the target's, token by token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing

from quire.checkpoints.embedded import ASSETS
from quire.core.speculative_config import DraftVocabulary
from quire.speculative.drafters.vocabularies import DraftText, VocabularyPair, pair_vocabularies
from quire.text.tokenizers.tokenizer import Tokenizer, load_tokenizer
from tests.draft_vocabularies import retokenized

STORY = (
    "<|im_start|>user\nOnce upon a time, there was a little girl who had 12 dogs.<|im_end|>\n"
    "<|im_start|>assistant\nShe said: \u201cna\u00efve \u65e5\u672c\u8a9e \U0001f600\u201d.\n\n"
    + "And then the wonderful flowers grew, and the dogs were happily running around. "
    * 12
)


@pytest.fixture(scope="module")
def target() -> Tokenizer:
    return load_tokenizer(ASSETS / "quire-tiny")


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("draft") / "draft"
    return load_tokenizer(retokenized(ASSETS / "quire-tiny-draft", folder, 900))


def pair(target: Tokenizer, draft: Tokenizer, way: DraftVocabulary = "text") -> VocabularyPair:
    return pair_vocabularies(target, draft, way)


def ids(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_the_draft_reads_the_same_text(target: Tokenizer, draft: Tokenizer, step: int) -> None:
    """However the target's tokens come; in the end as if it were tokenized at once."""
    known = target.encode(STORY)
    text, read = DraftText(pair(target, draft)), []
    for end in [*range(step, len(known), step), len(known)]:
        first, tokens = text.follow(ids(known[:end]))
        assert first <= len(read)
        read = read[:first] + tokens
        if text.is_whole:
            expected = b"".join(map(target.token_bytes, known[:end]))
            assert b"".join(map(draft.token_bytes, read)) == expected
    assert read == draft.encode(STORY)
    first, tokens = text.follow(ids(known))
    assert read[:first] + tokens == read


def test_characters_that_are_not_whole_wait(target: Tokenizer, draft: Tokenizer) -> None:
    known = target.encode("\U0001f600")
    assert len(known) == 4
    text = DraftText(pair(target, draft))
    for end in range(1, 4):
        assert text.follow(ids(known[:end])) == (0, [])
        assert not text.is_whole
    assert draft.decode(text.follow(ids(known))[1]) == "\U0001f600"
    assert text.is_whole


def test_common_tokens_have_the_same_bytes(target: Tokenizer, draft: Tokenizer) -> None:
    both = pair(target, draft)
    assert len(both.target_ids) == draft.vocab_size
    assert len(set(both.target_ids.tolist())) == len(set(both.draft_ids.tolist())) == 2048 - 900
    for ours, theirs in zip(both.target_ids.tolist(), both.draft_ids.tolist(), strict=True):
        assert target.token_bytes(ours) == draft.token_bytes(theirs)
        assert target.is_special(ours) == draft.is_special(theirs)


def test_what_is_written_becomes_the_targets_tokens(target: Tokenizer, draft: Tokenizer) -> None:
    both = pair(target, draft)
    end = draft.token_to_id("<|im_end|>")
    assert end is not None
    for known, written in (
        ("the dog ran", " to the wonderful park"),
        ("the wonder", "ful park"),  # within a word
        ("it cost 1", "2"),
        ("", "Once upon"),
        ("hello\n", "\nmore"),
    ):
        found = both.proposed_tokens(ids(target.encode(known)), draft.encode(written))
        assert target.decode(found) == written
        assert both.proposed_tokens(ids([]), [*draft.encode(written), end])[-1] == 2
    whole = target.encode("the dog ran to the wonderful park")
    known = target.encode("the dog ran")
    found = both.proposed_tokens(ids(known), draft.encode(" to the wonderful park"))
    assert known + found == whole
    assert both.proposed_tokens(ids(known), [end]) == [2]
    assert both.proposed_tokens(ids(known), []) == []
    cut = draft.encode("ab\U0001f600")[:-1]
    assert target.decode(both.proposed_tokens(ids(known), cut)) == "ab"


def test_a_draft_that_begins_texts_does(target: Tokenizer, tmp_path: Path) -> None:
    folder = retokenized(ASSETS / "quire-tiny-draft", tmp_path / "draft", 0)
    starting = load_tokenizer(folder)
    starting.backend.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    text = DraftText(pair(target, starting))
    assert text.follow(ids(target.encode("Once")))[1] == starting.encode("Once")
    assert starting.encode("Once")[0] == 0
