"""An engine for servers, whether it is in this process, in another one, or several."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypeAlias, TypedDict

from quire.core.adapter_reference import AdapterReference
from quire.core.engine_request import EngineRequest
from quire.core.metrics import Samples
from quire.core.model.model_config import ModelConfig
from quire.core.outputs import RequestOutput
from quire.llm.outputs.output_streams import OutputStreams
from quire.text.tokenizers.tokenizer import Tokenizer


class TextPrompt(TypedDict):
    """A prompt as text.

    Attributes:
        prompt: The text.
        multi_modal_data: ``{"image": picture}`` or a list of pictures (of Pillow, or files' bytes),
            one for each mark of a picture in the text; read by ``LLM.generate``.
    """

    prompt: str
    multi_modal_data: NotRequired[Mapping[str, Any]]


class TokensPrompt(TypedDict):
    """A prompt as token ids.

    Attributes:
        prompt_token_ids: The ids.
        prompt: The ids' text, which is only reported back.
        multi_modal_data: The same as in :class:`TextPrompt`.
    """

    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str]
    multi_modal_data: NotRequired[Mapping[str, Any]]


#: A prompt: text, token ids, or a dict of these.
Prompt: TypeAlias = str | Sequence[int] | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EngineProgress:
    """The progress of an engine, in requests and seconds.

    Attributes:
        pending: Requests that have not ended.
        last_step_age: Seconds since the last step, or since the engine was ready.
        stalled_seconds: Seconds in which nothing advanced though requests were pending.
        oldest_queue_age: Seconds that the oldest request without a first token has waited; 0.0 when
            there is none.
        step_seconds: Seconds that a step may take, judging by earlier steps.
    """

    pending: int
    last_step_age: float
    stalled_seconds: float
    oldest_queue_age: float
    step_seconds: float = 0.0

    @classmethod
    def measure(cls, streams: OutputStreams, step_time: float) -> EngineProgress:
        """Measure now; ``step_time`` is when the last step ended, on the monotonic clock."""
        now = time.monotonic()
        oldest = streams.oldest_unanswered()
        waited = 0.0 if oldest is None else max(0.0, now - oldest)
        first = streams.oldest()
        stalled = 0.0 if first is None else max(0.0, now - max(step_time, first))
        return cls(len(streams), max(0.0, now - step_time), stalled, waited)


class EngineClient(ABC):
    """An engine as servers see it: they submit requests, read their outputs and cancel them.

    Attributes:
        model_config: The decoder's shape.
        max_model_len: Longest prompt plus output, in tokens.
        tokenizer: The served model's tokenizer.
        default_sampling_params: The model's own defaults (``generation_config.json``), as keywords.
    """

    model_config: ModelConfig
    max_model_len: int
    tokenizer: Tokenizer
    default_sampling_params: dict[str, Any]

    @abstractmethod
    def generate(self, request: EngineRequest, /) -> AsyncGenerator[RequestOutput, None]:
        """Yield the request's output after each step that changed it; the last has ``finished``.

        The settings are checked and completed here: callers pass on what clients sent.
        Closing the iterator early aborts the request and frees its blocks within one step.

        Raises:
            RequestError: The request is refused; nothing of it was kept.
            CapacityError: The engine cannot take the request now.
            EngineDeadError: The engine has stopped, before the request or during it.
        """

    @abstractmethod
    async def abort(self, request_id: str) -> None:
        """End a request with finish reason ``abort``; its blocks are free on return.

        Unknown or finished ids are no error.
        """

    @abstractmethod
    def check_health(self) -> None:
        """Check that the engine takes requests.

        Raises:
            EngineDeadError: The engine has stopped, or is being restarted.
        """

    @abstractmethod
    def progress(self) -> EngineProgress:
        """Return the engine's progress."""

    @abstractmethod
    def stats(self) -> Samples:
        """Return counters and gauges by metric stem, as they were after one of the last steps.

        No counter ever falls.
        """

    @abstractmethod
    async def describe_cache(self) -> str:
        """Return the KV pool and the block table of each live request as text, for people.

        Raises:
            EngineDeadError: The engine has stopped.
            CapacityError: The engine is being restarted.
        """

    @abstractmethod
    async def reset_prefix_cache(self) -> None:
        """Hide what was computed so far from later requests; those under way keep theirs.

        Raises:
            EngineDeadError: The engine has stopped.
            CapacityError: The engine is being restarted.
        """

    @abstractmethod
    def read_adapter(self, name: str, folder: str) -> AdapterReference:
        """Return a reference to an adapter for requests, once all its files are read; thread-safe.

        Raises:
            RequestError: The engine takes no adapters.
            ModelLoadError: The adapter is damaged, has too large a rank, or is for another model.
        """

    @abstractmethod
    async def shutdown(self) -> None:
        """Stop the engine; open requests end with ``abort``. A second call does nothing."""
