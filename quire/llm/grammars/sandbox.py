"""A process that compiles grammars to see whether that ends; its parent ends it when not.

What a grammar costs to compile cannot be told before, and some would take hours, gigabytes or more
stack than there is. Here they take no one else with them.
"""

from __future__ import annotations

import math
import os
import resource
import signal
import threading
from contextlib import suppress
from multiprocessing.connection import Connection

import msgspec
from llguidance import LLTokenizer

from quire.core.errors import RequestError
from quire.llm.process.tie import tie_to
from quire.text.grammar import Vocabulary, compile_grammar

#: Less than the engine has (``compile_thread``), so that what passes here passes there.
STACK_BYTES = 4 * 2**20
#: What a grammar may take beside the vocabulary.
MEMORY_BYTES = 2**30
#: Tokens of running requests come first.
NICENESS = 5


def run(descriptor: int, parent: int, seconds: float) -> None:
    """Answer each grammar that comes from ``descriptor`` with its error or nothing, to its end."""
    tie_to(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.nice(NICENESS)
    link = Connection(descriptor)
    with suppress(EOFError, OSError):
        tokenizer = Vocabulary(*msgspec.msgpack.decode(link.recv_bytes())).create_tokenizer()
        _limit(resource.RLIMIT_AS, _address_space() + MEMORY_BYTES)
        link.send_bytes(b"")
        threading.stack_size(STACK_BYTES)
        while True:
            kind, grammar = msgspec.msgpack.decode(link.recv_bytes())
            # Should the parent be gone, the kernel keeps the limit.
            used = resource.getrusage(resource.RUSAGE_SELF)
            cpu_seconds = used.ru_utime + used.ru_stime + 2 * seconds + 1
            _limit(resource.RLIMIT_CPU, math.ceil(cpu_seconds))
            answer: list[str] = []
            thread = threading.Thread(target=_compile, args=(tokenizer, kind, grammar, answer))
            thread.start()
            thread.join()
            link.send_bytes(answer[0].encode())


def _compile(tokenizer: LLTokenizer, kind: str, grammar: str, answer: list[str]) -> None:
    try:
        compile_grammar(tokenizer, kind, grammar)
        answer.append("")
    except RequestError as refusal:
        answer.append(str(refusal))
    except Exception as error:
        answer.append(f"[structured_outputs] compiling failed: {error!r}.")


def _limit(what: int, value: int) -> None:
    _, hard = resource.getrlimit(what)
    with suppress(ValueError, OSError):  # a lower one is set already, or the system has none
        resource.setrlimit(what, (value, hard))


def _address_space() -> int:
    """Return the bytes of addresses in use; a machine's worth where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 2**40
