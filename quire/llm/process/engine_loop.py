"""The process that computes: loads a model, takes requests, runs steps, reports each; no text.

Grammars alone have a tokenizer here: they allow and forbid tokens by their bytes.

It lives as long as its socket: when the server closes it or dies, it ends.
"""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from quire.core.engine_request import EngineRequest
from quire.core.errors import QuireError, RequestError
from quire.core.metrics import Samples
from quire.core.model.model_config import ModelConfig
from quire.engine.engine import Engine
from quire.llm.grammars.compile_thread import Compiler, GrammarThread
from quire.llm.grammars.lazy_compiler import LazyCompiler
from quire.llm.planning.draft_vocabulary import pair_draft_vocabularies
from quire.llm.process.counter_pace import CounterPace
from quire.llm.process.engine_messages import (
    Abort,
    Add,
    Describe,
    Done,
    Failed,
    Loaded,
    LoadProgress,
    Refused,
    ResetPrefixCache,
    Start,
    Step,
    StopSequence,
    to_engine,
)
from quire.llm.process.message_socket import MessageSocket
from quire.llm.progress import loading_bar
from quire.runner.in_process_executor import load_executor
from quire.system.background_stream import use_background_stderr, wait_until_logged
from quire.system.collector import collect_seldom
from quire.system.heap import HeapTrimmer
from quire.system.log import get_logger, set_format
from quire.system.process_usage import process_samples

log = get_logger(__name__)

#: How far loading is travels at most this often.
PROGRESS_SECONDS = 0.1
#: Messages are handled that long between two steps; those that are left wait for the next step.
MESSAGE_SECONDS = 0.01


def run(connection: socket.socket) -> None:
    """Serve the socket until it closes."""
    serve(connection, lambda start: start)


def serve(connection: socket.socket, adapt: Callable[[Start], Start]) -> None:
    """Serve the socket until it closes.

    Args:
        connection: The socket to the server.
        adapt: The function that makes the settings for this machine from the server's.
    """
    faulthandler.enable(all_threads=True)
    # A step releases the interpreter's lock many times, and waits as long to get it back from the
    # threads of grammars: 5 ms each time otherwise.
    sys.setswitchinterval(0.0005)
    link = MessageSocket(connection, to_engine)
    try:
        loop = _load(link, adapt)
        if loop is not None:
            loop.run()
    except (EOFError, OSError):
        log.debug("[engine] the server has closed the connection")


def _load(link: MessageSocket, adapt: Callable[[Start], Start]) -> EngineLoop | None:
    """Load what the first message names, or report why it cannot be."""
    start = adapt(_first(link))
    if start.niceness:  # of this thread, and of those that it starts
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + start.niceness)
    use_background_stderr()
    grammars: list[LazyCompiler] = []

    def create_grammars(model_config: ModelConfig) -> LazyCompiler:
        eos_token_ids, vocab_size = model_config.eos_token_ids, model_config.vocab_size
        grammars.append(LazyCompiler(start.tokenizer_folder, eos_token_ids, vocab_size))
        return grammars[0]

    set_format(start.log_format)
    try:
        methods = start.config.speculative.methods()
        vocabularies = pair_draft_vocabularies(methods, Path(start.tokenizer_folder))
        with loading_bar() as on_progress:
            executor = load_executor(
                Path(start.folder),
                start.config,
                eos_token_ids=start.eos_token_ids,
                on_progress=_reporting(link, on_progress),
                create_grammars=create_grammars,
                vocabularies=vocabularies,
            )
        length = executor.memory.max_model_len
        model = replace(start.config.model, max_model_len=length)
        engine = Engine(executor, replace(start.config, model=model), executor.model_config)
    except (BrokenPipeError, ConnectionResetError):  # the server wants it no more
        raise
    except Exception as error:
        if not isinstance(error, QuireError):
            log.exception("[engine] loading failed")
        _report(link, error, "loading")
        return None
    loop = EngineLoop(engine, link, grammars[0])
    link.send(Loaded(executor.model_config, length, loop.stats()))
    grammars[0].start()
    collect_seldom()
    return loop


def _reporting(link: MessageSocket, show: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """Return a function that shows how far loading is, and now and then tells the server."""
    sent_time = 0.0

    def report(done_bytes: int, total_bytes: int) -> None:
        nonlocal sent_time
        show(done_bytes, total_bytes)
        now = time.monotonic()
        if now - sent_time >= PROGRESS_SECONDS:
            sent_time = now
            link.send(LoadProgress(done_bytes, total_bytes))

    return report


def _first(link: MessageSocket) -> Any:
    while True:
        link.wait(None)
        for message in link.receive():
            return message


def _report(link: MessageSocket, error: Exception, action: str) -> None:
    """Send the error and wait until it is sent; the server then ends this process."""
    wait_until_logged()
    if isinstance(error, QuireError):
        link.send(Failed(type(error).__name__, str(error)))
    else:
        text = f"[engine] {action} failed: {type(error).__name__}: {error}."
        link.send(Failed("EngineDeadError", text))
    while link.has_unsent:
        link.wait(None)
        link.flush()


class EngineLoop:
    """Handles messages between steps.

    Args:
        engine: The engine, which only this loop calls.
        link: The socket to the server.
        grammars: The compiler of constraints, in a thread of its own, before requests are queued.
    """

    def __init__(self, engine: Engine, link: MessageSocket, grammars: Compiler) -> None:
        self._engine = engine
        self._link = link
        self._grammars: GrammarThread[EngineRequest] = GrammarThread(grammars)
        self._heap = HeapTrimmer("engine")
        self._pace = CounterPace(self.stats)
        self._received: deque[Any] = deque()  # in the midst of a step
        self._has_more = False  # messages that were not handled yet

    def run(self) -> None:
        """Work until a step fails or the server closes the connection.

        Raises:
            EOFError, OSError: The server has closed the connection.
        """
        engine, link = self._engine, self._link
        try:
            while True:
                seconds = engine.seconds_until_work()
                if seconds != 0 and not self._has_more:
                    link.wait(seconds, self._grammars.wake, engine.executor.failure)
                    engine.check_alive()
                if link.has_unsent:
                    link.flush()
                self._handle_messages()
                for request, error in self._grammars.take():
                    self._add(request, error)
                if engine.has_unfinished_requests():
                    self._send_step(engine.step(self._request_arrived))
        except (EOFError, OSError):
            engine.executor.shutdown()  # its ranks end, too
            raise
        except Exception as error:
            log.exception("[engine] a step failed")
            _report(link, error, "a step")
        finally:
            self._grammars.close()
            self._heap.close()

    def stats(self) -> Samples:
        """Return the counters of engine and process, the same ones from the beginning."""
        return self._engine.stats() | process_samples("engine") | self._heap.samples()

    def _handle_messages(self) -> None:
        """Handle what has arrived, for a while: others wait for the next step."""
        end = time.monotonic() + MESSAGE_SECONDS
        self._has_more = False
        for message in self._messages():
            self._handle(message)
            if time.monotonic() >= end:
                self._has_more = True
                return

    def _messages(self) -> Iterator[Any]:
        while self._received:
            yield self._received.popleft()
        yield from self._link.receive()

    def _request_arrived(self) -> bool:
        """Return whether a request that starts at once has arrived; asked during a step."""
        new: list[Any] = []  # earlier requests do not start at once, or the step would have ended
        with suppress(EOFError, OSError):  # the next look between steps sees it, too
            new.extend(self._link.receive())
        self._received += new
        self._has_more |= bool(new)
        return any(self._starts_at_once(m.request) for m in new if isinstance(m, Add))

    def _starts_at_once(self, request: EngineRequest) -> bool:
        constraint = request.params.structured_outputs
        is_compiled = constraint is None or self._grammars.knows(constraint)
        return is_compiled and self._engine.starts_at_once(request)

    def _send_step(self, outputs: list[Any]) -> None:
        stats = self._pace.read(idle=not self._engine.has_unfinished_requests())
        self._link.send(Step(outputs, stats))

    def _handle(self, message: Any) -> None:
        if isinstance(message, Add):
            constraint = message.request.params.structured_outputs
            if constraint is None or self._grammars.knows(constraint):
                self._add(message.request)
            else:
                self._grammars.submit(message.request.request_id, constraint, message.request)
        elif isinstance(message, StopSequence):
            self._engine.stop_sequence(message.request_id, message.index)
            self._send_step([])
        elif isinstance(message, Abort):
            compiling = self._grammars.withdraw(message.request_id)
            if compiling is not None:
                self._add(compiling)  # so that it ends like any other
            self._send_step(self._engine.abort_request(message.request_id))
            self._link.send(Done(message.ticket))
        elif isinstance(message, Describe):
            self._link.send(Done(message.ticket, self._engine.describe_cache()))
        elif isinstance(message, ResetPrefixCache):
            self._engine.reset_prefix_cache()
            self._link.send(Done(message.ticket))

    def _add(self, request: EngineRequest, error: RequestError | None = None) -> None:
        try:
            if error is not None:
                raise error
            self._engine.add_request(request)
        except RequestError as refusal:
            kind = type(refusal).__name__
            self._link.send(Refused(request.request_id, kind, str(refusal), refusal.param))
