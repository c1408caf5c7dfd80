"""Whether two models' tokens are the same, so that their distributions can be compared."""

from __future__ import annotations

from quire.core.errors import ConfigError
from quire.text.tokenizers.tokenizer import Tokenizer


def check_same_vocabulary(
    reference: str, sizes: tuple[int, int], tokenizers: tuple[Tokenizer, Tokenizer]
) -> None:
    """Refuse a reference with other tokens.

    Args:
        reference: The reference's name, for the error.
        sizes: Sizes of the model's output and the reference's.
        tokenizers: Tokenizers of both.

    Raises:
        ConfigError: An id means another token, or one vocabulary is larger.
    """
    own, other = tokenizers
    got = ""
    if sizes[0] != sizes[1]:
        got = f"{sizes[1]:,} tokens in place of {sizes[0]:,}"
    else:
        # Beyond, one of them has names for ids that the model does not use, as GGUF files do.
        ids = range(min(own.vocab_size, other.vocab_size))
        differing = sum(own.token_bytes(i) != other.token_bytes(i) for i in ids)
        if differing:
            got = f"{differing:,} other tokens of {len(ids):,}"
    if got:
        raise ConfigError(
            f"[eval] --reference must have the vocabulary of MODEL; got {reference} with {got}."
        )
