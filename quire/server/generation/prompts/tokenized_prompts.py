"""Texts and conversations to token ids, without holding up the streams of others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quire.core.errors import PromptTooLongError, RequestError
from quire.protocol.openai.chat_completion import Message
from quire.protocol.tools import Tool
from quire.text.offloading import INLINE_CHARACTERS, run_by_size, run_template
from quire.text.tokenizers.tokenizer import CHARACTERS_PER_TOKEN, CUT_TOKENS, Tokenizer

#: Variables of the template that are fields of the request.
RESERVED_KWARGS = ("messages", "tools", "add_generation_prompt", "continue_final_message")
#: What a template writes around a message, about.
MARK_CHARACTERS = 32
#: What a model is told that must call a function and whose template cannot show any: it stands
#: before the first message, whatever its role, because some templates take no system message.
TOOLS_TEXT = (
    "Answer with calls of these functions, each as <tool_call> "
    '{"name": ..., "arguments": {...}} </tool_call>:'
)


@dataclass(frozen=True, slots=True)
class PromptLimit:
    """The longest prompt that a request may have.

    Attributes:
        num_tokens: The context's length in tokens; one of them is for the output.
        param: The request's field that holds the prompt.
    """

    num_tokens: int
    param: str

    def check(self, tokenizer: Tokenizer, parts: Sequence[str]) -> None:
        """Refuse a text whose beginning is too long already, without tokenizing all of it.

        Args:
            tokenizer: The served model's tokenizer.
            parts: The text in parts, see :meth:`Tokenizer.encode_parts`.

        Raises:
            PromptTooLongError: The beginning alone is too long; has its tokens as the least count.
        """
        length = CHARACTERS_PER_TOKEN * (self.num_tokens + 2 * CUT_TOKENS)
        whole = sum(map(len, parts))
        while length < whole:
            count = len(tokenizer.encode_parts(_beginning(parts, length), False)) - CUT_TOKENS
            if count >= self.num_tokens:
                raise PromptTooLongError(
                    f"This model's maximum context length is {self.num_tokens} tokens. However, "
                    f"you requested at least {count + 1} tokens (at least {count} in the "
                    f"{self.param}). Please reduce the length of the {self.param}.",
                    self.param,
                    count,
                )
            length *= 2  # it has long tokens


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages and how they are rendered.

    Attributes:
        messages: The messages in order.
        add_generation_prompt: Whether the prompt ends with the header of an assistant's message.
        continue_final_message: Whether the last message is left open instead.
        kwargs: More variables of the template.
        tools: Tools that the prompt shows to the model.
    """

    messages: Sequence[Message]
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    kwargs: dict[str, Any] | None
    tools: Sequence[Tool] | None = None

    def __len__(self) -> int:
        """Characters of what is rendered, roughly, or a number that counts as long.

        Each message has marks around it. Lists and objects (parts, tools, calls) count as long
        whatever they hold.
        """
        size = MARK_CHARACTERS * len(self.messages)
        size += _num_characters(self.tools or None)
        size += sum(map(_num_characters, (self.kwargs or {}).values()))
        if size >= INLINE_CHARACTERS:
            return size
        return size + sum(
            _num_characters(value)
            for message in self.messages
            for value in (
                message.content,
                message.refusal,
                message.name,
                message.reasoning,
                message.reasoning_content,
                message.tool_calls or None,
                message.tool_call_id,
            )
        )

    @property
    def role(self) -> str:
        """The role of the message that is generated."""
        opens = self.add_generation_prompt is False or self.continue_final_message
        return self.messages[-1].role if opens else "assistant"

    def render(self, tokenizer: Tokenizer) -> list[str]:
        """Return the prompt text in parts, see :meth:`Tokenizer.encode_parts`.

        Raises:
            RequestError: The model has no template, or it refuses the conversation.
        """
        kwargs = self.kwargs or {}
        for name in RESERVED_KWARGS:
            if name in kwargs:
                raise RequestError(
                    f"[chat_template_kwargs] must not hold {name}; it is a field of its own.",
                    "chat_template_kwargs",
                )
        add_generation_prompt = self.add_generation_prompt
        if add_generation_prompt is None:
            add_generation_prompt = not self.continue_final_message
        messages = [message.for_template(index) for index, message in enumerate(self.messages)]
        tools = [tool.for_template() for tool in self.tools] if self.tools else None
        template = tokenizer.chat_template
        if tools and messages and template is not None and not template.shows_tools:
            messages[0]["content"] = _told_of(tools, messages[0]["content"])
            tools = None
        return tokenizer.render_chat(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=bool(self.continue_final_message),
            tools=tools,
            **kwargs,
        )


def _beginning(parts: Sequence[str], length: int) -> list[str]:
    """Return the first ``length`` characters of a text in parts, of at least one part."""
    found: list[str] = []
    for part in parts:
        found.append(part[:length])
        length -= len(part)
        if length <= 0:
            break
    return found


def _num_characters(value: Any) -> int:
    """Return about how long a value is in a rendered text."""
    if isinstance(value, str):
        return len(value)
    return 0 if value is None or isinstance(value, int | float) else INLINE_CHARACTERS


def _told_of(tools: list[dict[str, Any]], content: Any) -> Any:
    """Put tools before a message's content, for a template that has no place for them."""
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = f"{TOOLS_TEXT}\n{listed}\n"
    if isinstance(content, list):
        return [{"type": "text", "text": text}, *content]
    return f"{text}\n{content}" if isinstance(content, str) else text


async def encode_pairs(
    tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], limit: PromptLimit, client_id: str
) -> list[tuple[list[int], int | None]]:
    """Return the token ids of pairs of texts; see :meth:`Tokenizer.encode_pair`.

    Raises:
        PromptTooLongError: One pair is so far beyond ``limit`` that its beginning shows it.
        RequestError: A text is not valid.
        CapacityError: The client's waiting texts reach a limit.
    """

    def encode(pair: tuple[str, str]) -> tuple[list[int], int | None]:
        limit.check(tokenizer, pair)
        return tokenizer.encode_pair(*pair)

    size = sum(len(text) + MARK_CHARACTERS for pair in pairs for text in pair)
    size = tokenizer.work_size(size)
    return await run_by_size(size, client_id, lambda: list(map(encode, pairs)))


async def encode_beginnings(
    tokenizer: Tokenizer, texts: Sequence[str], num_tokens: int, client_id: str
) -> list[list[int]]:
    """Return the token ids of texts; of each as :meth:`Tokenizer.encode_beginning`."""
    size = sum(len(text) + MARK_CHARACTERS for text in texts)
    size = tokenizer.work_size(size)
    return await run_by_size(
        size, client_id, lambda: [tokenizer.encode_beginning(text, num_tokens) for text in texts]
    )


async def encode_texts(
    tokenizer: Tokenizer,
    texts: Sequence[str | Sequence[str]],
    add_special_tokens: bool,
    limit: PromptLimit | None,
    client_id: str,
) -> list[list[int]]:
    """Return the token ids of texts.

    Args:
        tokenizer: The served model's tokenizer.
        texts: Texts, each whole or in parts.
        add_special_tokens: Whether to add what the tokenizer adds to plain text; chat templates
            write it out.
        limit: The limit of each prompt; None for any length.
        client_id: The client's id; clients take turns.

    Raises:
        PromptTooLongError: One text is so far beyond ``limit`` that its beginning shows it.
        RequestError: A text is not valid.
        CapacityError: The client's waiting texts reach a limit.
    """

    def encode(parts: Sequence[str]) -> list[int]:
        if limit is not None:
            limit.check(tokenizer, parts)
        return tokenizer.encode_parts(parts, add_special_tokens)

    cut = [[text] if isinstance(text, str) else text for text in texts]
    size = sum(sum(map(len, parts)) + MARK_CHARACTERS for parts in cut)
    size = tokenizer.work_size(size)
    return await run_by_size(size, client_id, lambda: list(map(encode, cut)))


async def decode_texts(
    tokenizer: Tokenizer, prompts: Sequence[Sequence[int]], longest: int, client_id: str
) -> list[str]:
    """Return the texts of token ids; none of prompts with more than ``longest``."""
    shown = [ids if len(ids) <= longest else () for ids in prompts]
    size = sum(len(ids) + MARK_CHARACTERS for ids in shown)
    return await run_by_size(size, client_id, lambda: list(map(tokenizer.decode, shown)))


async def render(tokenizer: Tokenizer, conversation: Conversation, client_id: str) -> list[str]:
    """Return a prompt text in parts, without holding up an event loop.

    Raises:
        RequestError: The template fails, as in :meth:`Conversation.render`.
        CapacityError: The client's waiting texts reach a limit.
    """
    return await run_template(len(conversation), client_id, lambda: conversation.render(tokenizer))


async def encode_prompt(
    tokenizer: Tokenizer,
    prompt: str | Sequence[str] | Conversation,
    add_special_tokens: bool,
    limit: PromptLimit | None,
    client_id: str,
) -> list[int]:
    """Return the token ids of a text or a conversation; see :func:`encode_texts`.

    Raises:
        RequestError: The template fails, as in :meth:`Conversation.render`.
    """
    if isinstance(prompt, Conversation):
        prompt = await render(tokenizer, prompt, client_id)
    (ids,) = await encode_texts(tokenizer, [prompt], add_special_tokens, limit, client_id)
    return ids
