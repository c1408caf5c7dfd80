"""The one decoder layer of EAGLE-type heads in torch, for training and as their plain definition.

B sequences, T positions, R starts, N query heads, K KV heads, H head dim, D model dim.

A draft that starts at position p reads pairs (feature, token): genuine ones at 0 .. p, made of the
target's features, then pairs of its own. Many starts of a sequence are computed together, row r
being the draft from ``starts[r]``: at depth 0 a row attends to the genuine pairs up to its start,
and at depth j also to its own pairs 1 .. j.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Widths of a head's layer, under the names of ``config.json``."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0


class TrainableRMSNorm(nn.RMSNorm):
    """A norm over D, of float32 also where products are narrower."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape.hidden_size, eps=shape.rms_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        """Scale each row of (..., D)."""
        normed: Tensor = super().forward(x.float())
        return normed


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotate (B, heads, T, H) by ``positions`` (B, T): element i with element i + H / 2."""
    half = x.shape[-1] // 2
    inverse = theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = positions[:, None, :, None].float() * inverse
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


@dataclass(slots=True)
class Drafts:
    """Drafts under way, a row for each start, with the keys and values of all depths so far.

    Attributes:
        starts: (B, R) int64 positions.
        keys, values: Tensors by depth: (B, N, T, H) of the genuine pairs, (B, N, R, H) after them.
    """

    starts: Tensor
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    @property
    def depth(self) -> int:
        """Depths that were computed."""
        return len(self.keys)

    def rows(self, x: Tensor) -> Tensor:
        """Return those of the starts (B, R, D): of genuine pairs (B, T, D) some, else all."""
        if self.depth:
            return x
        return x.gather(1, self.starts[..., None].expand(-1, -1, x.shape[-1]))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Append ``k`` and ``v`` and return what ``q`` (B, N, R, H) makes of all it may see."""
        self.keys.append(k)
        self.values.append(v)
        num_genuine = self.keys[0].shape[2]
        future = torch.arange(num_genuine) > self.starts[:, None, :, None]
        scores = [(q @ self.keys[0].mT).masked_fill(future, -torch.inf)]
        scores += [(q * key).sum(-1, keepdim=True) for key in self.keys[1:]]
        weights = (torch.cat(scores, dim=-1) * q.shape[-1] ** -0.5).softmax(-1)
        out: Tensor = weights[..., :num_genuine] @ self.values[0]
        for place, value in enumerate(self.values[1:], num_genuine):
            out = out + weights[..., place, None] * value
        return out


class DraftAttention(nn.Module):
    """Causal grouped-query attention, whose input may be wider than D."""

    def __init__(self, shape: LayerShape, input_size: int) -> None:
        super().__init__()
        self.shape = shape
        rows = shape.num_attention_heads * shape.head_dim
        kv_rows = shape.num_key_value_heads * shape.head_dim
        self.q_proj = nn.Linear(input_size, rows, bias=False)
        self.k_proj = nn.Linear(input_size, kv_rows, bias=False)
        self.v_proj = nn.Linear(input_size, kv_rows, bias=False)
        self.o_proj = nn.Linear(rows, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, drafts: Drafts) -> Tensor:
        """Map (B, T, input) of genuine pairs, later (B, R, input), to (B, R, D)."""
        shape = self.shape
        positions = drafts.starts + drafts.depth
        own = positions if drafts.depth else torch.arange(x.shape[1]).expand(len(x), -1)
        q = self._heads(self.q_proj(drafts.rows(x)))
        k, v = self._heads(self.k_proj(x)), self._heads(self.v_proj(x))
        q, k = rotate(q, positions, shape.rope_theta), rotate(k, own, shape.rope_theta)
        group = shape.num_attention_heads // shape.num_key_value_heads
        k, v = (part.repeat_interleave(group, dim=1) for part in (k, v))
        out: Tensor = self.o_proj(drafts.attend(q, k, v).transpose(1, 2).flatten(2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.shape.head_dim).transpose(1, 2)


class DraftMLP(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out
