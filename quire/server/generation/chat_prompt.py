"""From a chat request to what the engine is asked, for every route that holds conversations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.core.request import Picture
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
        token_ids: What the model reads, with a mark for each picture.
        tool_use: What it may call.
        role: Of the answer.
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
        longest: How long the prompt may be; None for any length.
        client_id: Clients take turns.

    Raises:
        RequestError: The request is wrong.
        CapacityError: Too many texts of the client wait.
    """
    conversation, tool_use = read_conversation(service, body)
    tokenizer, special = service.engine.tokenizer, bool(body.add_special_tokens)
    token_ids = await encode_prompt(tokenizer, conversation, special, longest, client_id)
    sources = pictures_of(service, body.messages)
    return ChatPrompt(token_ids, tool_use, conversation.role, sources)


def pictures_of(service: Service, messages: Sequence[Message]) -> list[PictureSource]:
    """Return the pictures of a conversation.

    Raises:
        RequestError: There are too many.
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
    """Return a prompt with its pictures written out, and these.

    Those of a prompt that is too long anyway are not read.

    Args:
        service: The served model.
        token_ids: With one mark for each picture.
        sources: Of the pictures.
        client_id, deadline: As of :meth:`~quire.llm.pictures.reader.PictureReader.read`.

    Raises:
        RequestError: The prompt does not show that many, or one cannot be read.
        CapacityError: There is too much to read.
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
    """Return a prompt with its pictures written out; they are read only where sizes tell.

    Raises:
        RequestError, CapacityError: As of :func:`read_pictures`.
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
