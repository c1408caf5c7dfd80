"""The size of a KV cache: the one formula everything else asks; it allocates nothing."""

from __future__ import annotations

from dataclasses import dataclass

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """Shape and element type of a model's KV cache.

    Attributes:
        num_layers: Layers that keep K and V.
        num_kv_heads: KV heads per layer.
        head_dim: Elements per head.
        block_size: Tokens per block.
        dtype: ``float32``, ``float16`` or ``bfloat16``.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: str

    @property
    def token_bytes(self) -> int:
        """Bytes one token takes: 2 (K and V) x layers x KV heads x head dim x element size."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * DTYPE_BYTES[self.dtype]

    @property
    def block_bytes(self) -> int:
        """Bytes one block takes over all layers."""
        return self.token_bytes * self.block_size

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks that ``num_tokens`` tokens of one request take."""
        return -(-num_tokens // self.block_size)
