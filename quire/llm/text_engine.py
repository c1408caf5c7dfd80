"""Engine, executor and text in one: prompts in, :class:`RequestOutput` out, a step at a time.

``LLM`` and ``AsyncLLM`` differ only in the thread that calls :meth:`TextEngine.step`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

from quire.core.adapter_reference import AdapterReference
from quire.core.engine_request import EngineRequest
from quire.core.errors import EngineDeadError, FailureKind, RequestFailure
from quire.core.metrics import Samples
from quire.core.model.model_config import ModelConfig
from quire.core.outputs import RequestOutput
from quire.core.plurals import counted
from quire.core.sampling_params import SamplingParams
from quire.engine.engine import Engine
from quire.engine.engine_output import EngineOutput
from quire.llm.engine_args import EngineArgs
from quire.llm.engine_client import Prompt
from quire.llm.outputs.output_processor import OutputProcessor
from quire.llm.planning.draft_vocabulary import pair_draft_vocabularies
from quire.llm.planning.inferred_methods import infer_methods
from quire.llm.requests.request_reader import RequestReader
from quire.models.model_builder import Progress
from quire.runner.in_process_executor import load_executor
from quire.settings.config import EngineConfig
from quire.system.log import get_logger
from quire.text.tokenizers.tokenizer import Tokenizer

log = get_logger(__name__)


class TextEngine:
    """A loaded model that answers requests; not thread-safe.

    Args:
        config: All settings.
        on_progress: A function that is called while weights load, with bytes done and bytes in all.
        takes_more: The same as in :class:`Engine`.

    Attributes:
        engine: The scheduler and block pool.
        tokenizer: The model's tokenizer.
        model_config: The decoder's shape; ``eos_token_ids`` are all ids that end a sequence.
        max_model_len: Longest prompt plus output, in tokens.
        default_sampling_params: The model's own defaults, as keywords.

    Raises:
        ConfigError, ModelLoadError, NoKernelError: The model cannot be loaded, as the message says.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        on_progress: Progress | None = None,
        takes_more: bool = True,
    ) -> None:
        config = infer_methods(config)
        self._reader = reader = RequestReader(
            config.model, config.speculative.methods(), config.adapters
        )
        self.default_sampling_params: dict[str, Any] = reader.default_sampling_params
        methods = config.speculative.methods()
        vocabularies = pair_draft_vocabularies(methods, reader.tokenizer_folder)
        self.executor = load_executor(
            reader.folder,
            config,
            eos_token_ids=reader.eos_token_ids,
            on_progress=on_progress,
            create_grammars=reader.loaded,
            meanwhile=lambda: reader.tokenizer,
            vocabularies=vocabularies,
        )
        self.tokenizer: Tokenizer = reader.tokenizer
        self.max_model_len = self.executor.memory.max_model_len
        self.config = replace(config, model=replace(config.model, max_model_len=self.max_model_len))
        self.model_config: ModelConfig = self.executor.model_config
        self.engine = Engine(self.executor, self.config, self.model_config, takes_more=takes_more)
        self._dead: str | None = None
        self._outputs = OutputProcessor(self.tokenizer)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        """Load a model with settings in vLLM's shape."""
        return cls(engine_args.config)

    def prepare(
        self, request_id: str, prompt: Prompt, params: SamplingParams, **attributes: Any
    ) -> EngineRequest:
        """Read and complete a request; any thread may call it.

        Args:
            request_id, prompt, params, **attributes: The same as in :meth:`RequestReader.read`.

        Raises:
            RequestError: The prompt or a setting is wrong.
        """
        return self.complete(self._reader.read(prompt, params, request_id, **attributes))

    def complete(self, request: EngineRequest) -> EngineRequest:
        """Check and complete a request's settings and compile its grammar; any thread may.

        Raises:
            RequestError: A setting is wrong.
        """
        request = self._reader.complete(request)
        if request.params.structured_outputs is not None:
            assert self._reader.grammars is not None
            possible = self._reader.first_tokens(request.params)
            self._reader.grammars.compile(request.params.structured_outputs, possible)
        return request

    def fit_output(self, request: EngineRequest) -> EngineRequest:
        """Lower a ``max_tokens`` that no caller has set to what the prompt leaves of the context.

        A prompt that leaves nothing is still refused by :meth:`submit`.
        """
        params, limit = request.params, self.engine.max_total_tokens
        room = max(1, limit - len(request.prompt_token_ids))
        if params.max_tokens is None or params.max_tokens <= room:
            return request
        fitted = replace(params, max_tokens=room, min_tokens=min(params.min_tokens, room))
        return replace(request, params=fitted)

    def submit(self, request: EngineRequest) -> None:
        """Queue a request that is complete.

        Raises:
            RequestError: The request can never run as asked; nothing of it was kept.
            EngineDeadError: The engine has stopped; :meth:`end_all` ends its requests.
        """
        self.check_alive()
        try:
            self.engine.add_request(request)
        except EngineDeadError as error:
            self._dead = str(error)
            raise
        self._outputs.add(request)

    def add_request(
        self, request_id: str, prompt: Prompt, params: SamplingParams, **attributes: Any
    ) -> None:
        """Read and queue a request; errors are those of :meth:`prepare` and :meth:`submit`."""
        self.submit(self.prepare(request_id, prompt, params, **attributes))

    def step(self, request_arrived: Callable[[], bool] = lambda: False) -> list[RequestOutput]:
        """Run one iteration; return the outputs of requests that changed.

        A step that fails as a whole ends every request with finish reason ``error``; nothing is
        taken afterwards.

        Args:
            request_arrived: The same as in :meth:`Engine.step`.

        Raises:
            EngineDeadError: An earlier step failed.
        """
        self.check_alive()
        try:
            return self._process(self.engine.step(request_arrived))
        except EngineDeadError as error:
            self._dead = str(error)
        except Exception as error:
            log.exception("a step failed")
            self._dead = f"[engine] a step failed: {type(error).__name__}: {error}. Start it again."
        return self.end_all()

    def end_all(self) -> list[RequestOutput]:
        """End all requests of an engine that has stopped, with finish reason ``error``."""
        assert self._dead is not None, "the engine works"
        return self._outputs.end_all("error", RequestFailure(FailureKind.ENGINE, self._dead))

    def abort_request(self, request_id: str) -> list[RequestOutput]:
        """End a request with ``abort``, blocks freed; unknown or finished ids are no error."""
        return [] if self._dead else self._process(self.engine.abort_request(request_id))

    def check_alive(self) -> None:
        """Return when the engine works.

        Raises:
            EngineDeadError: A step has failed.
        """
        if self._dead is not None:
            raise EngineDeadError(self._dead)

    def has_unfinished_requests(self) -> bool:
        """Return whether :meth:`step` has work."""
        return self._dead is None and self.engine.has_unfinished_requests()

    def seconds_until_work(self) -> float | None:
        """Return how long the owner may sleep, in seconds; the same as in :class:`Engine`."""
        return None if self._dead else self.engine.seconds_until_work()

    def read_adapter(self, name: str, folder: str) -> AdapterReference:
        """Return a reference to an adapter for requests; any thread may call it.

        Raises:
            RequestError, ModelLoadError: The same as in :meth:`AdapterReader.read`.
        """
        return self._reader.adapters.read(name, folder)

    def stats(self) -> Samples:
        """Return the engine's counters and gauges by metric stem."""
        assert self._reader.grammars is not None
        return self.engine.stats() | self._reader.grammars.stats() | self._outputs.stats()

    def summary(self) -> str:
        """Return what was loaded, in a line."""
        num_tokens = (self.executor.memory.budget.num_blocks - 1) * self.config.cache.block_size
        inputs = ", activations in int16 as it is small" if self.executor.fine_inputs else ""
        return (
            f"loaded {self.config.model.model}: {self.model_config.architecture}, contexts of up "
            f"to {counted(self.max_model_len, 'token')}, {num_tokens:,} in the KV cache{inputs} "
            "(verbose=True says how that was chosen)"
        )

    def describe_cache(self) -> str:
        """Return the KV pool and the block table of each live request as text, for people."""
        return self.engine.describe_cache()

    def reset_prefix_cache(self) -> None:
        """Hide what was computed so far from later requests."""
        self.engine.reset_prefix_cache()

    def shutdown(self) -> None:
        """Release the model; later requests and steps are refused. A second call does nothing."""
        self._dead = self._dead or "[engine] it was shut down. Load the model again."
        self.executor.shutdown()

    def _process(self, engine_outputs: list[EngineOutput]) -> list[RequestOutput]:
        step = self._outputs.process(engine_outputs)
        for request_id, index in step.stopped:
            self.engine.stop_sequence(request_id, index)
        for request_id in step.failed:
            self.engine.abort_request(request_id)
        return step.outputs
