"""What a server needs of an engine, in this process or in another one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol, TypeAlias

from quire.core.model_config import ModelConfig
from quire.core.outputs import RequestOutput
from quire.core.sampling_params import SamplingParams

#: A prompt: text, token ids, or ``{"prompt_token_ids": [...]}`` / ``{"prompt": "..."}``.
Prompt: TypeAlias = str | Sequence[int] | dict[str, Any]


class EngineClient(Protocol):
    """Submit requests, read their outputs, cancel them.

    Attributes:
        model_config: The decoder's shape.
        max_model_len: Longest prompt plus output, in tokens.
        tokenizer: ``quire.text.Tokenizer`` of the served model.
        default_sampling_params: The model's own defaults (``generation_config.json``), as keywords.
    """

    model_config: ModelConfig
    max_model_len: int
    tokenizer: Any
    default_sampling_params: dict[str, Any]

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the request's state after each step that changed it; the last has ``finished``.

        Closing the iterator early aborts the request and frees its blocks within one step.

        Raises:
            RequestError: The request is refused; nothing of it was kept.
            CapacityError: Not now.
            EngineDeadError: Never again.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a request with finish reason ``abort``; unknown or finished ids are no error."""
        ...

    def check_health(self) -> None:
        """Return when the engine works.

        Raises:
            EngineDeadError: It has stopped.
        """
        ...

    def stats(self) -> dict[str, float]:
        """Return counters and gauges by metric stem, for ``/metrics``."""
        ...

    async def describe_cache(self) -> str:
        """Return the KV pool and the block table of each live request as text, for people.

        Raises:
            EngineDeadError: The engine has stopped.
        """
        ...

    async def shutdown(self) -> None:
        """Stop the engine; open requests end with ``abort``."""
        ...
