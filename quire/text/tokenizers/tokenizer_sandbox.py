"""A process that reads a tokenizer's files and tokenizes texts; its parent ends it otherwise."""

from __future__ import annotations

import errno
import marshal
import os
import socket
from array import array
from contextlib import suppress
from multiprocessing.connection import Connection

from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel

from quire.core.errors import QuireError, RequestError
from quire.system.sandboxes import limit_computing, limit_memory
from quire.text.tokenizers.tokenizer import load_tokenizer
from quire.text.tokenizers.tokenizer_process import ID_TYPE, IDS, MEMORY_BYTES, SAID, UNREADABLE

#: Tokens of running requests come first, and short texts.
NICENESS = 10


def tokenize_in_sandbox(connection: socket.socket) -> None:
    """Answer each text that arrives with its token ids, until the socket closes.

    The first message is how long one may take, in seconds; each other one the files, a text's
    parts, and whether the tokenizer's own tokens stand around them.
    """
    os.nice(NICENESS)
    link = Connection(connection.detach())
    with suppress(EOFError, OSError):
        seconds = marshal.loads(link.recv_bytes())
        _start_threads()
        limit_memory(MEMORY_BYTES)
        link.send_bytes(b"")
        while True:
            folder, parts, special = marshal.loads(link.recv_bytes())
            limit_computing(seconds)
            link.send_bytes(_answer(folder, parts, special))


def _start_threads() -> None:
    """Start the library's threads before memory is limited: their stacks count."""
    Backend(WordLevel({"a": 0}, "a")).encode_batch_fast(["a"])


def _answer(folder: str, parts: list[str], special: bool) -> bytes:
    try:
        ids = load_tokenizer(folder, within_limits=True).encode_parts(parts, special)
    except MemoryError:
        os._exit(errno.ENOMEM)
    except RequestError as error:
        return SAID + str(error).encode("utf-8", "backslashreplace")
    except QuireError:
        return UNREADABLE
    return IDS + array(ID_TYPE, ids).tobytes()
