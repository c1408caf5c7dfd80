"""Checks grammars by compiling them in other processes, within a time.

The server's side: what passes here is compiled once more where it is used.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

import msgspec

from quire.core.errors import CapacityError, RequestError
from quire.core.metrics import COMPILATION_BUCKETS, HistogramCounts, Samples
from quire.core.structured_outputs import StructuredOutputs
from quire.system.fair_slots import FairSlots
from quire.system.sandboxes import Sandbox, SandboxDied, Sandboxes
from quire.text.grammars.grammar import GrammarCompiler, grammar_of
from quire.text.grammars.grammar_vocabulary import GrammarVocabulary

_COMPILER = "quire.llm.grammars.grammar_sandbox:compile_in_sandbox"
#: Grammars compiled at once: one that takes long does not hold up the others.
MAX_PROCESSES = 3
#: Grammars of one client at a time, so that a client that sends long ones leaves a process free.
MAX_PER_CLIENT = 2
#: New grammars of one client that wait for a process; further ones are sent away.
MAX_WAITING_PER_CLIENT = 64
#: Answers kept, refusals too.
MAX_KEPT = 1024


@dataclass(slots=True)
class _Checking:
    """A client's grammar that is being checked, and how many of its requests wait for that."""

    key: tuple[str, bytes]
    task: asyncio.Future[None]
    num_waiting: int = 0


class GrammarChecker:
    """Compiles the grammars of requests, in processes that are started when needed.

    Args:
        compiler: The compiler that names the vocabulary; it compiles nothing here.
        seconds: Wall-clock time for a grammar: half of it here, as the engine compiles it again.

    Attributes:
        threads: Threads that :meth:`compile` waits in; a process lives as long as the thread that
            started it.
        compilation_time: Seconds of each constraint that was compiled.
    """

    def __init__(self, compiler: GrammarCompiler, seconds: float) -> None:
        self._vocabulary: GrammarVocabulary | None = None
        self._compiler = compiler
        self._seconds = seconds
        self._sandboxes = Sandboxes(self._start)
        self._answers: OrderedDict[bytes, str] = OrderedDict()
        self._lock = threading.Lock()  # of the answers; held for moments only
        self._under_way: dict[tuple[str, bytes], _Checking] = {}
        self._turns = FairSlots(
            MAX_PROCESSES,
            MAX_PER_CLIENT,
            MAX_WAITING_PER_CLIENT,
            f"[structured_outputs] at most {MAX_WAITING_PER_CLIENT} new grammars of one client may "
            "wait to be checked. Try again.",
        )
        self.threads = ThreadPoolExecutor(MAX_PROCESSES, thread_name_prefix="quire-grammars")
        self.compilation_time = HistogramCounts(COMPILATION_BUCKETS)

    def knows(self, constraint: StructuredOutputs, possible: bytes = b"") -> bool:
        """Return whether :meth:`compile` will answer at once."""
        return self._answer(_key(constraint, possible)) is not None

    def compile(self, constraint: StructuredOutputs, possible: bytes = b"") -> None:
        """Check that the constraint can be enforced; call it in :attr:`threads`, or when known.

        Args:
            constraint: The request's constraint.
            possible: Tokens that its other settings leave for the beginning, a bit per id; nothing
                where they leave all.

        Raises:
            RequestError: The constraint cannot be enforced, is no grammar, or takes too much.
            CapacityError: No process can compile it.
        """
        key = _key(constraint, possible)
        answer = self._answer(key)
        if answer is None:
            grammar = grammar_of(constraint)
            start = time.perf_counter()
            answer, is_certain = self._ask(constraint.kind, grammar, possible)
            with self._lock:
                self.compilation_time.observe(time.perf_counter() - start)
                if is_certain:
                    self._answers[key] = answer
                if len(self._answers) > MAX_KEPT:
                    self._answers.popitem(last=False)
        if answer:
            raise RequestError(answer, "structured_outputs")

    def _ask(self, kind: str, grammar: str, possible: bytes) -> tuple[str, bool]:
        """Return the refusal of a grammar, empty without one, and whether it stands for good."""
        question = msgspec.msgpack.encode((kind, grammar, possible))
        try:
            answer = self._sandboxes.ask(question, self._seconds / 2)
        except SandboxDied as death:
            return self._refusal_of(death, kind), False
        except (OSError, EOFError) as error:
            raise CapacityError(
                f"[structured_outputs] no process to compile grammars: {error}.", 1.0
            ) from error
        if answer is not None:
            return answer.decode(), True
        # It may have been the machine.
        rule = (
            f"compile within {self._seconds:g} s (--grammar-compilation-timeout), tried once "
            "before it is used; it takes longer"
        )
        return f"[structured_outputs] {kind} must {rule}. Simplify it.", False

    def _refusal_of(self, death: SandboxDied, kind: str) -> str:
        if not death.is_over_limits:
            raise CapacityError(
                "[structured_outputs] the process that checks grammars has died twice "
                f"({death}). Try again.",
                1.0,
            )
        rule = "compile; it takes more memory or deeper nesting than there is"
        return f"[structured_outputs] {kind} must {rule}. Simplify it."

    async def check(
        self,
        constraint: StructuredOutputs,
        deadline: float | None = None,
        client_id: str = "",
        possible: bytes = b"",
    ) -> bool:
        """Wait for the answer of :meth:`compile`, in an event loop; not at all when it is known.

        Args:
            constraint: The request's constraint.
            deadline: A time on the monotonic clock, in seconds; a compilation then continues.
            client_id: The client's id; clients take turns.
            possible: The same as in :meth:`compile`.

        Returns:
            Whether it was known before the deadline.

        Raises:
            RequestError: The same as in :meth:`compile`.
            CapacityError: No process can compile it, or too many of the client's grammars wait.
            EngineDeadError: The checker was closed.
        """
        if not self.knows(constraint, possible):
            patience = None if deadline is None else max(0.0, deadline - time.monotonic())
            checking = self._begin(constraint, client_id, possible)
            try:
                await asyncio.wait({checking.task}, timeout=patience)
            finally:
                checking.num_waiting -= 1
                if not checking.num_waiting and not checking.task.done():
                    checking.task.cancel()
                    del self._under_way[checking.key]  # a request that arrives now begins anew
            if not checking.task.done():
                return False
            if not self.knows(constraint, possible):
                checking.task.result()
                return True
        self.compile(constraint, possible)
        return True

    def _begin(self, constraint: StructuredOutputs, client_id: str, possible: bytes) -> _Checking:
        """Return the check of a client's grammar: the one under way, where there is one.

        A body may ask for the same of a thousand prompts.
        """
        key = client_id, _key(constraint, possible)
        checking = self._under_way.get(key)
        if checking is None:
            compiling = partial(self.compile, constraint, possible)
            task = asyncio.ensure_future(self._turns.run(client_id, self.threads, compiling))
            checking = self._under_way[key] = _Checking(key, task)
            task.add_done_callback(partial(self._ended, checking))
        checking.num_waiting += 1
        return checking

    def _ended(self, checking: _Checking, task: asyncio.Future[None]) -> None:
        if self._under_way.get(checking.key) is checking:
            del self._under_way[checking.key]
        if not task.cancelled():
            task.exception()  # those that wait ask for it, if they are still there

    def stats(self) -> Samples:
        """Return what was compiled, by metric stem."""
        return {"grammar_compilation_time_seconds": self.compilation_time.state()}

    def close(self) -> None:
        """End the processes; what waits for one is refused."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        self._sandboxes.close()

    def _answer(self, key: bytes) -> str | None:
        """Return what is known of a constraint: its refusal, empty when it has none, or None."""
        with self._lock:
            answer = self._answers.get(key)
            if answer is not None:
                self._answers.move_to_end(key)
        return answer

    def _start(self) -> Sandbox:
        """Start a process that knows the vocabulary."""
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = self._compiler.vocabulary()
        first = msgspec.msgpack.encode((self._seconds, self._vocabulary.parts()))
        return Sandbox(_COMPILER, first)


def _key(constraint: StructuredOutputs, possible: bytes) -> bytes:
    return sha256(constraint.key.encode("utf-8", "surrogatepass") + b"\0" + possible).digest()
