"""Endpoints in the shapes of other servers: the parts that these share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from typing import Any, ClassVar, TypeVar

import msgspec

from quire.core.errors import RequestError
from quire.core.outputs import CompletionOutput, RequestOutput
from quire.protocol.compat import CompatRequest
from quire.server.generation.endpoint import GenerationEndpoint
from quire.server.generation.generation_outputs import Outputs
from quire.server.generation.service import Service
from quire.server.http.sse import StreamForm

T = TypeVar("T", bound=CompatRequest)


class CompatEndpoint(GenerationEndpoint[T]):
    """An ASGI app for one route.

    Args:
        service: The served model.
        streams: Whether the route streams its answers; None where the body says it.
    """

    def __init__(self, service: Service, streams: bool | None = None) -> None:
        super().__init__(service)
        self._streams = streams

    def resolve(self, body: T, path_params: Mapping[str, Any]) -> T:
        asked, does = body.asks_to_stream, self._streams
        if does is not None and asked not in (None, does):
            other = "generate_stream" if asked else "generate"
            raise RequestError(
                f"[stream] must be what the route does; got {str(asked).lower()}. "
                f"Use the route .../{other}.",
                "stream",
            )
        return msgspec.structs.replace(body, stream=bool(asked if does is None else does))


class CompatAnswer(ABC):
    """Formats one text, whole or streamed.

    Attributes:
        form: Format of the stream's events.
    """

    form: ClassVar[StreamForm]

    async def events(self, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """Yield all of the stream."""
        async with aclosing(outputs):
            async for _, output in outputs:
                parts = [
                    self.form.event(msgspec.json.encode(piece))
                    for completion in output.outputs
                    for piece in self.pieces(output, completion)
                ]
                if parts:
                    yield b"".join(parts)

    @abstractmethod
    def whole(self, outputs: list[RequestOutput]) -> Any:
        """Return the whole answer."""

    @abstractmethod
    def pieces(self, output: RequestOutput, completion: CompletionOutput) -> Iterable[Any]:
        """Return the events for a delta, the last ones when the output is finished."""
