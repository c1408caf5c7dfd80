"""A process that compiles and tries grammars; its parent ends it when that does not end.

What a grammar costs to compile cannot be told before, and some would take hours, gigabytes or more
stack than there is. Here they take no one else with them.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import NamedTuple

import msgspec
from llguidance import LLTokenizer

from quire.core.errors import RequestError
from quire.llm.grammars.trial import try_out
from quire.system.sandboxes import limit_computing, limit_memory
from quire.text.grammars.grammar import create_start
from quire.text.grammars.grammar_vocabulary import GrammarVocabulary

#: Less than the engine has (``compile_thread``), so that what passes here passes there.
STACK_BYTES = 4 * 2**20
#: What a grammar may take besides the vocabulary.
MEMORY_BYTES = 2**30
#: Tokens of running requests come first.
NICENESS = 5


class GrammarQuestion(NamedTuple):
    """A message: the field that asked, its grammar, and the tokens that may begin, a bit per id."""

    kind: str
    grammar: str
    possible: bytes


def compile_in_sandbox(connection: socket.socket) -> None:
    """Answer each grammar that arrives with its error or nothing, until the socket closes.

    The first message is how long a grammar may take, in seconds, and the vocabulary.
    """
    os.nice(NICENESS)
    link = Connection(connection.detach())
    with suppress(EOFError, OSError):
        seconds, vocabulary = msgspec.msgpack.decode(link.recv_bytes())
        words = GrammarVocabulary(*vocabulary)
        tokenizer = words.create_tokenizer()
        limit_memory(MEMORY_BYTES)
        link.send_bytes(b"")
        threading.stack_size(STACK_BYTES)
        while True:
            question = GrammarQuestion(*msgspec.msgpack.decode(link.recv_bytes()))
            limit_computing(seconds)
            answer: list[str] = []
            task = (tokenizer, words, question, answer)
            thread = threading.Thread(target=_compile, args=task)
            thread.start()
            thread.join()
            link.send_bytes(answer[0].encode())


def _compile(
    tokenizer: LLTokenizer, words: GrammarVocabulary, question: GrammarQuestion, answer: list[str]
) -> None:
    try:
        start = create_start(tokenizer, question.kind, question.grammar)
        try_out(start, question.kind, words, question.possible)
        answer.append("")
    except RequestError as refusal:
        answer.append(str(refusal))
    except Exception as error:
        answer.append(f"[structured_outputs] compiling failed: {error!r}.")
