"""The gate that announces blocks of prompts computed for another engine; it holds no request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quire.engine.cache.block_moves import BlockMoves
from quire.engine.gates.gates import Queue
from quire.engine.request import Request, RequestStatus


class Outgoing(Protocol):
    """Takes the blocks that a step has filled to other engines; execution has it."""

    def announce(self, target: int, block_hashes: Sequence[bytes]) -> None:
        """Send blocks that are about to be computed to an engine, as far as it lacks them."""
        ...

    def withdraw(self, block_hashes: Sequence[bytes]) -> None:
        """Take note that what was announced of these and was not computed never will be."""
        ...


class PushGate:
    """Announces the blocks of each prompt before it starts; those in the cache go at once.

    Args:
        outgoing: The executor's sender of blocks.
        moves: The block moves of the next step.
    """

    is_waiting = False

    def __init__(self, outgoing: Outgoing, moves: BlockMoves) -> None:
        self._outgoing = outgoing
        self._moves = moves
        self._announced: dict[str, Request] = {}

    def holds(self, request: Request, queue: Queue) -> bool:
        """Return False: the request may start."""
        target = request.source.push_to
        self._withdraw_ended()
        if target is not None and request.request_id not in self._announced:
            self._announced[request.request_id] = request
            hits = queue.kv.get_computed_blocks(request)
            stop = (request.num_prompt_tokens - 1) // queue.kv.block_size
            self._outgoing.announce(target, request.block_hashes[:stop])
            self._moves.save(zip(hits, request.block_hashes, strict=False))
        return False

    def _withdraw_ended(self) -> None:
        ended = [
            request
            for request in self._announced.values()
            if request.status is RequestStatus.FINISHED
        ]
        for request in ended:
            del self._announced[request.request_id]
            self._outgoing.withdraw(request.block_hashes)
