"""``AsyncLLM``: the engine in a thread of its own, its outputs as async generators.

The thread alone touches the engine; all other code reaches it by commands, which it runs between
steps. Native kernels release the GIL, so the event loop runs while a step computes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from os import PathLike
from queue import Empty, SimpleQueue
from typing import Any, Unpack

from quire.core.adapter_reference import AdapterReference
from quire.core.engine_request import EngineRequest
from quire.core.errors import EngineDeadError
from quire.core.metrics import Samples
from quire.core.outputs import RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.llm.engine_args import EngineArgs
from quire.llm.engine_client import EngineClient, EngineProgress, Prompt
from quire.llm.outputs.output_streams import OutputStreams
from quire.llm.process.counter_pace import CounterPace
from quire.llm.progress import loading_bar
from quire.llm.requests.params import params_size
from quire.llm.text_engine import TextEngine
from quire.settings.config import EngineConfig
from quire.settings.keyword_types import EngineKeywords
from quire.text.offloading import INLINE_CHARACTERS, run_by_size

Command = Callable[[], Any]


class AsyncLLM(EngineClient):
    """A model loaded for concurrent use.

    Args:
        model, **keywords: The same as in :class:`quire.llm.engine_args.EngineArgs`.

    Attributes:
        config: The settings, ``max_model_len`` resolved.

    Raises:
        ConfigError, ModelLoadError, NoKernelError: The model cannot be loaded, as the message says.
    """

    def __init__(
        self, model: str | PathLike[str] = "quire-tiny", **keywords: Unpack[EngineKeywords]
    ) -> None:
        self._start(EngineArgs(model, **keywords).config)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> AsyncLLM:
        """Load a model with settings in vLLM's shape."""
        return cls.from_config(engine_args.config)

    @classmethod
    def from_config(cls, config: EngineConfig) -> AsyncLLM:
        """Load a model with settings that are already in their parts."""
        llm = cls.__new__(cls)
        llm._start(config)
        return llm

    def _start(self, config: EngineConfig) -> None:
        with loading_bar() as on_progress:
            self._engine = TextEngine(config, on_progress=on_progress)
        self.config = self._engine.config
        self.model_config = self._engine.model_config
        self.max_model_len = self._engine.max_model_len
        self.tokenizer = self._engine.tokenizer
        self.default_sampling_params = self._engine.default_sampling_params
        self._streams = OutputStreams()
        self._step_time = time.monotonic()
        self._pace = CounterPace(self._engine.stats)
        self._stats = self._engine.stats()  # as told last
        self._coming: dict[str, EngineRequest] = {}  # not in the engine yet
        self._commands: SimpleQueue[tuple[Command, Future[Any]]] = SimpleQueue()
        self._closed = False  # no command is taken any more
        self._stopping = False  # the thread ends; its own flag
        self._thread = threading.Thread(target=self._run, name="quire-engine", daemon=True)
        self._thread.start()

    async def generate(
        self,
        prompt: Prompt | EngineRequest,
        sampling_params: SamplingParams | None = None,
        request_id: str = "",
        **attributes: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the request's output after each step that changed it; see :class:`EngineClient`.

        Args:
            prompt: The text or tokens to continue; or the whole request, as servers give it.
            sampling_params: None means the model's own defaults.
            request_id: An id that is unique among live requests.
            **attributes: Further ones, such as ``priority`` and ``lora_request``; see
                :meth:`RequestReader.read`.
        """
        self.check_health()
        request = await self._read(prompt, sampling_params, request_id, attributes)
        request_id = request.request_id
        stream = self._streams.open(request)
        finished = False
        try:
            await self._submit(request)
            while not finished:
                output = await stream.get()
                finished = output.finished
                yield output
        finally:
            # Also when the caller closed the generator or was cancelled at any await above.
            self._streams.close(request_id)
            if not finished and not self._closed:
                self._send(lambda: self._engine.abort_request(request_id))

    async def _submit(self, request: EngineRequest) -> None:
        def submit() -> None:
            self._coming.pop(request.request_id, None)
            try:
                self._engine.submit(request)
            except EngineDeadError:
                self._streams.deliver(self._engine.end_all())
                raise

        self._coming[request.request_id] = request
        try:
            await self._call(submit)
        finally:
            self._coming.pop(request.request_id, None)

    def _request_arrived(self) -> bool:
        """Return whether a request that starts at once has arrived; asked during a step."""
        return any(map(self._engine.engine.starts_at_once, list(self._coming.values())))

    async def abort(self, request_id: str) -> None:
        if not self._closed:
            await self._call(lambda: self._streams.deliver(self._engine.abort_request(request_id)))

    def check_health(self) -> None:
        if self._closed:
            raise EngineDeadError("[engine] it was shut down.")
        self._engine.check_alive()
        if not self._thread.is_alive():
            raise EngineDeadError("[engine] its thread has ended; see the log.")

    def progress(self) -> EngineProgress:
        return EngineProgress.measure(self._streams, self._step_time)

    def stats(self) -> Samples:
        return self._stats

    async def describe_cache(self) -> str:
        self.check_health()
        text: str = await self._call(self._engine.describe_cache)
        return text

    async def reset_prefix_cache(self) -> None:
        self.check_health()
        await self._call(self._engine.reset_prefix_cache)

    def read_adapter(self, name: str, folder: str) -> AdapterReference:
        return self._engine.read_adapter(name, folder)

    async def shutdown(self) -> None:
        if not self._closed:
            self._send(self._stop)
            self._closed = True
        await asyncio.to_thread(self._thread.join)
        self._engine.shutdown()

    async def _read(
        self,
        prompt: Prompt | EngineRequest,
        params: SamplingParams | None,
        request_id: str,
        attributes: dict[str, Any],
    ) -> EngineRequest:
        """Read and complete a request; long texts and grammars in a thread of their own."""
        if isinstance(prompt, EngineRequest):
            size, params = params_size(prompt.params, self.tokenizer), prompt.params
            work = partial(self._engine.complete, prompt)
        else:
            text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
            params = params or SamplingParams(**self.default_sampling_params)
            size = params_size(params, self.tokenizer)
            size += self.tokenizer.work_size(len(text)) if isinstance(text, str) else 0
            work = partial(self._engine.prepare, request_id, prompt, params, **attributes)
        if params.structured_outputs is not None or attributes.get("lora_request") is not None:
            size = INLINE_CHARACTERS
        return await run_by_size(size, "", work)

    def _send(self, command: Command) -> Future[Any]:
        """Pass ``command`` to the engine's thread, which runs it before its next step.

        Raises:
            EngineDeadError: The engine's thread has ended.
        """
        if self._closed:
            raise EngineDeadError("[engine] it was shut down.")
        done: Future[Any] = Future()
        self._commands.put((command, done))
        return done

    async def _call(self, command: Command) -> Any:
        return await asyncio.wrap_future(self._send(command))

    # -- in the engine's thread ---------------------------------------------------------------
    def _run(self) -> None:
        while not self._stopping:
            seconds = self._engine.seconds_until_work()
            if seconds != 0:
                with suppress(Empty):
                    self._run_command(*self._commands.get(timeout=seconds))
            while not self._commands.empty():
                self._run_command(*self._commands.get())
            if self._engine.has_unfinished_requests():
                outputs = self._engine.step(self._request_arrived)
                self._step_time = time.monotonic()
                self._tell_stats()
                self._streams.deliver(outputs)

    def _run_command(self, command: Command, done: Future[Any]) -> None:
        if done.set_running_or_notify_cancel():
            try:
                result = command()
                self._tell_stats()
                done.set_result(result)
            except Exception as error:
                done.set_exception(error)

    def _tell_stats(self) -> None:
        stats = self._pace.read(idle=not self._engine.has_unfinished_requests())
        if stats is not None:
            self._stats = stats

    def _stop(self) -> None:
        for request_id in self._streams.ids():
            self._streams.deliver(self._engine.abort_request(request_id))
        self._stopping = True
