"""Names of KV blocks by content: a chain of hashes over tokens; it stores nothing."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

#: Parent of every request's first block.
ROOT_HASH = bytes(32)


def hash_block(parent: bytes, token_ids: Sequence[int], extra_keys: Sequence[str] = ()) -> bytes:
    """Return the content hash of one full block.

    Equal hashes mean equal tokens from position 0 to the block's end and equal extra keys: each
    hash covers its parent, keys are length-prefixed and tokens have a fixed width, so no two
    different inputs give the same bytes to hash; BLAKE2b (256 bits) makes a collision infeasible
    even for prompts written to find one.

    Args:
        parent: Hash of the block before, or :data:`ROOT_HASH`.
        token_ids: The block's tokens.
        extra_keys: Keys of all else that the block's KV depends on or is kept apart by (tenant
            salt, adapter, image), in a fixed order. A key separates all that follows it in the
            chain.
    """
    state = blake2b(parent, digest_size=32)
    state.update(len(extra_keys).to_bytes(4, "little"))
    for key in extra_keys:
        encoded = key.encode("utf-8", "surrogatepass")
        state.update(len(encoded).to_bytes(8, "little"))
        state.update(encoded)
    state.update(array("q", token_ids).tobytes())
    return state.digest()
