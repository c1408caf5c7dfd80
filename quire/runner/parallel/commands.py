"""What the driver tells the other ranks: each command once, to all of them, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from quire.core.adapters import AdapterReference
from quire.distributed.connections import decoded
from quire.kernels.backend import Backend
from quire.kernels.forward_batch import ForwardBatch

Numbers: TypeAlias = npt.NDArray[Any]


class Allocate(msgspec.Struct, frozen=True, tag=True):
    """Make the KV cache and the activations.

    Attributes:
        num_blocks: Of the cache, the null block included.
        max_tokens, max_logits_rows: As of :meth:`quire.models.decoder.Decoder.reserve`.
        part_bytes: Bytes of a block of the cache, by rank.
    """

    num_blocks: int
    max_tokens: int
    max_logits_rows: int
    part_bytes: list[int]


class Forward(msgspec.Struct, frozen=True, tag=True):
    """Compute a step.

    Attributes:
        arrays: Of its :class:`~quire.kernels.forward_batch.ForwardBatch`, but those that are None.
        may_end: Ranks ask each other between layers whether the step is to end there.
        captured: Layers whose residual stream the driver reads where it enters them.
        num_drawn: As of the batch: a last stage of several multiplies that many of its states with
            the head, without being told further.
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
        states: What is multiplied.
        adapters: (L,) int32, the slot of each one's adapter; None where they have none.
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
    """Give the driver the bytes of blocks."""

    block_ids: list[int]


class WriteBlocks(msgspec.Struct, frozen=True, tag=True):
    """Take the content of blocks: of ``data`` (B, bytes of all ranks) the own columns."""

    block_ids: list[int]
    data: Numbers


class SumBlocks(msgspec.Struct, frozen=True, tag=True):
    """Give the driver the checksums of blocks."""

    block_ids: list[int]


class ReadAdapter(msgspec.Struct, frozen=True, tag=True):
    """Begin to read an adapter."""

    adapter: AdapterReference


class SetAdapter(msgspec.Struct, frozen=True, tag=True):
    """Take an adapter, of which :class:`ReadAdapter` told, into use under a slot."""

    content_hash: str
    slot: int


class ClearAdapter(msgspec.Struct, frozen=True, tag=True):
    """Let go of the adapter of a slot."""

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
    # A copy: what comes in lies anywhere, and its buffer is used again.
    return np.frombuffer(data, dtype).reshape(shape).copy()


_encode = msgspec.msgpack.Encoder(enc_hook=_flat).encode
_decode = msgspec.msgpack.Decoder(Command, dec_hook=_array).decode


def encode(command: Command) -> bytes:
    """Return a command as bytes."""
    return _encode(command)


def decode(data: bytes | bytearray | memoryview) -> Command:
    """Return the command that :func:`encode` made bytes of.

    Raises:
        ConnectionError: They are none.
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
