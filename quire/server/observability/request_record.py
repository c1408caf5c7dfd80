"""The record of one HTTP request, of which its log line, its metrics and its trace are made.

It holds no text of the request or its answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from starlette.types import Scope

from quire.core.outputs import RequestMetrics, RequestOutput
from quire.core.sampling_params import SamplingParams


@dataclass(slots=True)
class Generation:
    """One prompt of a request.

    Attributes:
        engine_id: The engine's id of the prompt.
        params: Sampling settings of the prompt.
        times: Times of the newest delta; None before the first.
        num_prompt_tokens, num_cached_tokens: Tokens of the prompt; 0 before the first delta.
        failed: Whether the engine gave up on it.
        num_tokens: Output tokens of each sequence.
        finish_reasons: Reasons, one per sequence; ``abort`` until it ends, and when its client
            leaves or an error ends the request.
    """

    engine_id: str
    params: SamplingParams
    times: RequestMetrics | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    failed: bool = False
    num_tokens: list[int] = field(init=False)
    finish_reasons: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.num_tokens = [0] * self.params.n
        self.finish_reasons = ["abort"] * self.params.n

    def add(self, output: RequestOutput) -> None:
        """Count a delta."""
        self.times = output.metrics
        self.num_prompt_tokens = len(output.prompt_token_ids)
        self.num_cached_tokens = output.num_cached_tokens
        self.failed = output.error is not None
        for completion in output.outputs:
            self.num_tokens[completion.index] += len(completion.token_ids)
            if completion.finish_reason is not None:
                self.finish_reasons[completion.index] = completion.finish_reason

    @property
    def num_output_tokens(self) -> int:
        """Number of output tokens of all its sequences."""
        return sum(self.num_tokens)


@dataclass(slots=True)
class RequestRecord:
    """One HTTP request from its arrival to its last byte.

    Attributes:
        request_id: The id in ``X-Request-Id``.
        method, path, client: Method, path and client of the request; the path without its query.
        handler: The route's own path (``/v1/models/{model:path}``), ``none`` without a route.
        traceparent, tracestate: W3C trace context of the caller, or None.
        started, ended: Seconds on the monotonic clock.
        status: HTTP status of the answer; 499 when the client left before it began.
        num_bytes_in, num_bytes_out: Bytes of the bodies.
        api_key: Name of the API key of a generation; never the key.
        model: Served name that a generation asked for.
        generations: The prompts of the request.
        streamed: Whether the answer is a stream.
    """

    request_id: str
    method: str
    path: str
    client: str | None
    traceparent: str | None = None
    tracestate: str | None = None
    started: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    handler: str = "none"
    status: int = 499
    num_bytes_in: int = 0
    num_bytes_out: int = 0
    api_key: str | None = None
    model: str | None = None
    generations: list[Generation] = field(default_factory=list)
    streamed: bool = False

    @property
    def seconds(self) -> float:
        """Seconds from arrival to end."""
        return self.ended - self.started

    @classmethod
    def begin(cls, scope: Scope, request_id: str, num_bytes_in: int | None = None) -> RequestRecord:
        """Start the record of an ASGI request; its head gives the body's size if nothing does."""
        headers = dict(scope["headers"])
        client = scope.get("client")
        if num_bytes_in is None:
            length = headers.get(b"content-length", b"")
            num_bytes_in = int(length) if length.isdigit() else 0
        return cls(
            request_id,
            scope.get("method", "WEBSOCKET"),
            scope["path"],
            client[0] if client else None,
            _text(headers.get(b"traceparent")),
            _text(headers.get(b"tracestate")),
            num_bytes_in=num_bytes_in,
        )

    def begin_generations(
        self, generations: list[Generation], *, model: str, api_key: str | None, streamed: bool
    ) -> None:
        """Note what the engine is asked; the generations fill in what becomes of it."""
        self.generations += generations
        self.model, self.api_key, self.streamed = model, api_key, streamed

    def start_answer(self, status: int) -> None:
        """Note the answer's status."""
        self.status = status

    def count_sent(self, num_bytes: int) -> None:
        """Count bytes of the answer's body."""
        self.num_bytes_out += num_bytes

    def end(self, scope: Scope) -> None:
        """Note the time, and which route it was."""
        self.ended = time.monotonic()
        route = scope.get("route")
        self.handler = getattr(route, "path", "none")


#: Called with the record of each request when it has ended.
Sink: TypeAlias = Callable[[RequestRecord], None]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")
