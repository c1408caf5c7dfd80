"""One engine under several names, each with its own texts and defaults; the rest is shared."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator
from functools import cached_property
from typing import Any

from quire.core.adapter_reference import AdapterReference
from quire.core.engine_request import EngineRequest
from quire.core.metrics import Samples, add_counters
from quire.core.outputs import RequestOutput
from quire.llm.engine_client import EngineClient, EngineProgress
from quire.settings.config import ModelOptions
from quire.text.tokenizers.tokenizer import Tokenizer


class SharedEngine(EngineClient):
    """An engine whose weights several models have."""

    @cached_property
    def views(self) -> EngineViews:
        """The engine's views."""
        return EngineViews(self)

    def view(self, options: ModelOptions) -> EngineView:
        """Return the engine as a model with the same weights; errors as of :meth:`read_texts`."""
        return self.views.open(*self.read_texts(options))

    @abstractmethod
    def read_texts(self, options: ModelOptions) -> tuple[Tokenizer, dict[str, Any]]:
        """Return the tokenizer and the default settings of a model with the engine's weights.

        Raises:
            QuireError: Files of the model, such as its template, cannot be read.
        """


class EngineViews:
    """The views of one engine.

    The engine's counts are reported once: by the view that has been open longest and, when that is
    closed, by the next one from then on.

    Args:
        engine: The engine, which outlives them.
    """

    def __init__(self, engine: EngineClient) -> None:
        self.engine = engine
        self._open: list[EngineView] = []
        self._told: Samples = {}  # by closed views, below zero

    def open(self, tokenizer: Tokenizer, default_sampling_params: dict[str, Any]) -> EngineView:
        """Return a view with these texts and defaults."""
        made = EngineView(self, tokenizer, default_sampling_params)
        self._open.append(made)
        return made

    def stats(self, view: EngineView) -> Samples:
        """Return the engine's counts if this view reports them, else nothing."""
        if not self._open or self._open[0] is not view:
            return {}
        return add_counters(self._told, self.engine.stats())

    def close(self, view: EngineView) -> None:
        """Pass the report of the engine on to another view; a second call does nothing."""
        if self._open and self._open[0] is view:
            self._told = {name: _negative(value) for name, value in self.engine.stats().items()}
        if view in self._open:
            self._open.remove(view)


class EngineView(EngineClient):
    """An engine as one of its names.

    Shutting it down closes it; the engine stays.

    Args:
        views: The engine's views; settings that the engine checks are the same for all.
        tokenizer, default_sampling_params: Tokenizer and defaults of this name.

    Attributes:
        engine: The engine of all views.
    """

    def __init__(
        self, views: EngineViews, tokenizer: Tokenizer, default_sampling_params: dict[str, Any]
    ) -> None:
        self.engine = engine = views.engine
        self.model_config = engine.model_config
        self.max_model_len = engine.max_model_len
        self.tokenizer = tokenizer
        self.default_sampling_params = default_sampling_params
        self._views = views
        self._last_stats: Samples | None = None

    def generate(self, request: EngineRequest, /) -> AsyncGenerator[RequestOutput, None]:
        return self.engine.generate(request)

    async def abort(self, request_id: str) -> None:
        await self.engine.abort(request_id)

    def check_health(self) -> None:
        self.engine.check_health()

    def progress(self) -> EngineProgress:
        """Return the engine's progress, with the requests of all its names."""
        return self.engine.progress()

    def stats(self) -> Samples:
        """Return the engine's counts that this view reports; once closed, its last report."""
        return self._views.stats(self) if self._last_stats is None else self._last_stats

    async def describe_cache(self) -> str:
        return await self.engine.describe_cache()

    async def reset_prefix_cache(self) -> None:
        await self.engine.reset_prefix_cache()

    def read_adapter(self, name: str, folder: str) -> AdapterReference:
        return self.engine.read_adapter(name, folder)

    async def shutdown(self) -> None:
        if self._last_stats is None:
            self._last_stats = self.stats()
            self._views.close(self)


def actual_engine(engine: EngineClient) -> EngineClient:
    """Return the engine itself, whatever the name it is seen under."""
    return engine.engine if isinstance(engine, EngineView) else engine


def _negative(value: float | list[float]) -> float | list[float]:
    return [-part for part in value] if isinstance(value, list) else -value
