"""From a chat request to what the engine is asked, for every route that holds conversations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.core.request import Picture
from quire.llm.pictures.placing import make_room
from quire.llm.pictures.sources import PictureSource, picture_sources
from quire.protocol.chat_completion import ChatCompletionRequest, Message
from quire.server.generation.prompts import Conversation, PromptLimit, encode_prompt
from quire.server.generation.reasoning_effort import effort_kwargs
from quire.server.generation.service import Service
from quire.server.generation.submission import ApiRequest, Submission
from quire.server.generation.tool_use import AnswerReading, ToolUse


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered conversation.

    Attributes:
        token_ids: What the model reads.
        tool_use: What it may call.
        role: Of the answer.
        sources: The pictures in it.
        starts: Where each of them begins.
    """

    token_ids: list[int]
    tool_use: ToolUse
    role: str
    sources: list[PictureSource]
    starts: list[int]


def read_conversation(
    service: Service, body: ChatCompletionRequest
) -> tuple[Conversation, ToolUse]:
    """Check a request; return what is rendered, and what may be called.

    Raises:
        RequestError: The request is wrong.
    """
    body.check()
    tool_use, template = ToolUse.create(body, service), service.engine.tokenizer.chat_template
    conversation = Conversation(
        body.messages,
        body.add_generation_prompt,
        body.continue_final_message,
        effort_kwargs(body.reasoning_effort, body.chat_template_kwargs, template),
        tool_use.prompted,
    )
    return conversation, tool_use


async def encode_chat(
    service: Service, body: ChatCompletionRequest, longest: PromptLimit | None = None
) -> ChatPrompt:
    """Check, render and tokenize a conversation.

    Args:
        service: The served model.
        body: The request.
        longest: How long the prompt may be; None for any length.

    Raises:
        RequestError: The request is wrong.
    """
    conversation, tool_use = read_conversation(service, body)
    tokenizer, special = service.engine.tokenizer, bool(body.add_special_tokens)
    token_ids = await encode_prompt(tokenizer, conversation, special, longest)
    token_ids, sources, starts = room_for_pictures(service, body.messages, token_ids)
    return ChatPrompt(token_ids, tool_use, conversation.role, sources, starts)


def room_for_pictures(
    service: Service, messages: Sequence[Message], token_ids: list[int]
) -> tuple[list[int], list[PictureSource], list[int]]:
    """Return a conversation's tokens with as many for a picture as it has rows.

    Args:
        service: The served model.
        messages: The conversation.
        token_ids: It, rendered, with one token for a picture.

    Returns:
        The tokens, the pictures and where each begins.

    Raises:
        RequestError: There are too many pictures, or the prompt does not show them.
    """
    pictures = service.pictures
    if pictures is None:
        return token_ids, [], []  # a template of text has refused them
    sources = picture_sources(
        (f"messages[{index}].content", message.content) for index, message in enumerate(messages)
    )
    if not sources:
        return token_ids, [], []
    pictures.check_count(sources)
    made, starts = make_room(token_ids, len(sources), pictures.vision)
    return made, sources, starts


async def _read_pictures(
    service: Service, request: ApiRequest[ChatCompletionRequest], prompt: ChatPrompt
) -> list[Picture]:
    """Return the pictures of a prompt; those of one that is too long anyway are not read."""
    pictures = service.pictures
    too_long = len(prompt.token_ids) > service.engine.max_model_len
    if pictures is None or not prompt.sources or too_long:
        return []
    client_id = request.client.client_id
    return await pictures.read(prompt.sources, prompt.starts, client_id, request.deadline)


async def prepare_chat(
    service: Service,
    request: ApiRequest[ChatCompletionRequest],
    param: str = "messages",
    *,
    clamped: bool = False,
) -> tuple[Submission, AnswerReading, str]:
    """Turn a conversation into what the engine is asked.

    Args:
        service: The served model.
        request: The request.
        param: The field that holds the conversation, for errors.
        clamped: The output limit is lowered to what the context has room for.

    Returns:
        What the engine is asked, how its answers are read, and the role of the answer.

    Raises:
        RequestError: The request is wrong.
    """
    body = request.body
    longest = PromptLimit(service.engine.max_model_len, param)
    prompt = await encode_chat(service, body, longest)
    token_ids = prompt.token_ids
    reading = AnswerReading.create(body, service, prompt.tool_use, token_ids)
    settings = reading.sampling_settings(body.constraint())
    limit = service.output_limit(body.output_limit, len(token_ids), clamped)
    defaults = service.engine.default_sampling_params
    params = body.sampling_params(defaults, limit, body.num_logprobs, **settings)
    pictures = await _read_pictures(service, request, prompt)
    submission = Submission.create(request, param, [(token_ids, params)], pictures)
    return submission, reading, prompt.role
