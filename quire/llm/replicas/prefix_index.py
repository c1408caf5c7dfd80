"""The engines that are believed to hold each block of prompts; it decides nothing.

It is an estimate, made from what was sent to each engine, and costs no question. An engine forgets
its least recently used blocks first, and so does the index: both have room for as many.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Container, Mapping, Sequence
from itertools import islice

from quire.core.engine_request import RangeKey

#: Of a prompt, this many blocks are looked at: what follows them decides nothing any more.
MOST_BLOCKS = 1024
#: Engines that are told of as holders of a prefix, those that got it last.
MOST_HOLDERS = 8
_TOKEN_BYTES = 8


def block_names(
    token_ids: Sequence[int],
    block_size: int,
    extra_keys: Sequence[str] = (),
    ranges: Sequence[RangeKey] = (),
) -> list[int]:
    """Return a name per full block of a prompt that a cache may hold.

    Equal names mean that all tokens and keys up to there are most likely equal; the blocks that an
    engine finds are named by :func:`quire.engine.cache.block_hash.hash_block`, which is certain.

    Args:
        token_ids: The prompt. Its last token is always computed, so its block is never found.
        block_size: Tokens a block.
        extra_keys, ranges: The request's keys and ranges.
    """
    num_blocks = min((len(token_ids) - 1) // block_size, MOST_BLOCKS)
    tokens = array("q", token_ids[: num_blocks * block_size]).tobytes()
    width = block_size * _TOKEN_BYTES
    starts = {part.start // block_size: part.key for part in ranges}
    names, name = [], hash(tuple(extra_keys))
    for index in range(num_blocks):
        name = hash((name, tokens[index * width : (index + 1) * width], starts.get(index)))
        names.append(name)
    return names


class PrefixIndex:
    """The blocks of prompts that were sent to each engine, as many as it has room for.

    A look takes a time that grows with the logarithm of a prompt's blocks, however many engines
    there are.

    Args:
        num_blocks: Room of each engine, by its number.
    """

    def __init__(self, num_blocks: Mapping[int, int]) -> None:
        self._num_blocks = num_blocks
        self._held: dict[int, OrderedDict[int, None]] = {i: OrderedDict() for i in num_blocks}
        # By name, the engine that got it last at the end.
        self._holders: dict[int, dict[int, None]] = {}

    def depth(self, engine: int, names: Sequence[int]) -> int:
        """Return how many of a prompt's first blocks an engine is believed to hold."""
        return _first_absent(names, self._held[engine])

    def holders(self, names: Sequence[int]) -> list[int]:
        """Return engines that hold the longest part of a prompt, and some that hold less."""
        found: dict[int, None] = {}
        depth = _first_absent(names, self._holders)
        while depth and len(found) < MOST_HOLDERS:
            found |= dict.fromkeys(islice(reversed(self._holders[names[depth - 1]]), MOST_HOLDERS))
            depth //= 2
        return list(found)

    def add(self, engine: int, names: Sequence[int]) -> None:
        """Take note that an engine computes a prompt."""
        held, holders = self._held[engine], self._holders
        for name in reversed(names):  # the first block is used as late as the last one
            held[name] = None
            held.move_to_end(name)
            of_name = holders.setdefault(name, {})
            of_name.pop(engine, None)
            of_name[engine] = None
        while len(held) > self._num_blocks[engine]:
            self._forget(engine, held.popitem(last=False)[0])

    def clear(self, engine: int) -> None:
        """Take note that an engine holds nothing."""
        held = self._held[engine]
        while held:
            self._forget(engine, held.popitem()[0])

    def _forget(self, engine: int, name: int) -> None:
        of_name = self._holders[name]
        del of_name[engine]
        if not of_name:
            del self._holders[name]


def _first_absent(names: Sequence[int], held: Container[int]) -> int:
    """Return how many of the first names are held: a block is forgotten before those it follows."""
    low, high = 0, len(names)
    while low < high:
        middle = (low + high) // 2
        if names[middle] in held:
            low = middle + 1
        else:
            high = middle
    return low
