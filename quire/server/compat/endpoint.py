"""What the endpoints in other servers' shapes have in common; the engine's way is everyone's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any, ClassVar, TypeVar

import msgspec
from starlette.requests import Request

from quire.core.errors import RequestError
from quire.core.outputs import CompletionOutput, RequestOutput
from quire.protocol.adapted import AdaptedRequest
from quire.server.generation.deltas import Delta, Sent
from quire.server.generation.endpoint import GenerationEndpoint
from quire.server.generation.generate import Outputs
from quire.server.generation.service import Service
from quire.server.http.sse import StreamForm

T = TypeVar("T", bound=AdaptedRequest)


class AdaptedEndpoint(GenerationEndpoint[T]):
    """An ASGI app for one route.

    Args:
        service: The served model.
        streams: What the route does; None where the body says it.
    """

    def __init__(self, service: Service, streams: bool | None = None) -> None:
        super().__init__(service)
        self._streams = streams

    async def read(self, request: Request) -> tuple[T, dict[str, str]]:
        body, headers = await super().read(request)
        asked = body.asks_to_stream
        if self._streams is not None:
            if asked is not None and asked != self._streams:
                other = "generate_stream" if asked else "generate"
                raise RequestError(
                    f"[stream] must be what the route does; got {str(asked).lower()}. "
                    f"Use the route .../{other}.",
                    "stream",
                )
            asked = self._streams
        body.stream = bool(asked)
        return body, headers


class AdaptedAnswer(ABC):
    """Formats one text, whole or streamed.

    Attributes:
        form: Of the stream.
    """

    form: ClassVar[StreamForm]

    async def collect(self, outputs: Outputs) -> bytes:
        """Wait for the end and return the whole answer as JSON."""
        async with aclosing(outputs):
            async for _, output in outputs:
                final = output
        return msgspec.json.encode(self.whole(final, final.outputs[0]))

    async def events(self, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """Yield all of the stream."""
        sent = Sent()
        async with aclosing(outputs):
            async for _, output in outputs:
                completion = output.outputs[0]
                if sent.finished:
                    continue
                delta = sent.take(completion)
                parts = [
                    self.form.event(msgspec.json.encode(piece))
                    for piece in self.pieces(delta, output, completion)
                ]
                if parts:
                    yield b"".join(parts)

    @abstractmethod
    def whole(self, output: RequestOutput, completion: CompletionOutput) -> Any:
        """Return the whole answer of a finished output."""

    @abstractmethod
    def pieces(
        self, delta: Delta, output: RequestOutput, completion: CompletionOutput
    ) -> Iterable[Any]:
        """Return the events for what is new, the last ones when the output is finished."""
