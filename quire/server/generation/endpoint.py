"""The way of both completion endpoints: read, prepare, then answer whole or as a stream."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.core.errors import RequestError
from quire.protocol.adapted import AdaptedRequest
from quire.protocol.generation import GenerationRequest
from quire.server.access.authentication import ApiKey
from quire.server.generation.generate import Outputs, Submission, check_submission, generate
from quire.server.generation.pacing import paced
from quire.server.generation.service import Service
from quire.server.http.body import read_request, read_timeout
from quire.server.http.connection import run_until_disconnect
from quire.server.http.errors import name_field
from quire.server.http.sse import OPENAI_EVENTS, StreamForm, send_events
from quire.server.observability.request_record import RequestRecord

T = TypeVar("T", bound=GenerationRequest | AdaptedRequest)


class Answer(Protocol):
    """Formats the engine's outputs for one request."""

    async def collect(self, outputs: Outputs) -> bytes:
        """Wait for the end and return the whole answer as JSON."""
        ...

    def events(self, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """Yield the stream's events, all but what ends every stream."""
        ...


class GenerationEndpoint(ABC, Generic[T]):
    """An ASGI app for one route.

    Attributes:
        kind: Struct of the request's body.
        id_prefix: First part of an answer's id.
        form: Of its streams.
    """

    kind: type[T]
    id_prefix: str
    form: StreamForm = OPENAI_EVENTS

    def __init__(self, service: Service) -> None:
        self.service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; a client that goes away ends it."""
        arrival = time.monotonic()
        request = Request(scope, receive)
        body, headers = await self.read(request)
        timeout = body.timeout or read_timeout(request)

        async def work() -> None:
            deadline = None if timeout is None else arrival + timeout
            key = scope.get("api_key")
            answer, outputs = await self.open(body, scope["record"], key, deadline)
            if body.stream:
                interval = self.service.options.sse_keep_alive_interval
                await send_events(send, answer.events(outputs), headers, interval, self.form)
            else:
                content = await answer.collect(outputs)
                response = Response(content, headers=headers, media_type="application/json")
                await response(scope, receive, send)

        with fields_named(body):
            await run_until_disconnect(receive, work())

    async def read(self, request: Request) -> tuple[T, dict[str, str]]:
        """Return the decoded body and the headers that name unknown fields; see there."""
        return await read_request(request, self.kind, self.service.options.strict_params)

    async def open(
        self, body: T, record: RequestRecord, api_key: ApiKey | None, deadline: float | None
    ) -> tuple[Answer, Outputs]:
        """Begin a request; what is read of its outputs runs it.

        Args:
            body: The request.
            record: Gets what is learned of it.
            api_key: The key it came with.
            deadline: On the monotonic clock.

        Raises:
            RequestError, ApiError: It is refused.
        """
        if body.stream and not self.service.options.decoupled:
            raise RequestError(
                "[stream] this server answers in one piece (decoupled: false); got a request that "
                "streams. Send stream: false, or start the server without --no-decoupled.",
                "stream",
            )
        request_id = body.request_id or body.rid or record.request_id
        client = "" if api_key is None else api_key.client.client_id
        response_id = f"{self.id_prefix}-{request_id}"
        answer, submission = await self.prepare(body, response_id, client)
        submission.deadline = deadline
        submission.record, submission.api_key = record, api_key
        if api_key is not None:
            record.api_key = client
        record.model = body.model or self.service.model_names[0]
        record.streamed = bool(body.stream)
        check_submission(self.service, submission)
        outputs: Outputs = generate(self.service, submission)
        interval = body.stream_interval or self.service.options.stream_interval
        return answer, paced(outputs, interval) if body.stream and interval > 1 else outputs

    @abstractmethod
    async def prepare(self, body: T, response_id: str, client: str) -> tuple[Answer, Submission]:
        """Check and tokenize a request of ``client``, whose answer is named ``response_id``.

        Raises:
            RequestError: It is wrong.
            ApiError: It names a model that is not served.
        """


@contextmanager
def fields_named(body: GenerationRequest | AdaptedRequest) -> Iterator[None]:
    """Have an error of the engine name the field of ``body`` that it is about."""
    try:
        yield
    except RequestError as error:
        sent_name = body.sent_names.get(error.param or "")
        if sent_name is not None:
            name_field(error, error.param or "", sent_name)
        elif error.param == "structured_outputs" and isinstance(body, GenerationRequest):
            error.param = body.constraint_field or "tools"
        raise
