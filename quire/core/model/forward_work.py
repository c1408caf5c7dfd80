"""The work of forward passes, estimated from shapes alone: operations and bytes moved.

A multiplication with an addition is two operations; norms, RoPE and sampling are left out. Each
pass reads all weights once and each request's KV once.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.model.model_config import ModelConfig


@dataclass(slots=True)
class ForwardWork:
    """Floating-point operations, and bytes read and written."""

    flops: int = 0
    read_bytes: int = 0
    write_bytes: int = 0

    def add(self, other: ForwardWork) -> None:
        """Add the work of other passes."""
        self.flops += other.flops
        self.read_bytes += other.read_bytes
        self.write_bytes += other.write_bytes


@dataclass(slots=True)
class Passes:
    """Forward passes of a model, counted.

    Attributes:
        count: Number of passes.
        tokens: Number of tokens that were computed.
        pairs: Pairs of a token and one that it attends to, itself included.
        context: Tokens whose KV was read, of each request once a pass.
        logits: Rows of logits.
    """

    count: int = 0
    tokens: int = 0
    pairs: int = 0
    context: int = 0
    logits: int = 0


@dataclass(frozen=True, slots=True)
class PassShape:
    """The cost of a pass through a model.

    Attributes:
        token_flops: Operations of the linears for each token.
        pair_flops: Operations of attention for each pair.
        logits_flops: Operations for each row of logits.
        weight_bytes: Bytes of weights that each pass reads.
        kv_token_bytes: Bytes of a token's KV.
    """

    token_flops: int = 0
    pair_flops: int = 0
    logits_flops: int = 0
    weight_bytes: int = 0
    kv_token_bytes: int = 0

    def work(self, passes: Passes) -> ForwardWork:
        """Return the work of passes."""
        flops = self.token_flops * passes.tokens + self.pair_flops * passes.pairs
        flops += self.logits_flops * passes.logits
        read_bytes = self.weight_bytes * passes.count + self.kv_token_bytes * passes.context
        return ForwardWork(flops, read_bytes, self.kv_token_bytes * passes.tokens)


def decoder_shape(config: ModelConfig, weight_bytes: int, kv_token_bytes: int) -> PassShape:
    """Return the cost of a pass through a decoder."""
    width, attention = config.hidden_size, config.attention_parameters
    # A key and a value of each head: of latents, what is multiplied instead of them.
    pair = config.num_heads * 2 * config.head_dim
    if config.latent is not None:
        pair = config.num_heads * (config.latent.row_dim + config.latent.rank)
    factor = 3 if config.gated_mlp else 2
    mlps = config.num_dense_layers * factor * width * config.intermediate_size
    moe = config.moe
    if moe is not None:
        inner = moe.top_k * moe.intermediate_size + moe.shared_size
        router = moe.num_experts + moe.shared_gate
        mlps += config.num_moe_layers * width * (factor * inner + router)
    return PassShape(
        token_flops=2 * (config.num_layers * attention + mlps),
        pair_flops=2 * config.num_layers * pair,
        logits_flops=2 * width * config.vocab_size,
        weight_bytes=weight_bytes,
        kv_token_bytes=kv_token_bytes,
    )
