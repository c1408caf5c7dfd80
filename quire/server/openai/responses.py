"""``POST /v1/responses``, and the routes of answers that were kept."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.core.errors import RequestError
from quire.core.outputs import CompletionOutput, RequestOutput
from quire.protocol.generation import CompletionTokensDetails
from quire.protocol.histories import with_systems_joined
from quire.protocol.openai.chat_completion import Message
from quire.protocol.openai.response_input import ResponseInput
from quire.protocol.openai.responses import ResponsesRequest
from quire.server.generation.answer_parser import AnswerParser
from quire.server.generation.endpoint import GenerationEndpoint
from quire.server.generation.generation_outputs import Outputs, Tally
from quire.server.generation.model_routes import ByModel
from quire.server.generation.prompts.chat_prompt import prepare_chat
from quire.server.generation.prompts.tool_use import AnswerReading
from quire.server.generation.response_store import ResponseStore, StoredResponse
from quire.server.generation.served_models import Models
from quire.server.generation.service import Service
from quire.server.generation.submission import ApiRequest, Submission
from quire.server.http.body import json_response
from quire.server.http.http_errors import ApiError
from quire.server.openai.input_items import list_input_items
from quire.server.openai.response_items import Event, OutputItems

#: Names of chat requests in errors, and what they are called here.
_NAMES = (
    (".function.", "."),
    (".function", ""),
    ("allowed_tools.", ""),
    ("response_format", "text.format"),
    ("max_completion_tokens", "max_output_tokens"),
    ("max_tokens", "max_output_tokens"),
)


class Responses(GenerationEndpoint[ResponsesRequest]):
    """The ASGI app of the route."""

    kind = ResponsesRequest
    id_prefix = "resp"
    _input: ResponseInput | None = None

    def unused_fields(self, body: ResponsesRequest) -> list[str]:
        body.check_include()
        left_out = self._read_input(body).left_out
        return [*super().unused_fields(body), *left_out]

    async def prepare(
        self, request: ApiRequest[ResponsesRequest]
    ) -> tuple[ResponseAnswer, Submission]:
        service, body = self.service, request.body
        if body.store and not service.shared.responses.keeps:
            raise RequestError("[store] this server keeps no responses; got true.", "store")
        messages = shown = self._earlier(request) + self._read_input(body).messages
        if body.instructions:
            shown = [Message(role="system", content=body.instructions), *messages]
        try:
            chat = request.with_body(body.chat_request(list(with_systems_joined(shown))))
            submission, reading, _ = await prepare_chat(service, chat, "input")
        except RequestError as error:
            raise _renamed(error) from error
        return ResponseAnswer(service, request, reading, messages), submission

    def _read_input(self, body: ResponsesRequest) -> ResponseInput:
        """Return the input of the one request that this endpoint is for, read once."""
        if self._input is None:
            kept = partial(self.service.shared.responses.item, self.client_id)
            self._input = body.read_input(self.service.pictures is not None, kept)
        return self._input

    def _earlier(self, request: ApiRequest[ResponsesRequest]) -> list[Message]:
        response_id, client = request.body.previous_response_id, request.client.client_id
        if response_id is None:
            return []
        store = self.service.shared.responses
        return find(store, client, response_id, "previous_response_id").messages()


def _renamed(error: RequestError) -> RequestError:
    """Return the error in the names of this route's fields."""
    text, param = str(error), error.param or ""
    if param.startswith("messages"):
        text, param = text.replace(param, "input"), "input"
    for chat, here in _NAMES:
        if chat in param:
            renamed = param.replace(chat, here)
            text, param = text.replace(param, renamed), renamed
    return type(error)(text, param or None)


def find(store: ResponseStore, client: str, response_id: str, param: str | None) -> StoredResponse:
    """Return a kept answer of ``client``.

    Raises:
        ApiError: 404, there is no such answer.
    """
    found = store.get(client, response_id)
    if found is None:
        raise ApiError(404, f"Response with id '{response_id[:80]}' not found.", param=param)
    return found


class ResponseAnswer:
    """Formats one answer, whole or streamed, and keeps it when it is complete.

    Args:
        service: The served model.
        request: The request that is answered.
        reading: The rules by which the text is split into reasoning, content and tool calls.
        messages: The conversation that is answered, without instructions.
    """

    def __init__(
        self,
        service: Service,
        request: ApiRequest[ResponsesRequest],
        reading: AnswerReading,
        messages: list[Message],
    ) -> None:
        self._service = service
        body = request.body
        self._reading = reading
        self._messages = messages
        self._client = request.client.client_id
        self._stored = body.store is not False and service.shared.responses.keeps
        self._items = OutputItems(reading.tool_parser, body.include_reasoning is not False)
        self._tally = Tally(reading)
        self._response = _echo(body, request.model, self._stored)

    def whole(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        """Return the whole answer."""
        (final,) = outputs
        self._tally.add(0, final)
        parser = self._reading.create_parser()
        text = final.outputs[0].text
        # Items stand in the order in which a stream would begin them.
        for piece in [text] if parser.plain else text:
            self._items.add(parser.read(piece, final=False))
        self._items.add(parser.read("", final=True))
        self._end(final.outputs[0], parser)
        return self._response

    async def events(self, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """Yield the stream's events."""
        writer = _EventWriter()
        parser = self._reading.create_parser()
        begun = False
        async with aclosing(outputs):
            async for _, output in outputs:
                self._tally.add(0, output)
                parts = []
                if not begun:
                    begun = True
                    parts = [
                        writer.event({"type": f"response.{name}", "response": self._response})
                        for name in ("created", "in_progress")
                    ]
                for completion in output.outputs:
                    parsed = parser.read(completion.text, output.finished)
                    parts += map(writer.event, self._items.add(parsed))
                if output.finished:
                    parts += map(writer.event, self._end(output.outputs[0], parser))
                    kind = f"response.{self._response['status']}"
                    parts.append(writer.event({"type": kind, "response": self._response}))
                if parts:
                    yield b"".join(parts)

    def _end(self, completion: CompletionOutput, parser: AnswerParser) -> list[Event]:
        """Complete the response; return the events that end its items."""
        complete = completion.finish_reason == "stop"
        events = self._items.finish(complete, parser.broken)
        self._response["output"] = self._items.items
        self._response["status"] = "completed" if complete else "incomplete"
        if complete:
            self._response["completed_at"] = int(time.time())
        else:
            self._response["incomplete_details"] = {"reason": _reason(completion)}
        self._response["usage"] = self._usage()
        if self._stored:
            body = msgspec.json.encode(self._response)
            conversation = [*self._messages, self._items.message()]
            stored = StoredResponse.create(body, conversation, self._items.items)
            self._service.shared.responses.put(self._client, self._response["id"], stored)
        return events

    def _usage(self) -> dict[str, Any]:
        counts = self._tally.usage(ended=True)
        return {
            "input_tokens": counts.prompt_tokens,
            "input_tokens_details": counts.prompt_tokens_details,
            "output_tokens": counts.completion_tokens,
            "output_tokens_details": counts.completion_tokens_details or CompletionTokensDetails(0),
            "total_tokens": counts.total_tokens,
        }


def _reason(completion: CompletionOutput) -> str:
    reason = completion.finish_reason
    return "max_output_tokens" if reason == "length" else str(reason)


def _echo(body: ResponsesRequest, model: str, stored: bool) -> dict[str, Any]:
    """Return a response that has begun: the request's settings, and no output."""
    form = None if body.text is None else body.text.format
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": body.effort, "summary": None},
        "store": stored,
        "temperature": body.temperature,
        "text": {"format": {"type": "text"} if form is None else form},
        "tool_choice": body.tool_choice or "auto",
        "tools": body.functions,
        "top_p": body.top_p,
        "truncation": "disabled",
        "usage": None,
    }


class _EventWriter:
    """Numbers the events of one stream."""

    def __init__(self) -> None:
        self._number = -1

    def event(self, event: Event) -> bytes:
        """Return one event as it is sent."""
        self._number += 1
        data = msgspec.json.encode({**event, "sequence_number": self._number})
        return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), data)


def routes(models: Models, store: ResponseStore) -> list[Route]:
    """Return the routes; ``store`` has the answers that were kept."""

    async def show(request: Request) -> Response:
        if request.query_params.get("stream", "false").lower() not in ("false", "0"):
            raise ApiError(400, "[stream] a kept response cannot be streamed.", param="stream")
        found = find(store, _client(request), request.path_params["id"], None)
        return json_response(found.body)

    async def show_input(request: Request) -> Response:
        response_id = request.path_params["id"]
        found = find(store, _client(request), response_id, None)
        return json_response(list_input_items(response_id, found, request.query_params))

    async def delete(request: Request) -> Response:
        response_id = request.path_params["id"]
        find(store, _client(request), response_id, None)
        store.delete(_client(request), response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    async def cancel(request: Request) -> Response:
        find(store, _client(request), request.path_params["id"], None)
        raise ApiError(
            400, "Only responses in the background can be cancelled, and there are none here."
        )

    return [
        Route("/v1/responses", ByModel(models, Responses), methods=["POST"]),
        Route("/v1/responses/{id}", show, methods=["GET"]),
        Route("/v1/responses/{id}", delete, methods=["DELETE"]),
        Route("/v1/responses/{id}/input_items", show_input, methods=["GET"]),
        Route("/v1/responses/{id}/cancel", cancel, methods=["POST"]),
    ]


def _client(request: Request) -> str:
    key = request.scope.get("api_key")
    return "" if key is None else str(key.client.client_id)
