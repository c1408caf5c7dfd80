"""The size of a KV cache: the one formula everything else asks; it allocates nothing."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.errors import ConfigError

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
#: Element types of K and V and their bits. ``int8`` has a scale for each token's head besides,
#: ``int4`` a scale and a minimum for each group of its elements, all in bfloat16.
KV_DTYPE_BITS = {name: 8 * size for name, size in DTYPE_BYTES.items()}
KV_DTYPE_BITS |= {"fp8_e4m3": 8, "int8": 8, "int4": 4}
SCALE_BYTES = 2
INT4_GROUP = 32


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """Shape and element type of a model's KV cache.

    Attributes:
        num_layers: Layers that keep K and V.
        num_kv_heads: KV heads per layer.
        head_dim: Elements per head.
        block_size: Tokens per block.
        dtype: A key of :data:`KV_DTYPE_BITS`.
        window: Tokens that a position sees at most in every layer, itself included; None when
            some layer sees all, or all are kept. Blocks that no position will see are given back.
        step_tokens: Number of tokens of one request in a step, at most; matters only with a window,
            or where KV is not kept.
        is_kept: Whether a later step reads the KV. If not, layers use the same room in turn.
        is_latent: Whether one row is kept of a token: its key for all query heads, the first
            elements of which are its value, too. There is no V then.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: str
    window: int | None = None
    step_tokens: int = 1
    is_kept: bool = True
    is_latent: bool = False

    def __post_init__(self) -> None:
        """Refuse heads that do not divide into groups, or whose K and V are to be rounded apart.

        Raises:
            ConfigError: The heads do not divide into groups, or K and V are not apart.
        """
        if self.dtype == "int4" and self.is_latent:
            raise ConfigError(
                "[config] --kv-cache-dtype int4 needs keys and values apart; got a model whose "
                "latents are both. Take int8."
            )
        if self.dtype == "int4" and self.head_dim % INT4_GROUP:
            raise ConfigError(
                f"[config] --kv-cache-dtype int4 needs heads of a multiple of {INT4_GROUP} "
                f"elements; got {self.head_dim}. Take int8."
            )

    @property
    def sides(self) -> int:
        """Rows that are kept of a head: 2, K and V, or 1 that is both."""
        return 1 if self.is_latent else 2

    @property
    def head_scales(self) -> int:
        """Scales and minima of one token's head of K, and of V, or of its latent."""
        return {"int8": 1, "int4": 2 * self.head_dim // INT4_GROUP}.get(self.dtype, 0)

    @property
    def token_element_bytes(self) -> int:
        """Bytes of its elements: 2 (K and V; 1 for latents) x layers x KV heads x head dim x their
        size."""
        heads = self.sides * self.num_layers * self.num_kv_heads
        return heads * self.head_dim * KV_DTYPE_BITS[self.dtype] // 8

    @property
    def token_scale_bytes(self) -> int:
        """Bytes of a token's scales, which lie apart from the elements."""
        scales = self.sides * self.num_layers * self.num_kv_heads * self.head_scales
        return scales * SCALE_BYTES

    @property
    def token_bytes(self) -> int:
        """Bytes one token takes, scales included."""
        return self.token_element_bytes + self.token_scale_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes one block takes over all layers, scales included."""
        return self.token_bytes * self.block_size

    def num_blocks(self, num_tokens: int) -> int:
        """Most blocks that a request of ``num_tokens`` tokens holds at once."""
        num_all = -(-num_tokens // self.block_size)
        if self.window is None:
            return num_all
        # What a step's first token sees, and the step; they may begin and end inside a block.
        return min(num_all, 1 - (1 - self.window - self.step_tokens) // self.block_size)

    def most_blocks(self, num_requests: int, num_tokens: int) -> int:
        """Most blocks that requests of up to ``num_tokens`` tokens hold at once, all together."""
        most = num_requests * self.num_blocks(num_tokens)
        if self.is_kept:
            return most
        return min(most, self.step_tokens // self.block_size + num_requests)

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
