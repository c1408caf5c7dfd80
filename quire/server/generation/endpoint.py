"""The steps of every endpoint that uses the engine: read, prepare, answer whole or streamed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from starlette.types import Receive, Scope, Send

from quire.core.errors import RequestError
from quire.core.outputs import RequestOutput
from quire.protocol.generation import GenerationRequest
from quire.protocol.request_body import RequestBody
from quire.server.access.authentication import ApiKey, client_of
from quire.server.generation.generate import generate
from quire.server.generation.generation_outputs import Outputs, collect
from quire.server.generation.large_answers import (
    characters_of,
    encode_in_parts,
    free,
    positions_of,
    write_by_size,
)
from quire.server.generation.pacing import paced
from quire.server.generation.prompts.reasoning_effort import idle_efforts
from quire.server.generation.service import Service
from quire.server.generation.submission import ApiRequest, Submission
from quire.server.http.body import JsonRequest, json_response, read_fields_in_turn, read_timeout
from quire.server.http.client_disconnects import cancel_on_disconnect
from quire.server.http.http_errors import renamed
from quire.server.http.sse import OPENAI_EVENTS, StreamForm, send_events

T = TypeVar("T", bound=RequestBody)


class AnswerFormat(Protocol):
    """Formats the engine's outputs for one request."""

    def whole(self, outputs: list[RequestOutput]) -> Any:
        """Return the whole answer to prompts with these outputs, a value for JSON."""
        ...

    def events(self, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """Yield the stream's events, all but what ends every stream."""
        ...


class WholeAnswer(ABC):
    """An answer to requests that cannot ask for a stream."""

    @abstractmethod
    def whole(self, outputs: list[RequestOutput]) -> Any:
        """Return the whole answer, as in :meth:`AnswerFormat.whole`."""

    def events(self, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """Fail: such an answer is never streamed."""
        raise AssertionError(f"{type(self).__name__} is never streamed")


class Reader(Protocol):
    """Reads the body of an ASGI request."""

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[JsonRequest]:
        """See :meth:`JsonRequest.receive`."""
        ...


class GenerationEndpoint(ABC, Generic[T]):
    """The ASGI app of one route, for one model.

    Attributes:
        kind: Struct of the request's body.
        id_prefix: First part of an answer's id.
        form: Format of the streams.
        read: The function that receives and reads a request.
        client_id: The id of the client whose request is answered.
    """

    kind: type[T]
    id_prefix: str
    form: StreamForm = OPENAI_EVENTS
    read: ClassVar[Reader] = JsonRequest.receive
    client_id: str = ""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def respond(self, received: JsonRequest) -> None:
        """Answer a request whose body has been read; a client that goes away ends it."""
        http, options = received.http, self.service.options
        key: ApiKey | None = http.scope.get("api_key")
        self.client_id = client_of(key).client_id
        body, headers = await read_fields_in_turn(
            self.client_id,
            received.fields,
            self.kind,
            options.strict_params,
            self.unused_fields,
        )
        body = self.resolve(body, http.path_params)
        timeout, record = body.timeout or read_timeout(http), http.scope["record"]
        request = ApiRequest.accept(self.service, self.id_prefix, body, record, key, timeout)
        at_once = self.answer_at_once(request)
        if at_once is not None:
            await received.answer(json_response(at_once, headers))
            return
        with errors_in_sent_names(request.body):
            async with cancel_on_disconnect(http.receive):
                answer, submission = await self.prepare(request)
                outputs = self.outputs(request, submission)
                if request.stream:
                    events = answer.events(paced(outputs, request.stream_interval))
                    events = _in_sent_names(request.body, events)
                    interval = options.sse_keep_alive_interval
                    await send_events(received.send, events, headers, interval, self.form)
                else:
                    found = await collect(outputs)
                    whole = await write_by_size(
                        positions_of(found),
                        request.client.client_id,
                        lambda: _write(answer, found),
                        characters_of(found),
                    )
                    await received.answer(json_response(whole, headers))

    def resolve(self, body: T, path_params: Mapping[str, Any]) -> T:
        """Return ``body`` with what the route says besides."""
        return body

    def unused_fields(self, body: T) -> list[str]:
        """Return the fields of ``body`` that do nothing for the served model."""
        return list(dict.fromkeys(idle_efforts(self.service, body) + body.without_effect()))

    def answer_at_once(self, request: ApiRequest[T]) -> Any | None:
        """Return the answer to a request that asks for no computing; None for all others."""
        return None

    def outputs(self, request: ApiRequest[T], submission: Submission) -> Outputs:
        """Return what the engine makes of what it is asked, as far as the request wants it."""
        return generate(self.service, submission)

    @abstractmethod
    async def prepare(self, request: ApiRequest[T]) -> tuple[AnswerFormat, Submission]:
        """Check and tokenize a request; return how it is answered, and the engine's requests.

        Raises:
            RequestError, ApiError: The request is wrong.
        """


def _write(answer: AnswerFormat, outputs: list[RequestOutput]) -> Any:
    """Return a whole answer, ready to be sent; nothing is left of the outputs."""
    whole = encode_in_parts(answer.whole(outputs))
    free(outputs)
    return whole


async def _in_sent_names(
    body: RequestBody, events: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """Yield from ``events``, whose errors become events before the caller sees them."""
    with errors_in_sent_names(body):
        async with aclosing(events):
            async for event in events:
                yield event


@contextmanager
def errors_in_sent_names(body: RequestBody) -> Iterator[None]:
    """Rename the field in an error of the engine to the one that ``body`` sent."""
    try:
        yield
    except RequestError as error:
        sent_name = body.sent_names.get(error.param or "")
        if sent_name is None and error.param == "structured_outputs":
            forced = "tools" if isinstance(body, GenerationRequest) else None
            sent_name = body.constraint_field or forced
            if sent_name is not None:
                raise type(error)(str(error), sent_name) from error
        elif sent_name is not None:
            raise renamed(error, sent_name) from error
        raise
