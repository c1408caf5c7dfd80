"""Deltas: whole characters, none too early, joined equal to the full decoding."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quire.text.tokenizers.detokenizer import Detokenizer
from quire.text.tokenizers.tokenizer import Tokenizer
from tests.text.conftest import MAKERS, TEXTS


def stream(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    """Feed ids one by one; return every delta, the flush last."""
    return [detokenizer.add([token_id]) for token_id in ids] + [detokenizer.flush()]


def byte_ids(tokenizer: Tokenizer, kind: str, data: bytes) -> list[int]:
    """Spell ``data`` with one token per byte."""
    if kind != "byte_level":
        return [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in data]
    by_bytes = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    return [by_bytes[bytes([byte])] for byte in data]


@settings(max_examples=300, deadline=None)
@given(data=st.data(), kind=st.sampled_from(sorted(MAKERS)), skip=st.booleans())
def test_deltas_join_to_the_decoding_of_any_ids(tokenizers_by_kind, data, kind, skip):
    tokenizer = tokenizers_by_kind[kind]
    ids = data.draw(st.lists(st.integers(-1, tokenizer.vocab_size + 2), max_size=40))
    deltas = stream(tokenizer.create_detokenizer(skip_special_tokens=skip), ids)
    assert "".join(deltas) == tokenizer.decode(ids, skip)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=12), kind=st.sampled_from(sorted(MAKERS)))
@example(data=b"a\xed\xa0", kind="byte_level")
def test_only_what_may_become_a_character_is_held_back(tokenizers_by_kind, data, kind):
    tokenizer = tokenizers_by_kind[kind]
    for count in range(len(data) + 1):
        detokenizer = tokenizer.create_detokenizer(continues=True)
        shown = detokenizer.add(byte_ids(tokenizer, kind, data[:count]))
        held = detokenizer.flush()
        assert held == "\ufffd" * len(held)
        # CPython's decoder also waits for the third byte of a surrogate, which then is two errors.
        surrogate = data[:count][-2:-1] == b"\xed" and data[count - 1] >= 0xA0
        assert len(held) <= ((2 if surrogate else 1) if kind == "byte_level" else 3)
        if kind == "byte_level":
            assert shown + held == data[:count].decode(errors="replace")
        good = data[:count].decode(errors="ignore")
        assert shown.replace("\ufffd", "") == good.replace("\ufffd", "")


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=12), kind=st.sampled_from(sorted(MAKERS)))
def test_good_text_never_shows_a_replacement_character(tokenizers_by_kind, text, kind):
    tokenizer = tokenizers_by_kind[kind]
    deltas = stream(
        tokenizer.create_detokenizer(continues=True), byte_ids(tokenizer, kind, text.encode())
    )
    assert [delta for delta in deltas if delta] == list(text)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), text=st.sampled_from(TEXTS), kind=st.sampled_from(sorted(MAKERS)))
def test_any_grouping_of_tokens_gives_the_same_text(tokenizers_by_kind, data, text, kind):
    tokenizer = tokenizers_by_kind[kind]
    ids = tokenizer.encode(text * 2)
    detokenizer, shown = tokenizer.create_detokenizer(), ""
    while ids:
        size = data.draw(st.integers(1, len(ids)))
        shown += detokenizer.add(ids[:size])
        ids = ids[size:]
    assert shown + detokenizer.flush() == tokenizer.decode(tokenizer.encode(text * 2))


@pytest.mark.parametrize("kind", ["metaspace", "sentencepiece"])
def test_space_before_the_first_word(tokenizers_by_kind, kind):
    tokenizer = tokenizers_by_kind[kind]
    ids = tokenizer.encode("dogs", add_special_tokens=False)
    assert "".join(stream(tokenizer.create_detokenizer(), ids)) == "dogs"
    # After a prompt the space separates the words, so it stays.
    assert "".join(stream(tokenizer.create_detokenizer(continues=True), ids)) == " dogs"


def test_special_tokens_are_shown_on_request(tokenizer):
    ids = [*tokenizer.encode("dogs", add_special_tokens=False), tokenizer.eos_token_id]
    end = tokenizer.convert_ids_to_tokens(ids)[-1]
    assert "".join(stream(tokenizer.create_detokenizer(), ids)) == "dogs"
    shown = stream(tokenizer.create_detokenizer(skip_special_tokens=False), ids)
    assert "".join(shown) == f"dogs{end}"


def test_character_cut_by_a_special_token_is_not_lost(tokenizers_by_kind):
    tokenizer = tokenizers_by_kind["byte_level"]
    first, second = "é".encode()
    ids = byte_ids(tokenizer, "byte_level", bytes([first]))
    ids += [tokenizer.eos_token_id] + byte_ids(tokenizer, "byte_level", bytes([second]))
    assert stream(tokenizer.create_detokenizer(), ids) == ["", "", "é", ""]
    shown = stream(tokenizer.create_detokenizer(skip_special_tokens=False), ids)
    assert "".join(shown) == tokenizer.decode(ids, skip_special_tokens=False)
