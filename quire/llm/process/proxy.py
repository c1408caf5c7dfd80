"""``EngineProxy``: an engine in a process of its own, as its clients see it; text is made here.

Requests are sent from the event loop that they arrive in; the supervisor's thread brings outputs.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from quire.core import errors
from quire.core.adapter_reference import AdapterReference
from quire.core.engine_request import EngineRequest
from quire.core.errors import CapacityError, EngineDeadError, QuireError
from quire.core.metrics import Samples, add_counters
from quire.core.outputs import RequestOutput
from quire.llm.engine_client import EngineProgress
from quire.llm.engine_views import SharedEngine
from quire.llm.load_state import Loading
from quire.llm.outputs.output_processor import OutputProcessor, stop_strings_of
from quire.llm.outputs.output_streams import OutputStream, OutputStreams
from quire.llm.planning.inferred_methods import infer_methods
from quire.llm.process.engine_messages import (
    Abort,
    Add,
    Describe,
    Done,
    Loaded,
    Refused,
    ResetPrefixCache,
    Start,
    Step,
    StopSequence,
    ToEngine,
)
from quire.llm.process.launcher import EngineLauncher
from quire.llm.process.supervisor import Supervisor
from quire.llm.requests.params import params_size
from quire.llm.requests.request_reader import RequestReader
from quire.settings.config import EngineConfig, ModelOptions
from quire.system.log import LogFormat
from quire.text.offloading import run_by_size
from quire.text.stop_strings import StopStrings
from quire.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from quire.llm.grammars.checker import GrammarChecker

DEFAULT_WATCHDOG_SECONDS = 120.0
DEFAULT_GRAMMAR_SECONDS = 10.0
#: The engine keeps deadlines between steps; after a step that is later than this they are kept
#: without it.
DEADLINE_GRACE_SECONDS = 0.25
#: Characters of stop strings that are sorted in the time in which one is tokenized.
SORTED_PER_TOKENIZED = 64


class EngineProxy(SharedEngine):
    """A supervised engine process.

    When the process dies, or makes no step for ``watchdog_timeout`` while requests are pending,
    these end with ``EngineDeadError``. It is started again, after longer and longer waits, and new
    requests get ``CapacityError`` until it serves.

    Args:
        config: The engine's settings.
        watchdog_timeout: Seconds without a step until it is restarted, if requests are pending.
        log_format: Format of the process's log lines.
        grammar_timeout: Seconds that compiling a grammar may take.
        niceness: Nice value of the process, 0 to 19; it yields the cores to lower ones.
        loading: The progress of loading, written to.
        launcher: The source of its processes; without one they are children of this process.
        meanwhile: A function that is called while it loads, in this thread.

    Raises:
        ConfigError, ModelLoadError, NoKernelError: The model cannot be loaded, as the message says.
        EngineDeadError: The process died while loading.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        watchdog_timeout: float = DEFAULT_WATCHDOG_SECONDS,
        log_format: LogFormat = "human",
        grammar_timeout: float = DEFAULT_GRAMMAR_SECONDS,
        niceness: int = 0,
        loading: Loading | None = None,
        launcher: EngineLauncher | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        # Its process imports the engine while the model's texts are read here.
        self._supervisor = supervisor = Supervisor(self, watchdog_timeout, loading, launcher)
        try:
            config = infer_methods(config)
            self._reader = reader = RequestReader(
                config.model, config.speculative.methods(), config.adapters
            )
            self.tokenizer = reader.tokenizer
            if self.tokenizer.chat_template is not None:
                self.tokenizer.chat_template.prepare()
        except BaseException:
            supervisor.close()
            raise
        self.max_model_len = 0
        self.default_sampling_params = reader.default_sampling_params
        self._streams = OutputStreams()
        # Guards what follows; held for moments only. Requests end under it exactly once.
        self._lock = threading.Lock()
        self._outputs = OutputProcessor(self.tokenizer)
        self._questions: dict[int, Future[str]] = {}
        self._tickets = itertools.count()
        self._num_failed = 0  # sequences that ended with their process
        self._grammar_timeout = grammar_timeout
        self._grammars: GrammarChecker | None = None
        folders = str(reader.folder), str(reader.tokenizer_folder)
        start = Start(folders[0], config, reader.eos_token_ids, folders[1], log_format, niceness)
        supervisor.load(start, meanwhile)

    @property
    def config(self) -> EngineConfig:
        """The settings, ``max_model_len`` resolved."""
        return self._supervisor.config

    @property
    def pid(self) -> int | None:
        """Process id of the engine that serves, or None."""
        return self._supervisor.pid

    @property
    def num_restarts(self) -> int:
        """Number of restarts since the start."""
        return self._supervisor.num_restarts

    def read_texts(self, options: ModelOptions) -> tuple[Tokenizer, dict[str, Any]]:
        reader = self._reader.view(options)
        return reader.tokenizer, reader.default_sampling_params

    async def generate(self, request: EngineRequest, /) -> AsyncGenerator[RequestOutput, None]:
        self._supervisor.check_serving()
        request_id = request.request_id
        stream = self._streams.open(request)
        ended = False
        try:
            request = await self._complete(request)
            num_characters = sum(map(len, request.params.stop or ()))
            search = partial(stop_strings_of, request.params)
            stop = await run_by_size(
                num_characters // SORTED_PER_TOKENIZED, request.client.client_id, search
            )
            self._submit(request, stop)
            while not ended:
                if request.deadline is None:
                    output = await stream.get()
                else:
                    output = await self._get(request.deadline, stream, request_id)
                ended = output.finished
                yield output
        except QuireError:
            ended = True
            raise
        finally:
            # Also when the caller closed the generator or was cancelled at any await above.
            self._streams.close(request_id)
            if not ended:
                self._forget(request_id)

    async def abort(self, request_id: str) -> None:
        with suppress(EngineDeadError, CapacityError):
            await self._ask(lambda ticket: Abort(request_id, ticket))

    def check_serving(self) -> None:
        """Check that the engine takes requests.

        Raises:
            EngineDeadError: The engine was shut down.
            CapacityError: The engine is being restarted.
        """
        self._supervisor.check_serving()

    def check_health(self) -> None:
        try:
            self._supervisor.check_serving()
        except CapacityError as error:
            raise EngineDeadError(str(error)) from error

    def progress(self) -> EngineProgress:
        supervisor = self._supervisor
        progress = EngineProgress.measure(self._streams, supervisor.step_time)
        since = max(supervisor.step_time, supervisor.busy_time)
        # Requests whose grammar is being tried are not the engine's yet.
        stalled = max(0.0, time.monotonic() - since) if self.has_work() else 0.0
        return replace(progress, stalled_seconds=stalled, step_seconds=supervisor.pace.seconds)

    def stats(self) -> Samples:
        own: Samples = {"engine_restarts": self.num_restarts}
        failed: Samples = {'request_success{finished_reason="error"}': self._num_failed}
        engine = add_counters(failed, self._supervisor.stats())
        grammars = {} if self._grammars is None else self._grammars.stats()
        return engine | grammars | self._outputs.stats() | own

    async def describe_cache(self) -> str:
        return await self._ask(Describe)

    async def reset_prefix_cache(self) -> None:
        await self._ask(ResetPrefixCache)

    def read_adapter(self, name: str, folder: str) -> AdapterReference:
        return self._reader.adapters.read(name, folder)

    async def shutdown(self) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Do what :meth:`shutdown` does, in the calling thread."""
        self._supervisor.close()
        if self._grammars is not None:
            self._grammars.close()

    async def _complete(self, request: EngineRequest) -> EngineRequest:
        """Check and complete a request's settings; its grammar is compiled in the sandbox."""
        given, client_id = request, request.client.client_id
        size = params_size(given.params, self.tokenizer)
        request = await run_by_size(size, client_id, lambda: self._reader.complete(given))
        grammar = request.params.structured_outputs
        if grammar is not None:
            assert self._grammars is not None, "made when the model was loaded"
            possible = self._reader.first_tokens(request.params)
            if not await self._grammars.check(grammar, request.deadline, client_id, possible):
                # Past its deadline: the engine ends it before it would need the grammar.
                return replace(request, params=replace(request.params, structured_outputs=None))
        return request

    def _submit(self, request: EngineRequest, stop: StopStrings | None) -> None:
        with self._lock:
            self._supervisor.check_serving()
            self._supervisor.send(Add(replace(request, prompt=None)))  # text stays here
            self._outputs.add(request, stop)

    async def _get(self, deadline: float, stream: OutputStream, request_id: str) -> RequestOutput:
        """Return the next output; one that ends with ``timeout`` when the engine is too late."""
        # Also for a request whose deadline has passed: the engine reports and counts it.
        patience = max(0.0, deadline - time.monotonic()) + DEADLINE_GRACE_SECONDS
        try:
            async with asyncio.timeout(patience):
                return await stream.get()
        except TimeoutError:
            with self._lock:
                ending = self._outputs.end(request_id, "timeout")
                if ending is not None:
                    self._abandon(request_id)
                    self._streams.deliver([ending])
        # This ending, or another one just before it.
        return await stream.get()

    def _forget(self, request_id: str) -> None:
        """Let the engine drop a request that no caller reads any more."""
        with self._lock:
            if self._outputs.discard(request_id):
                self._abandon(request_id)

    def _abandon(self, request_id: str) -> None:
        """End a request that is forgotten here in the engine, too; called with the lock held.

        This counts as work until the engine says that it is done: a stuck engine is found even when
        every client has given up on it.
        """
        ticket = next(self._tickets)
        self._questions[ticket] = Future()
        self._supervisor.send(Abort(request_id, ticket))

    async def _ask(self, question: Callable[[int], ToEngine]) -> str:
        answer: Future[str] = Future()
        with self._lock:
            self._supervisor.check_serving()
            ticket = next(self._tickets)
            self._supervisor.send(question(ticket))
            self._questions[ticket] = answer
        return await asyncio.wrap_future(answer)

    # -- for the supervisor, in its thread ----------------------------------------------------
    def has_work(self) -> bool:
        """Return whether the engine owes an answer."""
        return bool(self._outputs.num_live or self._questions)

    def loaded(self, message: Loaded) -> None:
        """Take note of the model's shape."""
        self.model_config = message.model_config
        self.max_model_len = message.max_model_len
        compiler = self._reader.loaded(message.model_config)
        if self._grammars is None:
            # Imported when the model is loaded: a start does not wait for it.
            from quire.llm.grammars.checker import GrammarChecker

            self._grammars = GrammarChecker(compiler, self._grammar_timeout)

    def received(self, message: Step | Refused | Done) -> None:
        """Hand a message on to the request or question that it is about."""
        with self._lock:
            if isinstance(message, Step):
                self._apply(message)
            elif isinstance(message, Refused):
                self._outputs.discard(message.request_id)
                error = getattr(errors, message.kind)(message.message, message.param)
                self._streams.fail(message.request_id, error)
            else:
                answer = self._questions.pop(message.ticket, None)
                if answer is not None and answer.set_running_or_notify_cancel():
                    answer.set_result(message.text)

    def ended(self, error: QuireError | None) -> None:
        """End every request and question: with ``error``, or with ``abort`` when there is none."""
        told = EngineDeadError("[engine] it was shut down." if error is None else str(error))
        with self._lock:
            self._num_failed += 0 if error is None else self._outputs.num_sequences
            outputs = self._outputs.end_all("abort")
            questions = list(self._questions.values())
            self._questions.clear()
            if error is None:
                self._streams.deliver(outputs)
            else:
                for output in outputs:
                    self._streams.fail(output.request_id, told)
        for answer in questions:
            if answer.set_running_or_notify_cancel():
                answer.set_exception(told)

    def _apply(self, message: Step) -> None:
        """Make text of a step's tokens and hand it to readers; with the lock held."""
        step = self._outputs.process(message.outputs)
        for request_id, index in step.stopped:
            self._supervisor.send(StopSequence(request_id, index))
        for request_id in step.failed:
            self._abandon(request_id)
        # Before any other ending of the same request, which takes the lock.
        self._streams.deliver(step.outputs)
