"""Answers of many texts or log-probabilities take long to write: made off the event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import msgspec

from quire.core.outputs import Logprob, RequestOutput
from quire.text.offloading import run_by_size

T = TypeVar("T")
Positions: TypeAlias = Sequence[Mapping[int, Logprob] | None]

#: Characters that are tokenized in the time in which an entry is written.
CHARACTERS_PER_ENTRY = 4
#: Items of a list that are freed before other threads get their turn.
FREED_AT_ONCE = 64
#: Of a number of a vector, as the engine sends it.
FLOAT_BYTES = 4


async def write_by_size(
    texts: Iterable[Positions], client_id: str, write: Callable[[], T], num_characters: int = 0
) -> T:
    """Return what ``write`` returns: in a thread where it writes many texts or log-probabilities.

    Args:
        texts: Log-probabilities of the tokens of each text.
        client_id: The client's id; clients take turns.
        write: The function that writes the answer; any thread may call it.
        num_characters: Characters of all texts that are read or written one by one.
    """
    size = CHARACTERS_PER_ENTRY * sum(map(_num_entries, texts)) + num_characters
    return await run_by_size(size, client_id, write)


def characters_of(outputs: Iterable[RequestOutput]) -> int:
    """Return how many characters the texts of whole outputs have; a number of a vector is one."""
    return sum(
        len(output.embedding or b"") // FLOAT_BYTES + sum(len(one.text) for one in output.outputs)
        for output in outputs
    )


def positions_of(outputs: Iterable[RequestOutput]) -> Iterator[Positions]:
    """Yield the log-probabilities of prompts and of what followed them."""
    for output in outputs:
        yield output.prompt_logprobs or ()
        for completion in output.outputs:
            yield completion.logprobs or ()


def written(value: T) -> T:
    """Return JSON of a value that is a part of an answer, in its place.

    An answer has a part per token. What they are made of would be looked at by the collector of
    cycles, encoded and freed all together, and each of it would hold the interpreter.
    """
    return cast(T, msgspec.Raw(msgspec.json.encode(value)))


def free(outputs: list[RequestOutput]) -> None:
    """Empty outputs of which an answer has been made, one part after the other.

    Freed by one statement, log-probabilities by the million would hold the interpreter.
    """
    for output in outputs:
        empty(output.prompt_logprobs or [])
        for completion in output.outputs:
            empty(completion.logprobs or [])
        empty(output.outputs)
    empty(outputs)


def empty(items: list[Any]) -> None:
    """Free the items of a list, and let other threads have their turn in between."""
    while items:
        del items[-FREED_AT_ONCE:]


def encode_in_parts(answer: Any) -> Any:
    """Return JSON of an answer, one choice after the other; others are returned as they are.

    One call would keep the interpreter to itself for as long as the whole answer takes, and so
    would freeing all choices together: each is taken from the answer and freed.
    """
    choices = getattr(answer, "choices", None)
    if not isinstance(answer, msgspec.Struct) or not choices:
        return answer
    choices.reverse()
    parts = []
    while choices:
        parts.append(msgspec.json.encode(choices.pop()))
    # In a text each quote has a backslash before it: this is the field. Unlike msgspec, `join`
    # lets other threads run while it copies megabytes.
    start, field, end = msgspec.json.encode(answer).partition(b'"choices":[')
    return b"".join((start, field, b",".join(parts), end))


def _num_entries(positions: Positions) -> int:
    """Return how many entries a text is as long to write as, about; 1 without any."""
    return 1 + len(positions) * len(positions[-1] or ()) if positions else 1
