"""A streaming HTTP client that costs next to nothing: it stamps arrivals and reads only the usage.

For measuring servers: an ordinary client spends more on an event than the server does.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

_EVENT = b"data: "


@dataclass(slots=True)
class Timeline:
    """What one streamed answer looked like from outside.

    Attributes:
        start: When it was asked for, on the clock of ``time.perf_counter``.
        arrivals: When new tokens were seen.
        num_tokens: In all.
    """

    start: float
    arrivals: list[float] = field(default_factory=list)
    num_tokens: int = 0

    @property
    def first(self) -> float:
        """Seconds to the first token."""
        return self.arrivals[0] - self.start

    @property
    def gap(self) -> float:
        """Seconds between two tokens, on average: tokens without text make no event."""
        return (self.arrivals[-1] - self.arrivals[0]) / (self.num_tokens - 1)


class SseClient:
    """One kept-alive connection to a server on loopback."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def stream(self, path: str, body: dict[str, Any]) -> Timeline:
        """POST ``body``, which must ask for a stream with usage, and follow the answer.

        Raises:
            RuntimeError: The server answered with an error.
        """
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address)
        reader, writer = self._streams
        data = json.dumps(body).encode()
        host, port = self._address
        head = f"POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\n"
        timeline = Timeline(time.perf_counter())
        writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        status = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in status.split(b"\r\n")[0]:
            raise RuntimeError(f"{status!r} {await reader.read(2000)!r}")
        tail = b""
        while b"0\r\n\r\n" not in tail[-5:]:
            received = await reader.read(1 << 16)
            if not received:
                raise RuntimeError("the server hung up")
            timeline.arrivals.append(time.perf_counter())
            tail = (tail + received)[-4096:]
        timeline.num_tokens = _usage(tail)["completion_tokens"]
        return timeline

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].close()


def _usage(tail: bytes) -> dict[str, Any]:
    for part in reversed(tail.split(_EVENT)):
        if b'"usage":{' in part:
            usage: dict[str, Any] = json.loads(part[: part.rindex(b"}") + 1])["usage"]
            return usage
    raise RuntimeError(f"no usage in {tail!r}")
