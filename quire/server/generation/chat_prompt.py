"""From a chat request to what the engine is asked, for every route that holds conversations."""

from __future__ import annotations

from dataclasses import dataclass

from quire.protocol.chat_completion import ChatCompletionRequest
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
    """

    token_ids: list[int]
    tool_use: ToolUse
    role: str


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
    return ChatPrompt(token_ids, tool_use, conversation.role)


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
    submission = Submission.create(request, param, [(token_ids, params)])
    return submission, reading, prompt.role
