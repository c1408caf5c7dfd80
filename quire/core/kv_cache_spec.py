"""The size of a KV cache: the one formula everything else asks; it allocates nothing."""

from __future__ import annotations

from dataclasses import dataclass

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
#: Element types of K and V. ``int8`` has a scale for each token's head, in bfloat16.
KV_DTYPE_BYTES = {**DTYPE_BYTES, "fp8_e4m3": 1, "int8": 1}
SCALE_BYTES = 2


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """Shape and element type of a model's KV cache.

    Attributes:
        num_layers: Layers that keep K and V.
        num_kv_heads: KV heads per layer.
        head_dim: Elements per head.
        block_size: Tokens per block.
        dtype: ``float32``, ``float16``, ``bfloat16``, ``fp8_e4m3`` or ``int8``.
        window: Tokens that a position sees at most in every layer, itself included; None when
            some layer sees all, or all are kept. Blocks that no position will see are given back.
        step_tokens: Most tokens of one request in a step; matters only with a window.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: str
    window: int | None = None
    step_tokens: int = 1

    @property
    def token_bytes(self) -> int:
        """Bytes one token takes: 2 (K and V) x layers x KV heads x head dim x element size."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * KV_DTYPE_BYTES[self.dtype]

    @property
    def token_scale_bytes(self) -> int:
        """Bytes of a token's scales, which are kept apart from the blocks: 0 unless ``int8``."""
        scales = 2 * self.num_layers * self.num_kv_heads if self.dtype == "int8" else 0
        return SCALE_BYTES * scales

    @property
    def block_bytes(self) -> int:
        """Bytes one block takes over all layers, without scales."""
        return self.token_bytes * self.block_size

    @property
    def block_scale_bytes(self) -> int:
        """Bytes of one block's scales over all layers."""
        return self.token_scale_bytes * self.block_size

    @property
    def allocated_block_bytes(self) -> int:
        """Bytes of memory one block takes over all layers, scales and all."""
        return self.block_bytes + self.block_scale_bytes

    def num_blocks(self, num_tokens: int) -> int:
        """Most blocks that a request of ``num_tokens`` tokens holds at once."""
        num_all = -(-num_tokens // self.block_size)
        if self.window is None:
            return num_all
        # What a step's first token sees, and the step; they may begin and end inside a block.
        return min(num_all, 1 - (1 - self.window - self.step_tokens) // self.block_size)

    def tokens_held(self, num_blocks: int, longest: int) -> int:
        """Return how long a request can be that ``num_blocks`` blocks hold, if that is bounded.

        Returns:
            Tokens; at least ``longest`` if a request of that length fits.
        """
        num_tokens = num_blocks * self.block_size
        return max(num_tokens, longest) if self.num_blocks(longest) <= num_blocks else num_tokens

    def first_seen_block(self, position: int) -> int:
        """Return the first block that tokens from ``position`` on see."""
        if self.window is None:
            return 0
        return max(position - self.window + 1, 0) // self.block_size
