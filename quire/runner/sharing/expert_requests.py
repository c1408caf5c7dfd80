"""What goes between an engine that has rows for experts of another one, and that one.

Both have mapped memory with two rings of bytes: requests one way, results the other. A request is
:data:`HEAD` (layer, R), R expert numbers int32, and rows (R, D) float32; a result rows (R, D).
One that is larger than a ring passes through, and long ones come in slices, so that nobody needs
memory for more than one slice.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec
import numpy as np

from quire.core.errors import RankDeadError
from quire.core.parallel_costs import SHARED_RING_BYTES, SLICE_BYTES
from quire.distributed.segment_layout import SegmentSizes
from quire.distributed.shared_memory_group import SharedMemory
from quire.layers.engine_experts import Floats, Ints, Multiply

HEAD = struct.Struct("<2i")
#: In the memory of a pair, whose other parts are not used.
ASKER, SERVER = 0, 1
SIZES = SegmentSizes(area=4096, mailbox=SHARED_RING_BYTES, ring=SHARED_RING_BYTES)


class Hello(msgspec.Struct, tag=True):
    """First message of an engine that multiplies rows for others, with the pair's memory.

    Attributes:
        number: The engine's.
        num_layers: With experts.
        width: D.
    """

    number: int
    num_layers: int
    width: int


class Asker(msgspec.Struct, tag=True):
    """Answer of an engine that has mapped it."""

    number: int


read_hello = msgspec.msgpack.Decoder(Hello).decode
read_asker = msgspec.msgpack.Decoder(Asker).decode


def create_memory() -> SharedMemory:
    """Make the memory of a pair, in the engine that multiplies.

    Whoever waits sleeps at once: it would keep the interpreter's lock from the other threads.
    """
    return SharedMemory.create(2, sizes=SIZES, rank=SERVER, spin=0.0)


def slice_rows(width: int) -> int:
    """Return the most rows of a request."""
    return max(1, SLICE_BYTES // (4 * width))


class Requests:
    """The end of an engine that asks; its steps use it.

    Args:
        memory: Of the pair.
        width: D.
    """

    def __init__(self, memory: SharedMemory, width: int) -> None:
        self._memory, self._most = memory, slice_rows(width)
        self._requests, self._results = memory.commands(), memory.group()
        self._asked: tuple[int, Ints, Floats] | None = None

    def ask(self, layer: int, experts: Ints, x: Floats) -> None:
        """Send rows, or as many as a slice has of them.

        Raises:
            RankDeadError: Nobody is there.
        """
        if self._asked is not None:  # a step that failed has not taken what it asked for
            self.answer(np.empty_like(self._asked[2]))
        self._asked = layer, experts, x
        self._send(0)

    def answer(self, out: Floats) -> None:
        """Receive what was made of all of them.

        Raises:
            RankDeadError: Nobody is there.
        """
        assert self._asked is not None, "asked"
        for begin in range(0, len(out), self._most):
            if begin:
                self._send(begin)
            self._results.recv(out[begin : begin + self._most], SERVER)
        self._asked = None

    def _send(self, begin: int) -> None:
        assert self._asked is not None
        layer, experts, x = self._asked
        part = slice(begin, begin + self._most)
        own = experts[part], x[part]
        self._requests.send([HEAD.pack(layer, len(own[0])), *(one.data for one in own)])

    def fail(self, reason: str) -> None:
        """End waits of both ends; from any thread."""
        self._memory.fail(SERVER, reason)

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()


class Results:
    """The end of an engine that multiplies; a thread of its own uses it.

    Args:
        memory: Of the pair.
        width: D.
        numbers: Of the experts that are here.
        layers: What multiplies, by layer.
    """

    def __init__(
        self, memory: SharedMemory, width: int, numbers: Sequence[int], layers: Sequence[Multiply]
    ) -> None:
        self._memory, self._width, self._layers = memory, width, layers
        self._requests, self._results = memory.commands(), memory.group()
        self._is_here = np.zeros(max(numbers, default=-1) + 1, bool)
        self._is_here[list(numbers)] = True

    def serve(self) -> int:
        """Wait for a request, answer it, and return how many rows it had.

        Raises:
            RankDeadError: Nobody asks any more.
            ValueError: It is none.
        """
        request = self._requests.receive()
        layer, count = map(int, HEAD.unpack_from(request))
        size = HEAD.size + 4 * count * (1 + self._width)
        if not 0 < count <= slice_rows(self._width) or len(request) != size:
            raise ValueError(f"{count} rows in {len(request)} bytes")
        experts = np.frombuffer(request, np.int32, count, HEAD.size)
        is_known = experts.min() >= 0 and experts.max() < len(self._is_here)
        if not 0 <= layer < len(self._layers) or not is_known or not self._is_here[experts].all():
            raise ValueError(f"experts {sorted(set(experts.tolist()))} of layer {layer}")
        x = np.frombuffer(request, np.float32, offset=HEAD.size + 4 * count)
        made = self._layers[layer](x.reshape(count, self._width), experts)
        self._results.send(made, ASKER)
        return count

    def fail(self, reason: str) -> None:
        """End waits of both ends; from any thread."""
        self._memory.fail(ASKER, reason)

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()


def gone(engine: int, experts: str, why: str) -> RankDeadError:
    """Return the error of an engine that does not multiply any more."""
    return RankDeadError(f"[experts] engine {engine}, which has {experts}, is gone: {why}.")
