"""A model's tokenizer in a process with limits, for its first use and for texts of great length."""

from __future__ import annotations

import marshal
from array import array
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from quire.core.errors import CapacityError, RequestError
from quire.system.sandboxes import Sandbox, SandboxDied

_TARGET = "quire.text.tokenizers.tokenizer_sandbox:tokenize_in_sandbox"
#: Wall-clock time to read the files, and to tokenize a text besides.
LOAD_SECONDS = 60.0
TEXT_SECONDS = 120.0
#: What the process may take besides what it has when it is ready.
MEMORY_BYTES = 2 * 2**30
#: What a tokenizer is tried with.
PROBE = f"Hello, World! 3.14 été 東京 😀\n\n\tfoo_bar(baz)      {'a' * 40}b\n" * 8
#: The first byte of an answer: token ids, what is wrong with the text, or with the files.
IDS, SAID, UNREADABLE = b"+", b"-", b"!"
#: Token ids on their way.
ID_TYPE = "I"
#: Ids that become a list at a time: a long one would hold the interpreter for all of it.
_SLICE = 2**16


#: Those that are asked.
_running: set[Sandbox] = set()


class OverLimits(Exception):
    """A tokenizer or a text takes too much; says what."""


class _Unreadable(Exception):
    """The files are no tokenizer."""


def kill_running() -> None:
    """End the processes: their texts are refused, and no thread waits for them any more."""
    for sandbox in list(_running):
        sandbox.kill()


def try_out(folder: Path) -> None:
    """Check that a tokenizer's files can be used within limits, or cannot be used at all.

    Raises:
        OverLimits: The files take too much.
        CapacityError: No process is free to try the files.
    """
    with suppress(RequestError, _Unreadable):  # so it will be here
        _ask(folder, [PROBE], False, LOAD_SECONDS)


def encode(folder: Path, parts: Sequence[str], add_special_tokens: bool) -> list[int]:
    """Return the token ids of a text in parts; see :meth:`Tokenizer.encode_parts`.

    The process takes the memory with it that a long text needs, and none of this one's time.

    Raises:
        RequestError: The text takes too much, or is not valid text.
        CapacityError: No process is free to tokenize the text.
    """
    try:
        found = _ask(folder, parts, add_special_tokens, LOAD_SECONDS + TEXT_SECONDS)
    except OverLimits as error:
        raise RequestError(
            f"[tokenize] a text must be tokenized within limits; got {sum(map(len, parts))} "
            f"characters, which take {error}. Send it in pieces.",
            "prompt",
        ) from error
    except _Unreadable as error:
        raise CapacityError(
            "[tokenize] the model's tokenizer has changed since it was loaded. Try again.", 1.0
        ) from error
    ids: list[int] = []
    for start in range(0, len(found), _SLICE):
        ids += found[start : start + _SLICE]
    return ids


def _ask(folder: Path, parts: Sequence[str], special: bool, seconds: float) -> array[int]:
    """See :mod:`quire.text.tokenizers.tokenizer_sandbox`."""
    message: Any = (str(folder), list(parts), special)
    try:
        sandbox = Sandbox(_TARGET, marshal.dumps(seconds))
    except (OSError, EOFError) as error:
        raise CapacityError(f"[tokenize] no process for long texts: {error}.", 1.0) from error
    _running.add(sandbox)
    try:
        answer = sandbox.ask(marshal.dumps(message), seconds)
    except (OSError, EOFError) as error:
        death = SandboxDied(sandbox.end())
        if death.is_over_limits:
            raise OverLimits(f"more than {MEMORY_BYTES >> 30} GiB or all of the stack") from error
        raise CapacityError(f"[tokenize] the process for it died ({death}).", 1.0) from death
    finally:
        _running.discard(sandbox)
        if sandbox.is_alive:
            sandbox.end()
    if answer is None:
        raise OverLimits(f"more than {seconds:g} s")
    if answer[:1] == UNREADABLE:
        raise _Unreadable
    if answer[:1] == SAID:
        raise RequestError(answer[1:].decode(), "prompt")
    ids = array(ID_TYPE)
    ids.frombytes(memoryview(answer)[1:])
    return ids
