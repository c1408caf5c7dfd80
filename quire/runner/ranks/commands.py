"""The driver's commands to the other ranks: each is sent once, to all of them, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from quire.core.adapter_reference import AdapterReference
from quire.kernels.backend import Backend
from quire.kernels.batch.forward_batch import ForwardBatch
from quire.system.connections import decoded

Numbers: TypeAlias = npt.NDArray[Any]


class Allocate(msgspec.Struct, frozen=True, tag=True):
    """Allocate the KV cache and the activations.

    Attributes:
        num_blocks: Blocks of the cache, the null block included.
        max_tokens, max_logits_rows: The same as in :meth:`quire.models.decoder.Decoder.reserve`.
        part_bytes: Bytes of a block of the cache, by rank.
    """

    num_blocks: int
    max_tokens: int
    max_logits_rows: int
    part_bytes: list[int]


class Forward(msgspec.Struct, frozen=True, tag=True):
    """Compute a step.

    Attributes:
        arrays: Fields of the :class:`~quire.kernels.batch.forward_batch.ForwardBatch` that are not
            None.
        may_end: Whether ranks ask each other between layers if the step is to end there.
        captured: Layers whose residual stream the driver reads where it enters them.
        num_drawn: Number of states to draw from, as in the batch: the last of several stages
            multiplies them with the head without a further command.
    """

    arrays: dict[str, Numbers]
    may_end: bool = False
    captured: list[int] = []
    num_drawn: int = 0


class Logits(msgspec.Struct, frozen=True, tag=True):
    """Multiply ``count`` hidden states of the last step, from ``first`` on, with the head."""

    first: int
    count: int


class Multiply(msgspec.Struct, frozen=True, tag=True):
    """Multiply states (L, D) float32 with the head.

    Attributes:
        states: (L, D) float32.
        adapters: (L,) int32, the slot of each state's adapter; None where no state has one.
    """

    states: Numbers
    adapters: Numbers | None = None


class Lookup(msgspec.Struct, frozen=True, tag=True):
    """Look ids (T,) int32 up in the embedding."""

    ids: Numbers


class CopyBlocks(msgspec.Struct, frozen=True, tag=True):
    """Copy blocks of the KV cache, ``(source, destination)``."""

    pairs: list[tuple[int, int]]


class CopySlots(msgspec.Struct, frozen=True, tag=True):
    """Copy slots of the KV cache, ``(source, destination)``."""

    pairs: list[tuple[int, int]]


class ReadBlocks(msgspec.Struct, frozen=True, tag=True):
    """Send the driver the bytes of blocks."""

    block_ids: list[int]


class WriteBlocks(msgspec.Struct, frozen=True, tag=True):
    """Write blocks with the rank's own columns of ``data`` (B, bytes of all ranks)."""

    block_ids: list[int]
    data: Numbers


class SumBlocks(msgspec.Struct, frozen=True, tag=True):
    """Send the driver the checksums of blocks."""

    block_ids: list[int]


class ReadAdapter(msgspec.Struct, frozen=True, tag=True):
    """Begin to read an adapter."""

    adapter: AdapterReference


class SetAdapter(msgspec.Struct, frozen=True, tag=True):
    """Put an adapter that :class:`ReadAdapter` announced into use under a slot."""

    content_hash: str
    slot: int


class ClearAdapter(msgspec.Struct, frozen=True, tag=True):
    """Release the adapter of a slot."""

    slot: int


Command: TypeAlias = (
    Allocate
    | Forward
    | Logits
    | Multiply
    | Lookup
    | CopyBlocks
    | CopySlots
    | ReadBlocks
    | WriteBlocks
    | SumBlocks
    | ReadAdapter
    | SetAdapter
    | ClearAdapter
)


Announce: TypeAlias = Callable[[Command], None]


def _flat(array: Any) -> Any:
    if not isinstance(array, np.ndarray):
        raise NotImplementedError(f"a command holds {type(array).__name__}")
    return array.dtype.str, array.shape, array.tobytes()


def _array(kind: type, flat: Any) -> Any:
    dtype, shape, data = flat
    # A copy: the received bytes may be unaligned, and their buffer is used again.
    return np.frombuffer(data, dtype).reshape(shape).copy()


_encode = msgspec.msgpack.Encoder(enc_hook=_flat).encode
_decode = msgspec.msgpack.Decoder(Command, dec_hook=_array).decode


def encode(command: Command) -> bytes:
    """Return a command as bytes."""
    return _encode(command)


def decode(data: bytes | bytearray | memoryview) -> Command:
    """Return the command that :func:`encode` turned into bytes.

    Raises:
        ConnectionError: The bytes are no command.
    """
    found: Command = decoded(_decode, data)
    return found


def batch_arrays(batch: ForwardBatch, backend: Backend) -> dict[str, Numbers]:
    """Return the arrays of a step, on the host."""
    found = {field.name: getattr(batch, field.name) for field in fields(batch)}
    numbers = {"num_drawn"}
    return {
        name: backend.to_numpy(array)
        for name, array in found.items()
        if array is not None and name not in numbers
    }
