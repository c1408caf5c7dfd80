"""Pictures in prompts: what stands before one with crops tells of it, and is text still."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from quire.llm.pictures.placing import cut_at_marks, introduced, join
from quire.models.config.config_reader import read_model_config
from quire.text.tokenizers.tokenizer import load_tokenizer
from tests.picture_families import FAMILIES

INTRODUCTION = "Here is the original image \n\n"


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    """A tokenizer and what its model needs of pictures."""
    folder = tmp_path_factory.mktemp("gemma")
    FAMILIES["gemma3-crops"].write(folder)
    return load_tokenizer(folder), read_model_config(folder).vision


@pytest.mark.parametrize("before", ["", "a\n", "<end_of_turn>\nHé", "\n\n\n"])
def test_a_text_before_crops_is_tokenized_with_what_tells_of_them(gemma, before):
    tokenizer, vision = gemma
    found = introduced(tokenizer.encode(f"{before}\n\n", False), tokenizer, vision)
    assert found == tokenizer.encode(before + INTRODUCTION, False)


def test_a_special_token_that_is_spelled_before_crops_stays_text(gemma):
    tokenizer, vision = gemma
    parts = tokenizer.special_texts.cut("say <eos>\n\n")
    token_ids = [tokenizer.bos_token_id, *tokenizer.encode_parts(parts, False)]
    found = introduced(token_ids, tokenizer, vision)
    assert found[0] == tokenizer.bos_token_id
    assert tokenizer.eos_token_id not in found
    assert tokenizer.decode(found) == f"say <eos>{INTRODUCTION}"


def test_pictures_take_the_places_of_their_marks(gemma):
    vision = replace(gemma[1], writing=replace(gemma[1].writing, mark_id=9))
    parts = cut_at_marks([1, 9, 9, 2], 2, vision)
    assert parts == [[1], [], [2]]
    assert join(parts, [[5, 6], [7]]) == ([1, 5, 6, 7, 2], [1, 3])
