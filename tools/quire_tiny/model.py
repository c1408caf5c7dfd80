"""A plain Llama in torch, for training only; it owns no checkpoint format (see ``export.py``).

Shape letters: B rows, T tokens, N query heads, K KV heads, H head dim, D model dim, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class ModelShape:
    """The dimensions of one model, under the names ``config.json`` uses."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 32
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 2048


MAIN = ModelShape(2048, 256, 704, 6, 8, 4)
DRAFT = ModelShape(2048, 128, 256, 2, 4, 2)
SHAPES = {"main": MAIN, "draft": DRAFT}


def rope_tables(shape: ModelShape) -> tuple[Tensor, Tensor]:
    """Return cos and sin, each (max_position_embeddings, H), in Llama's half-rotated layout."""
    inverse = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
    angles = torch.arange(shape.max_position_embeddings).float()[:, None] * inverse[None, :]
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary embedding to (B, heads, T, H)."""
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * cos + turned * sin


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Return softmax(q k^T / sqrt(H) + bias) v, each of them (B, N, T, H); None means causal.

    NOTE: on a CPU in bfloat16 this takes two thirds of the time of torch's fused attention on rows
    of 256 tokens, forward and backward.
    """
    if bias is None:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    b, n, t, h = q.shape
    with torch.autocast("cpu", enabled=False):
        spread = bias.expand(b, n, t, t).reshape(b * n, t, t)
        q, k, v = (x.reshape(b * n, t, h) for x in (q, k, v))
        scores = torch.baddbmm(spread, q, k.mT, alpha=h**-0.5)
        return (scores.softmax(-1) @ v).view(b, n, t, h)


class Attention(nn.Module):
    """Causal grouped-query attention."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        rows, kv_rows = (
            n * shape.head_dim for n in (shape.num_attention_heads, shape.num_key_value_heads)
        )
        self.q_proj = nn.Linear(shape.hidden_size, rows, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, kv_rows, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, kv_rows, bias=False)
        self.o_proj = nn.Linear(rows, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, bias: Tensor | None) -> Tensor:
        """Attend over (B, T, D); ``bias`` (B, 1, T, T) is added to the scores."""
        b, t, _ = x.shape
        q, k, v = (
            proj(x).view(b, t, -1, self.shape.head_dim).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        groups = self.shape.num_attention_heads // self.shape.num_key_value_heads
        k, v = (a.repeat_interleave(groups, dim=1) for a in (k, v))
        out = attend(q, k, v, bias)
        return self.o_proj(out.transpose(1, 2).reshape(b, t, -1))


class Mlp(nn.Module):
    """SwiGLU feed-forward."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.mlp = Mlp(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, bias: Tensor | None) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, bias)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Token ids to logits, embeddings tied; parameter names are those of ``LlamaForCausalLM``."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        cos, sin = rope_tables(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights: normal with std 0.02, residual outputs scaled down by the depth."""
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                scale = (2 * self.shape.num_hidden_layers) ** -0.5 if residual else 1.0
                nn.init.normal_(parameter, std=0.02 * scale)

    def hidden(self, ids: Tensor, bias: Tensor | None = None) -> Tensor:
        """Map ids (B, T) to final hidden states (B, T, D)."""
        t = ids.shape[1]
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, self.cos[:t], self.sin[:t], bias)
        return self.norm(x)

    def forward(self, ids: Tensor, bias: Tensor | None = None) -> Tensor:
        """Map ids (B, T) to logits (B, T, V)."""
        return functional.linear(self.hidden(ids, bias), self.embed_tokens.weight)
