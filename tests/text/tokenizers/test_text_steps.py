"""A decoder's steps are all done, those of tokens and those of the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models

from quire.text.tokenizers.detokenizer import Detokenizer
from quire.text.tokenizers.token_bytes import Pieces
from tests.sizes import sized

WORDS = ["▁", "▁a", "a", "aa", "'", "▁'", "b", "\n", "▁\n", "▁▁", "x▁", "é", ".", " ", "▁."]
TOKENS = [f"<0x{byte:02X}>" for byte in range(256)] + WORDS
MARK = decoders.Replace("▁", " ")
ON_TOKENS = {
    "replaced": [MARK],
    "always": [decoders.Metaspace(prepend_scheme="always")],
    "never": [decoders.Metaspace(prepend_scheme="never")],
    "stripped": [MARK, decoders.Strip(" ", 1, 0)],
    "by expression": [decoders.Replace(Regex("[▁]"), " "), decoders.Replace(Regex("a+"), "A")],
    "nested": [decoders.Sequence([MARK])],
}
ON_TEXT = {
    "nothing": [],
    "start": [decoders.Strip(" ", 1, 0)],
    "both ends": [decoders.Strip("a", 2, 1)],
    # What ggml's issue 1093 and French models have.
    "replaced": [decoders.Replace("\n ", "\n"), decoders.Replace("' ", "'")],
    "in turn": [decoders.Replace("aa", "b"), decoders.Replace("bb", "c")],
    "then": [decoders.Strip(" ", 1, 0), decoders.Replace(" .", ".")],
}


@pytest.mark.parametrize("on_tokens", ON_TOKENS)
@pytest.mark.parametrize("on_text", ON_TEXT)
@settings(max_examples=sized(8, 60), deadline=None)
@given(ids=st.lists(st.integers(256, len(TOKENS) - 1), max_size=12))
def test_text_is_the_librarys(on_tokens: str, on_text: str, ids: list[int]) -> None:
    """Steps after the tokens are joined were done on each token alone, and found nothing."""
    backend = Tokenizer(models.BPE({token: index for index, token in enumerate(TOKENS)}, []))
    steps = [*ON_TOKENS[on_tokens], decoders.ByteFallback(), decoders.Fuse(), *ON_TEXT[on_text]]
    backend.decoder = decoders.Sequence(steps)
    pieces = Pieces(backend)
    # The library panics where a text is shorter than what it cuts.
    ids = [*ids[::2], *[TOKENS.index("b")] * 2, *ids[1::2]]
    whole, single = Detokenizer(pieces), Detokenizer(pieces)
    want = backend.decode(ids)
    assert whole.add(ids) + whole.flush() == want
    assert "".join(single.add([token_id]) for token_id in ids) + single.flush() == want


def test_a_text_that_goes_on_keeps_its_start() -> None:
    backend = Tokenizer(models.BPE({"▁a": 0, "'": 1}, []))
    steps = [MARK, decoders.Fuse(), decoders.Strip(" ", 1, 0), decoders.Replace("' ", "'")]
    backend.decoder = decoders.Sequence(steps)
    detokenizer = Detokenizer(Pieces(backend), continues=True)
    assert detokenizer.add([0, 1, 0]) + detokenizer.flush() == " a'a"


def test_an_expression_on_the_whole_text_is_refused() -> None:
    backend = Tokenizer(models.BPE({"a": 0}, []))
    backend.decoder = decoders.Sequence(
        [decoders.Fuse(), decoders.Replace(Regex(" +"), " ")]  # it may match without end
    )
    with pytest.raises(ValueError, match="decoder"):
        Pieces(backend)
