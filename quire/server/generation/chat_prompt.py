"""From a chat request to what the engine is asked, for every route that holds conversations."""

from __future__ import annotations

from quire.protocol.chat_completion import ChatCompletionRequest
from quire.server.generation.generate import Submission, output_limit
from quire.server.generation.prompts import Conversation, PromptLimit, encode_conversation
from quire.server.generation.service import Service
from quire.server.generation.tool_use import AnswerReading, ToolUse, read_as


async def prepare_chat(
    service: Service, body: ChatCompletionRequest, response_id: str, param: str
) -> tuple[Submission, AnswerReading, str]:
    """Check, render and tokenize a conversation.

    Args:
        service: The served model.
        body: The request.
        response_id: The engine's ids derive from it.
        param: The request's field that holds the conversation, for errors.

    Returns:
        What the engine is asked, how its answers are read, and the role of the answer.

    Raises:
        RequestError: The request is wrong.
    """
    body.check()
    exclude = service.options.exclude_tools_when_tool_choice_none
    tool_use = ToolUse.of(body, service.formats, exclude)
    conversation = Conversation(
        body.messages,
        body.add_generation_prompt,
        body.continue_final_message,
        body.add_special_tokens,
        body.chat_template_kwargs,
        tool_use.prompted,
    )
    tokenizer = service.engine.tokenizer
    longest = PromptLimit(service.engine.max_model_len, param)
    token_ids = await encode_conversation(tokenizer, conversation, longest)
    limit = output_limit(service, body.output_limit, len(token_ids))
    defaults = service.engine.default_sampling_params
    params = body.sampling_params(defaults, limit, body.num_logprobs)
    reading = read_as(service.formats, tool_use, tokenizer, token_ids, params)
    submission = Submission(
        response_id=response_id,
        prompts=[token_ids],
        params=[params],
        param=param,
        priority=body.priority or 0,
        cache_salt=body.cache_salt,
    )
    return submission, reading, conversation.role
