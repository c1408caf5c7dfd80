"""``EngineProxy``: an engine in a process of its own, kept alive; its text is made here.

A thread owns the process: it starts it, reads it, watches that it advances while work is pending,
and starts it again. Requests are written from the event loop that brought them.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any

from quire.core import errors
from quire.core.config import EngineConfig
from quire.core.errors import CapacityError, EngineDeadError, QuireError
from quire.core.log import LogFormat, get_logger
from quire.core.metrics import METRICS, Samples, add_counters, stem_of
from quire.core.model_config import ModelConfig
from quire.core.outputs import RequestOutput
from quire.core.request import EngineRequest
from quire.llm.engine_client import EngineProgress
from quire.llm.grammars.checker import DEFAULT_SECONDS, GrammarChecker
from quire.llm.output_processor import OutputProcessor
from quire.llm.output_streams import OutputStream, OutputStreams
from quire.llm.process.child import EngineChild
from quire.llm.process.messages import (
    Abort,
    Add,
    Describe,
    Done,
    Failed,
    Loaded,
    Refused,
    Start,
    Step,
    StopSequence,
    ToEngine,
)
from quire.llm.request_reader import RequestReader
from quire.text.tokenizer import Tokenizer

log = get_logger(__name__)

#: How often the watchdog looks.
TICK_SECONDS = 0.25
#: Between two looks; more means that this process was paused, perhaps with all of the machine.
MAX_LOOK_SECONDS = 1.0
FIRST_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0
#: An engine that served so long has recovered: the next restart is prompt again.
STABLE_SECONDS = 60.0
DEFAULT_WATCHDOG_SECONDS = 120.0
#: The engine keeps deadlines between steps; behind a step that is later than this they are kept
#: without it.
DEADLINE_GRACE_SECONDS = 0.25


class EngineProxy:
    """A supervised engine process; see :class:`quire.llm.engine_client.EngineClient`.

    When the process dies, or makes no step for ``watchdog_timeout`` while requests are pending,
    these end with ``EngineDeadError``. It is started again, after longer and longer waits, and new
    requests get ``CapacityError`` until it serves.

    Args:
        config: The engine's settings.
        watchdog_timeout: Seconds.
        log_format: Of the process's log lines.
        grammar_timeout: Seconds that compiling a grammar may take.

    Attributes:
        config: The settings, ``max_model_len`` resolved.
        num_restarts: Since the start.

    Raises:
        ConfigError, ModelLoadError, NoKernelError: It cannot be loaded; the message says why.
        EngineDeadError: It died while loading.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        watchdog_timeout: float = DEFAULT_WATCHDOG_SECONDS,
        log_format: LogFormat = "human",
        grammar_timeout: float = DEFAULT_SECONDS,
    ) -> None:
        self.config = config
        self.model_config: ModelConfig
        self.max_model_len = 0
        self.num_restarts = 0
        self._reader = RequestReader(config.model)
        self.tokenizer: Tokenizer = self._reader.tokenizer
        self.default_sampling_params: dict[str, Any] = self._reader.default_sampling_params
        self._watchdog_timeout = watchdog_timeout
        reader = self._reader
        self._start = Start(
            str(reader.folder),
            config,
            reader.eos_token_ids,
            str(reader.tokenizer_folder),
            log_format,
        )
        self._streams = OutputStreams()
        # Guards what follows; held for moments only. Requests end under it exactly once.
        self._lock = threading.Lock()
        self._child: EngineChild | None = None  # that serves
        self._outputs = OutputProcessor(self.tokenizer)
        self._questions: dict[int, Future[str]] = {}
        self._closed = False
        self._retry_time = 0.0
        self._step_time = time.monotonic()
        self._stats: Samples = {}  # of the process that serves
        self._ended_stats: Samples = {}  # counted by those before it
        self._num_failed = 0  # sequences that ended with their process
        self._grammar_timeout = grammar_timeout
        self._grammars: GrammarChecker | None = None
        self._tickets = itertools.count()
        self._waker, self._wake = socket.socketpair()
        self._waker.setblocking(False)
        self._first_load: Future[None] = Future()
        self._thread = threading.Thread(target=self._supervise, name="quire-supervisor")
        self._thread.daemon = True
        self._thread.start()
        try:
            self._first_load.result()
        except BaseException:
            self._close()
            raise

    @property
    def pid(self) -> int | None:
        """Process id of the engine that serves, or None."""
        child = self._child
        return None if child is None else child.pid

    async def generate(self, request: EngineRequest, /) -> AsyncGenerator[RequestOutput, None]:
        """Yield the request's output after each step that changed it; see the protocol."""
        self._check_taking()
        request_id = request.request_id
        stream = self._streams.open(request)
        ended = False
        try:
            self._submit(await self._complete(request))
            while not ended:
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
        """End a request with ``abort``; its blocks are free on return."""
        if request_id in self._streams:
            with suppress(EngineDeadError, CapacityError):
                await self._ask(lambda ticket: Abort(request_id, ticket))

    def check_health(self) -> None:
        """Return when the engine takes requests.

        Raises:
            EngineDeadError: It was shut down, or it is being restarted.
        """
        try:
            self._check_taking()
        except CapacityError as error:
            raise EngineDeadError(str(error)) from error

    def progress(self) -> EngineProgress:
        """Return how the engine gets on."""
        return EngineProgress.measure(self._streams, self._step_time)

    def stats(self) -> Samples:
        """Return the newest counters and gauges by metric stem; they outlive restarts."""
        own: Samples = {"engine_restarts": self.num_restarts}
        failed: Samples = {'request_success{finished_reason="error"}': self._num_failed}
        engine = add_counters(failed, add_counters(self._ended_stats, self._stats))
        grammars = {} if self._grammars is None else self._grammars.stats()
        return engine | grammars | self._outputs.stats() | own

    async def describe_cache(self) -> str:
        """Return the KV pool and every block table as text, as they are between two steps."""
        return await self._ask(Describe)

    async def shutdown(self) -> None:
        """Stop the engine; open requests end with ``abort``. A second call does nothing."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._lock:
            self._closed = True
        with suppress(OSError):
            self._waker.send(b"x")
        self._thread.join()
        if self._grammars is not None:
            self._grammars.close()
        self._waker.close()
        self._wake.close()

    def _check_taking(self) -> None:
        if self._closed:
            raise EngineDeadError("[engine] it was shut down.")
        if self._child is None:
            wait = max(1.0, self._retry_time - time.monotonic())
            raise CapacityError("[engine] it is being restarted. Try again.", wait)

    async def _complete(self, request: EngineRequest) -> EngineRequest:
        """Check and complete a request's settings; its grammar is compiled in the sandbox."""
        request = self._reader.complete(request)
        grammar = request.params.structured_outputs
        if grammar is not None:
            assert self._grammars is not None, "made when the model was loaded"
            if not await self._grammars.check(grammar, request.deadline):
                # Past its deadline: the engine ends it before it would need the grammar.
                return replace(request, params=replace(request.params, structured_outputs=None))
        return request

    def _submit(self, request: EngineRequest) -> None:
        with self._lock:
            self._check_taking()
            if not self._has_work():
                self._step_time = time.monotonic()
            self._outputs.add(request)
            self._send(Add(replace(request, prompt=None)))  # text stays in this process

    async def _get(
        self, deadline: float | None, stream: OutputStream, request_id: str
    ) -> RequestOutput:
        """Return the next output; one that ends with ``timeout`` when the engine is too late."""
        if deadline is None:
            return await stream.get()
        # Also of a request that came too late: the engine is to say and count so.
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
        # This ending, or another that has just come before it.
        return await stream.get()

    def _forget(self, request_id: str) -> None:
        """Have the engine drop a request that nobody reads any more."""
        with self._lock:
            if self._outputs.discard(request_id):
                self._abandon(request_id)

    def _abandon(self, request_id: str) -> None:
        """Have the engine end what is forgotten here; with the lock held.

        It is work until the engine says that it is done: one that is stuck is found out even when
        every client has given up on it.
        """
        if self._child is not None:
            ticket = next(self._tickets)
            self._questions[ticket] = Future()
            self._send(Abort(request_id, ticket))

    async def _ask(self, question: Callable[[int], ToEngine]) -> str:
        answer: Future[str] = Future()
        with self._lock:
            self._check_taking()
            if not self._has_work():
                self._step_time = time.monotonic()
            ticket = next(self._tickets)
            self._questions[ticket] = answer
            self._send(question(ticket))
        return await asyncio.wrap_future(answer)

    def _send(self, message: ToEngine) -> None:
        assert self._child is not None
        self._child.send(message)
        if self._child.has_unsent:
            with suppress(OSError):  # full: the thread is about to wake anyhow
                self._waker.send(b"x")

    def _has_work(self) -> bool:
        return bool(self._outputs.num_live or self._questions)

    # -- in the supervisor's thread -----------------------------------------------------------
    def _supervise(self) -> None:
        backoff = FIRST_BACKOFF_SECONDS
        while not self._closed:
            self._retry_time = time.monotonic() + backoff
            started = time.monotonic()
            error = self._run_child()
            if not self._first_load.done():
                self._first_load.set_exception(error)
                return
            if self._closed:
                break
            if time.monotonic() - started > STABLE_SECONDS:
                backoff = FIRST_BACKOFF_SECONDS
            self.num_restarts += 1
            self._retry_time = time.monotonic() + backoff
            log.error("%s It is started again in %.1f s.", error, backoff)
            self._wait_closed(backoff)
            backoff = min(2 * backoff, MAX_BACKOFF_SECONDS)
        self._end_all(None)

    def _run_child(self) -> QuireError:
        """Start a process and read it to its end; return why it ended."""
        try:
            child = EngineChild(self._start)
        except OSError as failure:
            return EngineDeadError(f"[engine] its process could not be started: {failure}.")
        error: QuireError | None = None
        try:
            error = self._watch(child)
        except EOFError:
            pass
        except BaseException as failure:  # nobody would be told of it, and all would wait
            log.exception("[engine] reading its process failed")
            error = EngineDeadError(f"[engine] reading its process failed: {failure!r}.")
        with self._lock:
            self._child = None
        self._close_books()
        if self._closed:
            self._end_all(None)
        ending = child.end(at_once=not self._closed)
        if error is None:
            error = EngineDeadError(f"[engine] its process has died ({ending}); see the log.")
        self._end_all(error)
        return error

    def _watch(self, child: EngineChild) -> QuireError | None:
        """Read a process until it fails, is stuck or is not wanted any more.

        Raises:
            EOFError: It is gone.
        """
        looked = time.monotonic()
        while not self._closed:
            for message in child.receive(TICK_SECONDS, self._wake):
                error = self._take(child, message)
                if error is not None:
                    return error
            self._drain_wake()
            now = time.monotonic()
            if now - looked > MAX_LOOK_SECONDS:  # a time nobody watched says nothing of the engine
                self._step_time = min(now, self._step_time + now - looked)
            looked = now
            if self._is_stuck():
                return self._stuck_error(child)
        return None

    def _take(self, child: EngineChild, message: Any) -> QuireError | None:
        """Act on a message; return the error it stands for."""
        self._step_time = time.monotonic()
        if isinstance(message, Step):
            self._take_step(message)
        elif isinstance(message, Refused):
            with self._lock:
                self._outputs.discard(message.request_id)
            refused = getattr(errors, message.kind)(message.message, message.param)
            self._streams.fail(message.request_id, refused)
        elif isinstance(message, Done):
            answer = self._questions.pop(message.ticket, None)
            if answer is not None and answer.set_running_or_notify_cancel():
                answer.set_result(message.text)
        elif isinstance(message, Loaded):
            self._take_loaded(child, message)
        elif isinstance(message, Failed):
            kind: type[QuireError] = getattr(errors, message.kind, EngineDeadError)
            return kind(message.message)
        return None

    def _take_step(self, message: Step) -> None:
        if message.stats is not None:
            self._stats = message.stats
        if not message.outputs:
            return
        with self._lock:
            step = self._outputs.process(message.outputs)
            for request_id, index in step.stopped:
                self._send(StopSequence(request_id, index))
            for request_id in step.failed:
                self._abandon(request_id)
            self._streams.deliver(step.outputs)  # before any other ending that the lock permits

    def _take_loaded(self, child: EngineChild, message: Loaded) -> None:
        self.model_config = message.model_config
        self.max_model_len = message.max_model_len
        compiler = self._reader.loaded(message.model_config)
        if self._grammars is None:
            self._grammars = GrammarChecker(compiler, self._grammar_timeout)
        model = replace(self.config.model, max_model_len=message.max_model_len)
        self.config = replace(self.config, model=model)
        # What was promised to clients holds after a restart too.
        self._start.config = self.config
        self._stats = message.stats
        with self._lock:
            self._child = child
        if self._first_load.done():
            log.info("[engine] it serves again")
        else:
            self._first_load.set_result(None)

    def _close_books(self) -> None:
        """Keep what a process that is gone has counted; its gauges, but for sizes, are zero."""
        names = [name for name in self._stats if METRICS[stem_of(name)].kind == "gauge"]
        self._ended_stats = add_counters(self._ended_stats, self._stats)
        self._stats = dict.fromkeys(names, 0.0)

    def _is_stuck(self) -> bool:
        age = time.monotonic() - self._step_time
        return self._child is not None and self._has_work() and age > self._watchdog_timeout

    def _stuck_error(self, child: EngineChild) -> EngineDeadError:
        error = EngineDeadError(
            f"[engine] no step has ended for {self._watchdog_timeout:g} s (--watchdog-timeout) "
            "while requests were pending."
        )
        # Whoever waits is told first: the stacks take a moment.
        with self._lock:
            self._child = None
        self._end_all(error)
        log.error("%s The engine's Python stacks:", error)
        child.dump_stacks()
        return error

    def _end_all(self, error: QuireError | None) -> None:
        """End every request and question: with ``error``, or with ``abort`` when there is none."""
        with self._lock:
            self._num_failed += 0 if error is None else self._outputs.num_sequences
            outputs = self._outputs.end_all("abort")
            questions = list(self._questions.values())
            self._questions.clear()
        told = EngineDeadError("[engine] it was shut down." if error is None else str(error))
        if error is None:
            self._streams.deliver(outputs)
        else:
            for output in outputs:
                self._streams.fail(output.request_id, told)
        for answer in questions:
            if answer.set_running_or_notify_cancel():
                answer.set_exception(told)

    def _wait_closed(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._closed and time.monotonic() < end:
            time.sleep(min(TICK_SECONDS, max(0.0, end - time.monotonic())))

    def _drain_wake(self) -> None:
        with suppress(BlockingIOError):
            self._wake.recv(4096, socket.MSG_DONTWAIT)
