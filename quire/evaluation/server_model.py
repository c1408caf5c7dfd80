"""A running server as what is judged: OpenAI's completions route, which echoes prompts.

It answers with the log-probabilities of a prompt's own tokens where ``echo`` and ``logprobs`` are
asked for, as this server, vLLM's and others do. How requests are sent is the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from quire.core.errors import QuireError
from quire.evaluation.windows import Window

#: Sends a body to a path and returns the JSON of the answer.
Post = Callable[[str, dict[str, Any]], Any]
#: Most tokens and prompts of a request, unless one window alone is longer.
REQUEST_TOKENS, REQUEST_PROMPTS = 4096, 32


class ServerEncoder:
    """The server's own tokenizer, at ``/tokenize`` in vLLM's shape.

    Args:
        post: A function that sends a request.
        model: The name that is asked for.
    """

    def __init__(self, post: Post, model: str) -> None:
        self._post, self._model = post, model
        self._max_model_len: int | None = None

    @property
    def max_tokens(self) -> int | None:
        """Tokens of the longest window, if the server has said: it makes one token more."""
        return None if self._max_model_len is None else self._max_model_len - 1

    def encode(self, text: str, special: bool) -> list[int]:
        """Return a text's tokens; see :class:`~quire.evaluation.scorer.Encoder`."""
        return self._ask({"prompt": text, "add_special_tokens": special})

    def encode_after(self, text: str) -> list[int]:
        """Return the tokens of a text by itself: servers have no other way."""
        return self.encode(text, False)

    def encode_chat(self, messages: Sequence[dict[str, Any]], to_answer: bool) -> list[int]:
        """Return a conversation's tokens; see the protocol."""
        return self._ask({"messages": list(messages), "add_generation_prompt": to_answer})

    def _ask(self, fields: dict[str, Any]) -> list[int]:
        try:
            answer = self._post("/tokenize", {"model": self._model, **fields})
            tokens, limit = answer["tokens"], answer.get("max_model_len")
            if not all(type(token) is int for token in tokens):
                raise TypeError("tokens that are no ids")
        except (QuireError, KeyError, TypeError, AttributeError) as error:
            told = str(error).rstrip(".")
            raise QuireError(
                f"[eval] the server must make tokens of texts at /tokenize; got {told}. Give "
                "--tokenizer with the model's folder or hub id."
            ) from error
        if isinstance(limit, int):
            self._max_model_len = limit
        return list(tokens)


class ServerModel:
    """Scores windows by a server.

    Args:
        post: A function that sends a request.
        model: The name that is asked for.
    """

    def __init__(self, post: Post, model: str) -> None:
        self._post, self._model = post, model

    def losses(
        self, windows: Sequence[Window], on_tokens: Callable[[int], None]
    ) -> Iterator[np.ndarray]:
        """Yield the losses of each window's counted tokens, (count,) float64 nats, in order.

        Raises:
            QuireError: The server fails, or gives no log-probabilities of prompts.
        """
        for group in _groups(windows):
            body = {
                "model": self._model,
                "prompt": [window.token_ids.tolist() for window in group],
                "max_tokens": 1,  # a server that takes 0 takes 1 as well
                "temperature": 0,
                "echo": True,
                "logprobs": 1,
            }
            for window, choice in zip(
                group, _choices(self._post("/v1/completions", body), len(group)), strict=True
            ):
                yield _losses(choice, window)
                on_tokens(len(window.token_ids))


def _groups(windows: Sequence[Window]) -> Iterator[list[Window]]:
    """Yield the windows of each request."""
    group: list[Window] = []
    num_tokens = 0
    for window in windows:
        length = len(window.token_ids)
        if group and (num_tokens + length > REQUEST_TOKENS or len(group) == REQUEST_PROMPTS):
            yield group
            group, num_tokens = [], 0
        group.append(window)
        num_tokens += length
    if group:
        yield group


def _choices(answer: Any, count: int) -> list[dict[str, Any]]:
    try:
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        if [choice["index"] for choice in choices] == list(range(count)):
            return choices
        found = f"{len(choices)} of {count} choices"
    except (KeyError, TypeError) as error:
        found = f"an answer without {error}"
    raise QuireError(f"[eval] the server must answer every prompt; got {found}.")


def _losses(choice: dict[str, Any], window: Window) -> np.ndarray:
    """Return the losses of a window's counted tokens by its echo."""
    logprobs = choice.get("logprobs")
    values = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    counted = values[window.first : len(window.token_ids)] if isinstance(values, list) else []
    # A server that echoes nothing has the log-probability of the one new token.
    if len(counted) != window.num_counted or not all(
        isinstance(value, int | float) and math.isfinite(value) for value in counted
    ):
        raise QuireError(
            "[eval] the server must give the log-probability of each token of a prompt (echo with "
            f"logprobs); got {len(counted)} numbers for {window.num_counted} tokens. Judge the "
            "model without a server, or take a server that does."
        )
    return -np.array(counted, np.float64)
