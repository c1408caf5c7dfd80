"""The interfaces of models that can be judged: tokens of texts, and a loss for each token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from quire.core.errors import ConfigError, RequestError
from quire.evaluation.documents import Document
from quire.evaluation.windows import Window
from quire.text.tokenizers.tokenizer import Tokenizer


class Encoder(Protocol):
    """Makes tokens of texts."""

    @property
    def max_tokens(self) -> int | None:
        """Tokens of the longest window that can be scored; None if that is not known."""
        ...

    def encode(self, text: str, special: bool) -> list[int]:
        """Return a text's tokens; ``special`` puts the model's start of a text before them."""
        ...

    def encode_after(self, text: str) -> list[int]:
        """Return the tokens of a text that follows another one."""
        ...

    def encode_chat(self, messages: Sequence[dict[str, Any]], to_answer: bool) -> list[int]:
        """Return a conversation's tokens; ``to_answer`` ends them where an answer begins."""
        ...


class Scorer(Protocol):
    """Gives tokens their losses."""

    def losses(
        self, windows: Sequence[Window], on_tokens: Callable[[int], None]
    ) -> Iterator[np.ndarray]:
        """Yield the losses of each window's counted tokens, (count,) float64 nats, in order."""
        ...


class LocalEncoder:
    """A tokenizer in this process.

    Args:
        tokenizer: The model's tokenizer.
        max_tokens: The same as in the protocol.
    """

    def __init__(self, tokenizer: Tokenizer, max_tokens: int | None) -> None:
        self._tokenizer = tokenizer
        self.max_tokens = max_tokens

    def encode(self, text: str, special: bool) -> list[int]:
        """Return a text's tokens; see the protocol."""
        return self._tokenizer.encode(text, special)

    def encode_after(self, text: str) -> list[int]:
        """Return the tokens of a text that follows; see the protocol."""
        return self._tokenizer.encode_after(text)

    def encode_chat(self, messages: Sequence[dict[str, Any]], to_answer: bool) -> list[int]:
        """Return a conversation's tokens; see the protocol."""
        parts = self._tokenizer.render_chat(messages, add_generation_prompt=to_answer)
        # The template writes the special tokens out itself.
        return self._tokenizer.encode_parts(parts, False)


def encode_document(
    document: Document,
    encoder: Encoder,
    where: str,
    special: bool = False,
    encode: Callable[[str], list[int]] | None = None,
) -> list[int]:
    """Return the tokens of a text or of a conversation.

    Args:
        document: The text.
        encoder: The model's encoder.
        where: The command and flag that name the text, for messages.
        special: Whether a text gets the model's start of a text.
        encode: A function that makes tokens of texts in place of the encoder's.

    Raises:
        ConfigError: The text cannot be tokenized.
    """
    try:
        if document.messages is not None:
            return encoder.encode_chat(document.messages, False)
        text = document.text or ""
        return encoder.encode(text, special) if encode is None else encode(text)
    except RequestError as error:
        raise ConfigError(
            f"{where} must hold texts that can be tokenized; got {error} in line {document.line}."
        ) from error


def start_tokens(encoder: Encoder) -> tuple[int, ...]:
    """Return the tokens that a model puts before every text."""
    with_start, alone = encoder.encode("a", True), encoder.encode("a", False)
    for length in range(len(with_start) - len(alone) + 1):
        if with_start[length:][: len(alone)] == alone:
            return tuple(with_start[:length])
    return ()
