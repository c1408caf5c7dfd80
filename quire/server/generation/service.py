"""A served model as every endpoint needs it: the engine, its names, the settings."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

import quire
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.llm.engine_client import EngineClient
from quire.llm.pictures.reader import PictureReader
from quire.protocol.generation import StreamOptions
from quire.server.access.waiting_limit import WaitingLimit
from quire.server.generation.answer_parser import AnswerFormats
from quire.server.generation.scoring_methods import Scoring
from quire.server.generation.served_adapters import ServedAdapters
from quire.server.generation.shared import Shared
from quire.server.http.http_errors import ApiError
from quire.server.observability.metrics_endpoint import ModelMetrics
from quire.settings.config import EngineConfig, ModelOptions
from quire.store.hub import served_name
from quire.store.manifests import plain_name

#: What TGI's clients send where a model's name is asked for: it serves one and looks at no name.
_PLACEHOLDERS = ("dummy", "tgi")


def model_names(model: ModelOptions) -> tuple[str, ...]:
    """Return the names that requests may use for a model; the first is shown."""
    return model.served_model_name or (served_name(model.model),)


def meant_name(name: str, model: ModelOptions) -> str | None:
    """Return the name of a model that a request's name stands for; None if it is another's.

    Where no name was given at the start, the model argument means it too, as in vLLM. Other ways to
    write a name are Ollama's, see :mod:`quire.store.manifests`.
    """
    names = model_names(model)
    if name in names:
        return name
    if not model.served_model_name and name == model.model:
        return names[0]
    plain = plain_name(name).lower()
    return next((own for own in names if plain == plain_name(own).lower()), None)


def is_placeholder(name: str, names: Collection[str]) -> bool:
    """Return whether a name that is none of ``names`` means the first model all the same."""
    return name in _PLACEHOLDERS and name not in names


def no_such_model(name: str) -> ApiError:
    """Return the refusal of a name that is no model's."""
    return ApiError(404, f"The model `{name}` does not exist.", param="model")


def named_at_start(name: str) -> ApiError:
    """Return the refusal to change a model that the server was started with."""
    return ApiError(409, f"{name} was named when the server was started, and stays as it is.")


@dataclass(frozen=True, slots=True)
class UsageOptions:
    """Whether usage closes a stream, and whether every chunk carries it."""

    at_end: bool
    on_every_chunk: bool


class Residence(Protocol):
    """The time that a model loaded on demand stays in memory."""

    def keep(self, seconds: float, *, by_operator: bool) -> None:
        """Keep the model in memory for that long; infinity is for ever, 0 not at all.

        Args:
            seconds: Seconds after each request until the model is unloaded, where an operator sets
                them. Else they count after this request alone, no longer than the server's setting
                and no shorter than other requests ask for.
            by_operator: Whether the request may unload models.
        """
        ...

    def seconds_left(self) -> float:
        """Return the seconds that the model stays if no request uses it from now on."""
        ...


class Service:
    """One served model.

    Args:
        engine: The engine that computes the answers.
        config: The engine's settings.
        shared: The settings, limits and metrics that it shares with the server's other models.
        admission: The queue's bounds, when other models on the same engine have them already.

    Attributes:
        options: The server's settings.
        admission: The bounds of the queue.
        metrics: The metrics of the model's requests.
        pictures: The reader of requests' pictures; None where the model reads text alone.
        formats: The formats by which the model's tool calls and reasoning are read.
        scoring: The way in which it scores texts.
        model_names: Names that requests may use; the first is shown in answers.
        adapters: The model's adapters; requests may use their names, too.
        created: Unix time at which it was first served, in seconds.
        fingerprint: A text that is the same for the same version and settings.
        residence: The time that a model loaded on demand stays; None if it always stays.
    """

    def __init__(
        self,
        engine: EngineClient,
        config: EngineConfig,
        shared: Shared,
        admission: WaitingLimit | None = None,
    ) -> None:
        self.engine = engine
        self.config = config
        self.shared = shared
        self.options = options = shared.options
        self.model_names = model_names(config.model)
        self.adapters = ServedAdapters(self.model_names)
        self.formats = AnswerFormats.resolve(options, engine.tokenizer.chat_template)
        self.scoring = Scoring.resolve(options, engine)
        self.admission = admission or WaitingLimit(
            options.max_num_queued_reqs,
            options.max_num_queued_tokens,
            rejections=shared.rejections,
        )
        vision = engine.model_config.vision
        self.pictures = (
            None if vision is None else PictureReader(vision, config.model, engine.tokenizer)
        )
        self.metrics = ModelMetrics(engine, config, self.model_names[0])
        shared.metrics.add(self.metrics)
        self.residence: Residence | None = None
        self.created = int(time.time())
        digest = hashlib.sha256(repr(config).encode()).hexdigest()[:8]
        self.fingerprint = f"quire-{quire.__version__}-{digest}"

    @property
    def vector_params(self) -> SamplingParams:
        """Settings that ask for a prompt's vector."""
        kind = self.options.pooling
        return SamplingParams(
            pooling=self.engine.model_config.pooling.kind if kind == "auto" else kind,
            max_tokens=None,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )

    async def shutdown(self) -> None:
        """Stop the engine. A second call does nothing."""
        try:
            await self.engine.shutdown()
        finally:
            if self.pictures is not None:
                self.pictures.close()
            self.shared.metrics.remove(self.metrics)

    def check_serving(self) -> None:
        """Return when requests are taken.

        Raises:
            EngineDeadError: The engine has stopped, or is being restarted.
            ApiError: 503, the server is about to end.
        """
        self.engine.check_health()
        if self.admission.draining:
            raise ApiError(503, "The server is shutting down.")

    def resolve_model(self, name: str | None) -> str:
        """Return the served name, or the adapter, that a request means.

        None, or a name of no model, means the first.

        Raises:
            ApiError: 404, no such model.
        """
        if name and name in self.adapters:
            return name
        if not name or is_placeholder(name, self.model_names):
            return self.model_names[0]
        found = meant_name(name, self.config.model)
        if found is None:
            raise no_such_model(name)
        return found

    def output_limit(
        self, asked: int | None, num_prompt_tokens: int, clamped: bool = False
    ) -> int | None:
        """Return a request's limit of output tokens, else the model's own as far as it fits.

        Args:
            asked: The request's limit; None if it has none.
            num_prompt_tokens: Number of tokens in its prompt.
            clamped: Whether the request's own limit is lowered, too, to what fits.
        """
        default: int | None = self.engine.default_sampling_params.get("max_tokens")
        room = max(1, self.engine.max_model_len - num_prompt_tokens)
        if asked is not None:
            return min(asked, room) if clamped else asked
        return None if default is None else min(default, room)

    def identity(self, response_id: str, kind: str, model: str) -> dict[str, Any]:
        """Return what an answer and each of its chunks says of itself; ``kind`` is ``object``."""
        return {
            "id": response_id,
            "object": kind,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": self.fingerprint,
        }

    def usage_options(self, asked: StreamOptions | None) -> UsageOptions:
        """Return when a stream carries usage; ``--enable-force-include-usage`` means always."""
        forced = self.options.enable_force_include_usage
        at_end = forced or bool(asked and asked.include_usage)
        on_every_chunk = forced or bool(at_end and asked and asked.continuous_usage_stats)
        return UsageOptions(at_end, on_every_chunk)
