"""Anthropic's routes: ``/v1/messages``, ``/v1/messages/count_tokens``, and about the models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from quire.core.errors import PromptTooLongError, RequestError
from quire.protocol.anthropic import (
    AnthropicModel,
    AnthropicModelList,
    AnthropicPrompt,
    AnthropicRequest,
    TokenCount,
)
from quire.server.compat.anthropic_answer import AnthropicAnswer
from quire.server.compat.ollama_models import stamp
from quire.server.generation.by_model import ByModel, KnownModel, Models, post_route
from quire.server.generation.chat_prompt import encode_chat, prepare_chat
from quire.server.generation.endpoint import GenerationEndpoint, errors_in_sent_names
from quire.server.generation.reasoning_effort import has_effect
from quire.server.generation.service import Service, meant_name, no_such_model
from quire.server.generation.submission import ApiRequest, Submission
from quire.server.http.body import Fields, json_response, read_fields
from quire.server.http.errors import ANTHROPIC_HEADER, ApiError
from quire.server.http.sse import ANTHROPIC_EVENTS

#: Parts of the names of chat requests in errors, and what they are called here.
_NAMES = (
    (".function.parameters", ".input_schema"),
    (".function.", "."),
    (".function", ""),
)
#: Models on a page, by default and at most.
PAGE, MAX_PAGE = 20, 1000


class AnthropicMessages(GenerationEndpoint[AnthropicRequest]):
    """What the route does."""

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
            chat = request.with_body(body.chat_request())
            submission, reading, _ = await prepare_chat(service, chat, clamped=True)
            (asked,) = submission.engine_requests
            if len(asked.prompt_token_ids) >= service.engine.max_model_len:
                raise _too_long(service, len(asked.prompt_token_ids))
        clamped = (asked.params.max_tokens or 0) < body.max_tokens
        return AnthropicAnswer(request, reading, clamped), submission


def without_effect(service: Service, body: AnthropicPrompt) -> list[str]:
    """Return the fields of a request that do nothing for the served model."""
    template = service.engine.tokenizer.chat_template
    found = [name for name, effort in body.efforts() if not has_effect(effort, template)]
    thinks = service.formats.reasoning is not None
    return found + body.without_effect() + (["thinking"] if body.thinks and not thinks else [])


@contextmanager
def errors_in_this_shape(service: Service) -> Iterator[None]:
    """Have the errors of a chat request speak of the fields of these routes."""
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


class AnthropicRoute(Route):
    """A route that only requests of Anthropic's clients take; others go on to the next."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Look at the header that all these clients send."""
        theirs = any(name == ANTHROPIC_HEADER for name, _ in scope["headers"])
        return super().matches(scope) if theirs else (Match.NONE, {})


def routes(models: Models) -> list[Route]:
    """Return the routes; those about models must stand before OpenAI's."""

    async def count_tokens(service: Service, request: Request, fields: Fields) -> Response:
        def unused(body: AnthropicPrompt) -> list[str]:
            return without_effect(service, body)

        body, headers = read_fields(fields, AnthropicPrompt, service.options.strict_params, unused)
        service.resolve_model(body.model)
        with errors_in_sent_names(body), errors_in_this_shape(service):
            prompt = await encode_chat(service, body.chat_request())
        return json_response(TokenCount(len(prompt.token_ids)), headers)

    async def list_models(request: Request) -> Response:
        found = [_model(model, name) for model in models.known() for name in model.names]
        return json_response(_page(request, found))

    async def show_model(request: Request) -> Response:
        name = request.path_params["model"]
        for model in models.known():
            meant = meant_name(name, model.config.model)
            if meant is not None:
                return json_response(_model(model, meant))
        raise no_such_model(name)

    return [
        Route("/v1/messages", ByModel(models, AnthropicMessages), methods=["POST"]),
        post_route(models, "/v1/messages/count_tokens", count_tokens),
        AnthropicRoute("/v1/models", list_models, methods=["GET"]),
        AnthropicRoute("/v1/models/{model:path}", show_model, methods=["GET"]),
    ]


def _model(model: KnownModel, name: str) -> AnthropicModel:
    service = model.service
    longest = None if service is None else service.engine.max_model_len
    return AnthropicModel(
        id=name,
        display_name=name,
        created_at=stamp(0 if service is None else service.created),
        max_input_tokens=longest,
        max_tokens=longest,
    )


def _page(request: Request, models: list[AnthropicModel]) -> AnthropicModelList:
    """Return the part of a list that a request asks for.

    Raises:
        ApiError: 400, it names no model of the list, or no number.
    """
    asked = request.query_params
    limit = asked.get("limit", str(PAGE))
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:5]) <= MAX_PAGE):
        raise ApiError(400, f"[limit] must be 1 to {MAX_PAGE}; got {limit[:40]!a}.", param="limit")
    names = [model.id for model in models]
    for field in ("after_id", "before_id"):
        name = asked.get(field)
        if name is not None and name not in names:
            raise ApiError(400, f"[{field}] must be a model; got {name[:80]!a}.", param=field)
    first = names.index(asked["after_id"]) + 1 if "after_id" in asked else 0
    end = names.index(asked["before_id"]) if "before_id" in asked else len(models)
    found = models[first:end]
    size = int(limit)
    shown = found[-size:] if "before_id" in asked and "after_id" not in asked else found[:size]
    return AnthropicModelList(
        data=shown,
        has_more=len(shown) < len(found),
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
    )
