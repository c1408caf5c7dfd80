"""Which references have a model's tokens."""

import pytest

from quire.core.errors import ConfigError
from quire.evaluation.vocabulary import check_same_vocabulary


class Tokens:
    def __init__(self, *tokens):
        self.vocab_size = len(tokens)
        self.token_bytes = tokens.__getitem__


OWN = Tokens(b"a", b"b", b"c")


@pytest.mark.parametrize("other", [OWN, Tokens(b"a", b"b"), Tokens(b"a", b"b", b"c", b"[PAD3]")])
def test_the_same_tokens_may_have_fewer_or_more_names(other):
    """GGUF files name the ids that pad a vocabulary; tokenizer.json does not."""
    check_same_vocabulary("other", (4, 4), (OWN, other))


@pytest.mark.parametrize(
    ("size", "other", "got"),
    [
        (4, Tokens(b"a", b"x", b"y"), "2 other tokens of 3"),
        (5, OWN, "5 tokens in place of 4"),
    ],
)
def test_other_tokens_are_refused_in_one_sentence(size, other, got):
    with pytest.raises(ConfigError) as caught:
        check_same_vocabulary("other", (4, size), (OWN, other))
    assert str(caught.value) == (
        f"[eval] --reference must have the vocabulary of MODEL; got other with {got}."
    )
