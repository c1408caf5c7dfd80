"""Anthropic's routes: ``/v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.core.errors import PromptTooLongError, RequestError
from quire.protocol.anthropic.anthropic import (
    AnthropicPrompt,
    AnthropicRequest,
    TokenCount,
)
from quire.protocol.openai.chat_completion import ChatCompletionRequest
from quire.server.access.authentication import client_of
from quire.server.compat.anthropic_answer import AnthropicAnswer
from quire.server.generation.endpoint import GenerationEndpoint, errors_in_sent_names
from quire.server.generation.model_routes import ByModel, post_route
from quire.server.generation.prompts.chat_prompt import encode_chat, prepare_chat, written_out
from quire.server.generation.prompts.reasoning_effort import idle_efforts
from quire.server.generation.prompts.tokenized_prompts import MARK_CHARACTERS
from quire.server.generation.served_models import Models
from quire.server.generation.service import Service
from quire.server.generation.submission import ApiRequest, Submission
from quire.server.http.body import Fields, json_response, read_fields_in_turn
from quire.server.http.sse import ANTHROPIC_EVENTS
from quire.text.offloading import run_by_size

#: Parts of the names of chat requests in errors, and what they are called here.
_NAMES = (
    (".function.parameters", ".input_schema"),
    (".function.", "."),
    (".function", ""),
    (".image_url", ".source"),
)


class AnthropicMessages(GenerationEndpoint[AnthropicRequest]):
    """The ASGI app of ``/v1/messages``, for one model."""

    kind = AnthropicRequest
    id_prefix = "msg"
    form = ANTHROPIC_EVENTS

    def unused_fields(self, body: AnthropicRequest) -> list[str]:
        return without_effect(self.service, body)

    async def prepare(
        self, request: ApiRequest[AnthropicRequest]
    ) -> tuple[AnthropicAnswer, Submission]:
        service, body = self.service, request.body
        with errors_in_this_shape(service):
            chat = request.with_body(await _chat_request(service, body, request.client.client_id))
            submission, reading, _ = await prepare_chat(service, chat, clamped=True)
            (asked,) = submission.engine_requests
            if len(asked.prompt_token_ids) >= service.engine.max_model_len:
                raise _too_long(service, len(asked.prompt_token_ids))
        clamped = (asked.params.max_tokens or 0) < body.max_tokens
        return AnthropicAnswer(request, reading, clamped), submission


async def _chat_request(
    service: Service, body: AnthropicPrompt, client_id: str
) -> ChatCompletionRequest:
    """Return the chat request that a body means; many blocks do not hold up the event loop."""
    work = partial(body.chat_request, service.pictures is not None)
    return await run_by_size(MARK_CHARACTERS * body.num_blocks, client_id, work)


def without_effect(service: Service, body: AnthropicPrompt) -> list[str]:
    """Return the fields of a request that do nothing for the served model."""
    thinks = service.formats.reasoning is not None
    found = idle_efforts(service, body)
    return found + body.without_effect() + (["thinking"] if body.thinks and not thinks else [])


@contextmanager
def errors_in_this_shape(service: Service) -> Iterator[None]:
    """Rewrite the errors of a chat request so that they name the fields of these routes."""
    try:
        yield
    except PromptTooLongError as error:
        if error.min_prompt_tokens is None:
            raise
        raise _too_long(service, f"at least {error.min_prompt_tokens}") from error
    except RequestError as error:
        text, param = str(error), error.param or ""
        for chat, here in _NAMES:
            renamed = param.replace(chat, here)
            text, param = text.replace(param, renamed) if param else text, renamed
        raise type(error)(text, param or None) from error


def _too_long(service: Service, num_tokens: int | str) -> PromptTooLongError:
    """Return the error that has agents shorten the conversation: they look for these words."""
    limit = service.engine.max_model_len - 1
    text = f"prompt is too long: {num_tokens} tokens > {limit} maximum"
    return PromptTooLongError(text, "messages")


def routes(models: Models) -> list[Route]:
    """Return the routes."""

    async def count_tokens(service: Service, request: Request, fields: Fields) -> Response:
        def unused(body: AnthropicPrompt) -> list[str]:
            return without_effect(service, body)

        client_id = client_of(request.scope.get("api_key")).client_id
        body, headers = await read_fields_in_turn(
            client_id, fields, AnthropicPrompt, service.options.strict_params, unused
        )
        service.resolve_model(body.model)
        with errors_in_sent_names(body), errors_in_this_shape(service):
            chat = await _chat_request(service, body, client_id)
            prompt = await encode_chat(service, chat, None, client_id)
            token_ids = await written_out(service, prompt.token_ids, prompt.sources)
        return json_response(TokenCount(len(token_ids)), headers)

    return [
        Route("/v1/messages", ByModel(models, AnthropicMessages), methods=["POST"]),
        post_route(models, "/v1/messages/count_tokens", count_tokens),
    ]
