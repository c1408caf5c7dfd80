"""``AsyncLLM``: the engine in a thread of its own, its outputs as async generators.

The thread alone touches the engine; everything else reaches it by commands, which it runs between
steps. Native kernels release the GIL, so the event loop goes on while a step computes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from quire.core.client import SHARED, Client
from quire.core.config import EngineConfig
from quire.core.errors import EngineDeadError
from quire.core.metrics import Samples
from quire.core.model_config import ModelConfig
from quire.core.outputs import RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.llm.engine_client import EngineProgress, Prompt
from quire.llm.output_streams import OutputStreams
from quire.llm.progress import loading_bar
from quire.llm.request_reader import prepare_off_loop
from quire.llm.text_engine import TextEngine
from quire.text.tokenizer import Tokenizer

Command = Callable[[], Any]


class AsyncLLM:
    """A model loaded for concurrent use; see :class:`quire.llm.engine_client.EngineClient`.

    Args:
        model: Folder, hub id, or ``quire-tiny`` (embedded).
        **keywords: Settings of :mod:`quire.core.config` (the flags of ``quire serve``).

    Attributes:
        config: The settings, ``max_model_len`` resolved.

    Raises:
        ConfigError, ModelLoadError, NoKernelError: It cannot be loaded; the message says why.
    """

    def __init__(self, model: str = "quire-tiny", **keywords: Any) -> None:
        self._start(EngineConfig.from_keywords(model=model, **keywords))

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
        self.model_config: ModelConfig = self._engine.model_config
        self.max_model_len: int = self._engine.max_model_len
        self.tokenizer: Tokenizer = self._engine.tokenizer
        self.default_sampling_params: dict[str, Any] = self._engine.default_sampling_params
        self._streams = OutputStreams()
        self._step_time = time.monotonic()
        self._commands: SimpleQueue[tuple[Command, Future[Any]]] = SimpleQueue()
        self._closed = False  # no command is taken any more
        self._stopping = False  # the thread ends; its own flag
        self._thread = threading.Thread(target=self._run, name="quire-engine", daemon=True)
        self._thread.start()

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        deadline: float | None = None,
        client: Client = SHARED,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the request's state after each step that changed it; see the protocol."""
        self.check_health()
        stream = self._streams.open(request_id, sampling_params.output_kind)
        finished = False
        try:
            request = await prepare_off_loop(
                self._engine.prepare,
                request_id,
                prompt,
                sampling_params,
                priority=priority,
                cache_salt=cache_salt,
                deadline=deadline,
                client=client,
            )
            await self._call(lambda: self._engine.submit(request))
            while not finished:
                output = await stream.get()
                finished = output.finished
                yield output
        finally:
            # Also when the caller closed the generator or was cancelled at any await above.
            self._streams.close(request_id)
            if not finished and not self._closed:
                self._send(lambda: self._engine.abort_request(request_id))

    async def abort(self, request_id: str) -> None:
        """End a request with ``abort``; its blocks are free on return."""
        if request_id in self._streams and not self._closed:
            await self._call(lambda: self._streams.deliver(self._engine.abort_request(request_id)))

    def check_health(self) -> None:
        """Return when the engine works.

        Raises:
            EngineDeadError: It has stopped.
        """
        if self._closed:
            raise EngineDeadError("[engine] it was shut down.")
        self._engine.check_alive()
        if not self._thread.is_alive():
            raise EngineDeadError("[engine] its thread has ended; see the log.")

    def progress(self) -> EngineProgress:
        """Return how the engine gets on."""
        return EngineProgress.measure(self._streams, self._step_time)

    def stats(self) -> Samples:
        """Return counters and gauges by metric stem."""
        return self._engine.stats()

    async def describe_cache(self) -> str:
        """Return the KV pool and every block table as text, as they are between two steps."""
        self.check_health()
        text: str = await self._call(self._engine.describe_cache)
        return text

    async def shutdown(self) -> None:
        """Stop the engine; open requests end with ``abort``. A second call does nothing."""
        if not self._closed:
            self._send(self._stop)
            self._closed = True
        await asyncio.to_thread(self._thread.join)
        self._engine.shutdown()

    def _send(self, command: Command) -> Future[Any]:
        """Have the engine's thread run ``command`` before its next step.

        Raises:
            EngineDeadError: There is no thread any more.
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
            if not self._engine.has_unfinished_requests():
                self._obey(*self._commands.get())
            while not self._commands.empty():
                self._obey(*self._commands.get())
            if self._engine.has_unfinished_requests():
                outputs = self._engine.step()
                self._step_time = time.monotonic()
                self._streams.deliver(outputs)

    def _obey(self, command: Command, done: Future[Any]) -> None:
        if done.set_running_or_notify_cancel():
            try:
                done.set_result(command())
            except Exception as error:
                done.set_exception(error)

    def _stop(self) -> None:
        for request_id in self._streams.ids():
            self._streams.deliver(self._engine.abort_request(request_id))
        self._stopping = True
