"""Callers' prompts made into token ids; whether they fit is the engine's question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from quire.core.errors import RequestError
from quire.llm.engine_client import Prompt
from quire.text.tokenizers.tokenizer import Tokenizer


def tokenize_prompt(prompt: Prompt, tokenizer: Tokenizer) -> tuple[str | None, list[int]]:
    """Read a prompt: text, token ids, ``{"prompt": text}`` or ``{"prompt_token_ids": ids}``.

    A dict may hold both; the text is then only reported back.

    Returns:
        The text, None when token ids alone were given, and at least one token id.

    Raises:
        RequestError: The prompt has none of these forms, or is empty.
    """
    text, ids = _read_dict(prompt) if isinstance(prompt, Mapping) else (None, prompt)
    if ids is None or isinstance(ids, str):
        text = text if ids is None else ids
        if not isinstance(text, str):
            raise RequestError(f"[prompt] must be text; got {text!r:.80}.", "prompt")
        token_ids = tokenizer.encode(text)
    else:
        token_ids = _token_ids(ids)
    if not token_ids:
        raise RequestError(
            "[prompt] a prompt must hold at least one token; got none. Send some text.", "prompt"
        )
    return text, token_ids


def read_pair(tokenizer: Tokenizer, first: Prompt, second: Prompt) -> tuple[list[int], int | None]:
    """Return the token ids of two texts read together; as :meth:`Tokenizer.encode_pair`.

    Raises:
        RequestError: One of them is no text.
    """
    for text in (first, second):
        if not isinstance(text, str):
            raise RequestError(
                f"[score] a model that reads both texts together takes texts; got {text!r:.80}.",
                "data_1",
            )
    assert isinstance(first, str) and isinstance(second, str)
    return tokenizer.encode_pair(first, second)


def chat_prompt(
    messages: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, **options: Any
) -> Prompt:
    """Return the prompt that asks for the answer to a conversation.

    Args:
        messages: ``[{"role": ..., "content": ...}, ...]``.
        **options: Options of :meth:`quire.text.templates.chat_template.ChatTemplate.render`.

    Raises:
        RequestError: The model has no chat template, or it refuses the conversation.
    """
    parts = tokenizer.render_chat(messages, **options)
    # The template writes the special tokens out itself.
    return {"prompt": "".join(parts), "prompt_token_ids": tokenizer.encode_parts(parts, False)}


def _read_dict(prompt: Mapping[str, Any]) -> tuple[Any, Any]:
    text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    surplus = set(prompt) - {"prompt_token_ids", "prompt", "pictures"}
    if surplus or (text is None and ids is None):
        raise RequestError(
            "[prompt] a dict must hold prompt or prompt_token_ids and nothing else; got "
            f"{', '.join(sorted(map(str, prompt))) or 'nothing'}."
            f"{' Messages of roles are for chat.' if 'role' in prompt else ''}",
            "prompt",
        )
    return text, ids


def _token_ids(prompt: Any) -> list[int]:
    try:
        ids: list[Any] = [None] if isinstance(prompt, bytes) else list(prompt)
    except TypeError:
        ids = [None]
    # bool is an integer to Python and a mistake to us.
    if not all(isinstance(i, Integral) and not isinstance(i, bool) for i in ids):
        raise RequestError(
            "[prompt] a prompt must be text, a list of token ids, or a dict with prompt or "
            f"prompt_token_ids; got {prompt!r:.80}.",
            "prompt",
        )
    return [int(i) for i in ids]
