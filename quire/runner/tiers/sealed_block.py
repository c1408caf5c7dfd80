"""A block outside of the engine: its bytes with what they are and a checksum of all of it.

```
"QUIREKV1"  fingerprint (32 bytes)  block hash (32)  number of bytes (uint64)
BLAKE2b-128 of all else (16)
bytes of the block
```
"""

from __future__ import annotations

import struct
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

MAGIC = b"QUIREKV1"
_HEAD = struct.Struct("<8s32s32sQ")
DIGEST_BYTES = 16
HEAD_BYTES = _HEAD.size + DIGEST_BYTES


class DamagedBlockError(ValueError):
    """A block is not what it should be."""


def head_of(fingerprint: bytes, block_hash: bytes, data: Bytes) -> bytes:
    """Return what is written before a block's bytes.

    Args:
        fingerprint: (32 bytes) Of what the bytes depend on besides the tokens.
        block_hash: (32 bytes) Of its tokens.
        data: Its bytes.
    """
    head = _HEAD.pack(MAGIC, fingerprint, block_hash, len(data))
    return head + _digest(head, data)


def opened(frame: Bytes, fingerprint: bytes, block_hash: bytes, num_bytes: int) -> Bytes:
    """Return the bytes of the block that was asked for.

    Raises:
        DamagedBlockError: It is another one, or damaged.
    """
    if len(frame) != HEAD_BYTES + num_bytes:
        raise DamagedBlockError(f"{len(frame)} bytes in place of {HEAD_BYTES + num_bytes}")
    head, data = frame[: _HEAD.size].tobytes(), frame[HEAD_BYTES:]
    if head != _HEAD.pack(MAGIC, fingerprint, block_hash, num_bytes):
        raise DamagedBlockError("it is of another model, other tokens or another version")
    if frame[_HEAD.size : HEAD_BYTES].tobytes() != _digest(head, data):
        raise DamagedBlockError("its checksum is another one")
    return data


def _digest(head: bytes, data: Bytes) -> bytes:
    state = blake2b(head, digest_size=DIGEST_BYTES)
    state.update(data.data)
    return state.digest()
