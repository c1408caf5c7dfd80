"""Log-probabilities in the forms of the two completion endpoints."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quire.core.outputs import Logprob
from quire.protocol.openai.chat_completion import ChatLogprobs, ChosenTokenLogprob, TokenLogprob
from quire.protocol.openai.completion import CompletionLogprobs
from quire.server.generation.large_answers import written
from quire.text.tokenizers.tokenizer import Tokenizer

#: JSON has no infinity; vLLM sends this for tokens that cannot occur.
LOWEST = -9999.0

Position = Mapping[int, Logprob]


class TokenNames:
    """The form in which tokens are written in answers.

    Args:
        tokenizer: The served model's tokenizer.
        as_token_ids: Whether to write ``token_id:7`` instead of the text.
    """

    def __init__(self, tokenizer: Tokenizer, as_token_ids: bool) -> None:
        self.tokenizer = tokenizer
        self._as_token_ids = as_token_ids

    def name(self, token_id: int) -> str:
        r"""Return a token's text; bytes that are part of a character are written ``\xe2``."""
        text = self.tokenizer.token_bytes(token_id).decode(errors="backslashreplace")
        # A model may have ids that its tokenizer lacks; they stand for no text.
        return f"token_id:{token_id}" if self._as_token_ids or not text else text


def chat_logprobs(
    names: TokenNames, token_ids: Sequence[int], positions: Sequence[Position], num_top: int
) -> ChatLogprobs:
    """Return one entry per token with its ``num_top`` most likely alternatives; -1 is all."""
    return ChatLogprobs([written(one) for one in entries(names, token_ids, positions, num_top)])


def entries(
    names: TokenNames, token_ids: Sequence[int], positions: Sequence[Position], num_top: int
) -> Iterator[ChosenTokenLogprob]:
    """Yield the entries of :func:`chat_logprobs`."""
    end = None if num_top < 0 else num_top
    for token_id, position in zip(token_ids, positions, strict=True):
        yield ChosenTokenLogprob(
            *_entry(names, token_id, position[token_id]),
            [TokenLogprob(*_entry(names, i, x)) for i, x in _ranked(position)[:end]],
        )


def prompt_logprobs(
    names: TokenNames, positions: Sequence[Position | None]
) -> list[dict[int, dict[str, Any]] | None]:
    """Return vLLM's form: per prompt token an object by token id, null for the first."""
    return [
        None
        if position is None
        else written(
            {
                token_id: {
                    "logprob": max(entry.logprob, LOWEST),
                    "rank": entry.rank,
                    "decoded_token": names.name(token_id),
                }
                for token_id, entry in position.items()
            }
        )
        for position in positions
    ]


class CompletionLogprobWriter:
    """Writes the log-probabilities of one text piece by piece, and tracks its length.

    Args:
        names: The form in which tokens are written.
        skip_special_tokens: Whether special tokens are left out of the text and take no room in it.
    """

    def __init__(self, names: TokenNames, skip_special_tokens: bool) -> None:
        self._names = names
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def write(
        self, token_ids: Sequence[int], positions: Sequence[Position | None]
    ) -> CompletionLogprobs:
        """Return the lists for the next tokens; a position of None is the prompt's first."""
        lists = CompletionLogprobs(text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[])
        for token_id, position in zip(token_ids, positions, strict=True):
            lists.text_offset.append(self._offset)
            lists.tokens.append(self._names.name(token_id))
            if position is None:
                lists.token_logprobs.append(None)
                lists.top_logprobs.append(None)
            else:
                lists.token_logprobs.append(max(position[token_id].logprob, LOWEST))
                top = {
                    self._names.name(other): max(entry.logprob, LOWEST)
                    for other, entry in _ranked(position)
                }
                lists.top_logprobs.append(written(top))
            tokenizer = self._names.tokenizer
            if not (self._skip_special_tokens and tokenizer.is_special(token_id)):
                self._offset += len(self._decoder.decode(tokenizer.token_bytes(token_id)))
        return lists


def _entry(names: TokenNames, token_id: int, entry: Logprob) -> tuple[str, float, list[int]]:
    token_bytes = names.tokenizer.token_bytes(token_id)
    return names.name(token_id), max(entry.logprob, LOWEST), list(token_bytes)


def _ranked(position: Position) -> list[tuple[int, Logprob]]:
    return sorted(position.items(), key=lambda item: item[1].rank)
