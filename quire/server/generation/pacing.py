"""Fewer, larger events: holds a stream's tokens back until there are enough of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from quire.core.outputs import RequestOutput
from quire.server.generation.generation_outputs import Outputs

#: What is held back for this long is sent, however little it is.
FLUSH_SECONDS = 0.25


def paced(outputs: Outputs, interval: int, flush_seconds: float | None = None) -> Outputs:
    """Return ``outputs`` with deltas merged between the first and the last, to ``interval`` tokens.

    What is held back when ``outputs`` fails is yielded before the error.

    Args:
        outputs: Deltas of a request's prompts.
        interval: Tokens that a choice must have grown by.
        flush_seconds: Most seconds that a delta is held back; None for :data:`FLUSH_SECONDS`.
    """
    if interval == 1:
        return outputs
    return _paced(outputs, interval, FLUSH_SECONDS if flush_seconds is None else flush_seconds)


async def _paced(
    outputs: Outputs, interval: int, flush_seconds: float
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    held: dict[int, RequestOutput] = {}
    begun: set[int] = set()
    loop = asyncio.get_running_loop()
    async with aclosing(outputs):
        coming = asyncio.ensure_future(anext(outputs, None))
        due: float | None = None
        try:
            while True:
                wait = None if due is None else max(0.0, due - loop.time())
                await asyncio.wait({coming}, timeout=wait)
                done = coming.done()
                error = coming.exception() if done else None
                item = coming.result() if done and error is None else None
                ready = sorted(held)  # unless one comes that decides for itself
                if item is not None:
                    index, output = item
                    coming = asyncio.ensure_future(anext(outputs, None))
                    if index in held:
                        held[index].merge(output)
                    else:
                        held[index] = output
                    enough = index not in begun or _is_enough(held[index], interval)
                    ready = [index] if enough else []
                for index in ready:
                    begun.add(index)
                    yield index, held.pop(index)
                if error is not None:
                    raise error
                if done and item is None:
                    return
                if not held:
                    due = None
                elif due is None:
                    due = loop.time() + flush_seconds
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


def _is_enough(delta: RequestOutput, interval: int) -> bool:
    return delta.finished or any(len(one.token_ids) >= interval for one in delta.outputs)
