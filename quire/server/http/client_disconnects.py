"""Work that ends when its client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Receive


@asynccontextmanager
async def cancel_on_disconnect(receive: Receive) -> AsyncIterator[None]:
    """Cancel the block as soon as the client disconnects; what follows it runs on.

    Cancelling reaches the engine's iterator, which aborts the request and frees its blocks. The
    request's body must have been read: nothing else may call ``receive`` meanwhile.
    """
    task = asyncio.current_task()
    assert task is not None
    num_cancels = task.cancelling()
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    except BaseException:
        # As in asyncio.timeout: a cancel that is not ours is passed on.
        if not gone or task.uncancel() > num_cancels:
            raise
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
