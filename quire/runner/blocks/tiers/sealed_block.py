"""A block outside of the engine: its bytes after a head with their identity and a checksum.

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
    """A frame that is another block, or is damaged."""


def head_of(fingerprint: bytes, block_hash: bytes, data: Bytes) -> bytes:
    """Return the head that is written before a block's bytes.

    Args:
        fingerprint: (32 bytes), hash of all that the bytes depend on besides the tokens.
        block_hash: (32 bytes), hash of the block's tokens.
        data: The block's bytes.
    """
    head = _HEAD.pack(MAGIC, fingerprint, block_hash, len(data))
    return head + _digest(head, data)


def opened(frame: Bytes, fingerprint: bytes, block_hash: bytes, num_bytes: int) -> Bytes:
    """Check a frame, and return the bytes of the block in it.

    Raises:
        DamagedBlockError: The frame is another block, or is damaged.
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
