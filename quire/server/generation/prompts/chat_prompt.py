"""Chat requests turned into engine requests, for every route that holds conversations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.core.engine_request import Picture
from quire.llm.pictures.sources import PictureSource, picture_sources
from quire.protocol.openai.chat_completion import ChatCompletionRequest, Message
from quire.server.generation.prompts.reasoning_effort import effort_kwargs
from quire.server.generation.prompts.tokenized_prompts import (
    Conversation,
    PromptLimit,
    encode_prompt,
)
from quire.server.generation.prompts.tool_use import AnswerReading, ToolUse
from quire.server.generation.service import Service
from quire.server.generation.submission import ApiRequest, Submission


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered conversation.

    Attributes:
        token_ids: The prompt's token ids, with a mark for each picture.
        tool_use: The tools that the model may call, and how.
        role: Role of the message that answers.
        sources: The pictures in it.
    """

    token_ids: list[int]
    tool_use: ToolUse
    role: str
    sources: list[PictureSource]


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
        body.continues_last,
        effort_kwargs(body.effort, body.chat_template_kwargs, template),
        tool_use.prompted,
    )
    return conversation, tool_use


async def encode_chat(
    service: Service, body: ChatCompletionRequest, longest: PromptLimit | None, client_id: str
) -> ChatPrompt:
    """Check, render and tokenize a conversation.

    Args:
        service: The served model.
        body: The request.
        longest: The prompt's limit; None for any length.
        client_id: The client's id; clients take turns.

    Raises:
        RequestError: The request is wrong.
        CapacityError: The client's waiting texts reach a limit.
    """
    conversation, tool_use = read_conversation(service, body)
    tokenizer, special = service.engine.tokenizer, bool(body.add_special_tokens)
    token_ids = await encode_prompt(tokenizer, conversation, special, longest, client_id)
    sources = pictures_of(service, body.messages)
    return ChatPrompt(token_ids, tool_use, conversation.role, sources)


def pictures_of(service: Service, messages: Sequence[Message]) -> list[PictureSource]:
    """Return the pictures of a conversation.

    Raises:
        RequestError: The conversation has too many pictures.
    """
    if service.pictures is None:
        return []  # a template of text has refused them
    sources = picture_sources(
        (f"messages[{index}].content", message.content) for index, message in enumerate(messages)
    )
    service.pictures.check_count(sources)
    return sources


async def read_pictures(
    service: Service,
    token_ids: list[int],
    sources: Sequence[PictureSource],
    client_id: str = "",
    deadline: float | None = None,
) -> tuple[list[int], list[Picture]]:
    """Return a prompt with the pictures' tokens in place of their marks, and the pictures.

    Pictures of a prompt that is too long anyway are not read.

    Args:
        service: The served model.
        token_ids: The prompt's token ids, with one mark for each picture.
        sources: The sources of the pictures, in order.
        client_id, deadline: The same as in
            :meth:`~quire.llm.pictures.reader.PictureReader.read`.

    Raises:
        RequestError: The prompt does not show that many, or one cannot be read.
        CapacityError: The pictures that wait to be read reach a limit.
    """
    pictures = service.pictures
    if pictures is None or not sources:
        return token_ids, []
    least = pictures.least_prompt(token_ids, len(sources))
    if len(least) > service.engine.max_model_len:
        return least, []
    return pictures.place(token_ids, await pictures.read(sources, client_id, deadline))


async def written_out(
    service: Service, token_ids: list[int], sources: Sequence[PictureSource]
) -> list[int]:
    """Return a prompt with the pictures' tokens in place of their marks.

    Pictures are read only where the number of tokens depends on their sizes.

    Raises:
        RequestError, CapacityError: The same as in :func:`read_pictures`.
    """
    if service.pictures is None or not sources:
        return token_ids
    if service.pictures.vision.input.is_fixed:
        return service.pictures.least_prompt(token_ids, len(sources))
    return (await read_pictures(service, token_ids, sources))[0]


async def prepare_chat(
    service: Service,
    request: ApiRequest[ChatCompletionRequest],
    param: str = "messages",
    *,
    clamped: bool = False,
) -> tuple[Submission, AnswerReading, str]:
    """Turn a conversation into engine requests.

    Args:
        service: The served model.
        request: The request.
        param: The field that holds the conversation, for errors.
        clamped: Whether the output limit is lowered to what the context has room for.

    Returns:
        The engine's requests, how the answers are read, and the role of the answer.

    Raises:
        RequestError: The request is wrong.
    """
    body, client_id = request.body, request.client.client_id
    longest = PromptLimit(service.engine.max_model_len, param)
    prompt = await encode_chat(service, body, longest, client_id)
    token_ids, pictures = await read_pictures(
        service, prompt.token_ids, prompt.sources, client_id, request.deadline
    )
    reading = AnswerReading.create(body, service, prompt.tool_use, token_ids)
    settings = reading.sampling_settings(body.constraint())
    limit = service.output_limit(body.output_limit, len(token_ids), clamped)
    defaults = service.engine.default_sampling_params
    params = body.sampling_params(defaults, limit, body.num_logprobs, **settings)
    submission = Submission.create(request, param, [(token_ids, params)], pictures)
    return submission, reading, prompt.role
