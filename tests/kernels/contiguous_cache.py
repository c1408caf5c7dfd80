"""The two caches that came before paging, kept as teaching baselines and as oracles of tests.

K KV heads, H head dim.
"""

from __future__ import annotations

import torch

from quire.core.errors import CapacityError


class AppendingCache:
    """K and V of one layer and one sequence, made anew by concatenation at each update."""

    def __init__(self, num_kv_heads: int, head_dim: int) -> None:
        self.keys = torch.empty(num_kv_heads, 0, head_dim)
        self.values = torch.empty(num_kv_heads, 0, head_dim)

    def update(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Append (K, tokens, H) and return everything so far."""
        self.keys = torch.cat([self.keys, k], dim=1)
        self.values = torch.cat([self.values, v], dim=1)
        return self.keys, self.values


class ContiguousCache:
    """K and V of one layer for a fixed batch, reserved for the longest sequence at once.

    Attributes:
        lengths: Tokens of each sequence.
    """

    def __init__(self, max_batch: int, max_seq: int, num_kv_heads: int, head_dim: int) -> None:
        self.keys = torch.zeros(max_batch, num_kv_heads, max_seq, head_dim)
        self.values = torch.zeros_like(self.keys)
        self.lengths = [0] * max_batch

    def update(
        self, sequence: int, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append (K, tokens, H) to a sequence and return views of what it holds.

        Raises:
            CapacityError: The sequence would outgrow its reservation; nothing was stored.
        """
        start, end = self.lengths[sequence], self.lengths[sequence] + k.shape[1]
        if end > self.keys.shape[2]:
            raise CapacityError(
                f"[contiguous_cache] a sequence must fit in {self.keys.shape[2]} tokens; got {end}."
            )
        self.keys[sequence, :, start:end] = k
        self.values[sequence, :, start:end] = v
        self.lengths[sequence] = end
        return self.keys[sequence, :, :end], self.values[sequence, :, :end]

    def reset(self) -> None:
        """Forget all sequences; the memory stays."""
        self.lengths = [0] * len(self.lengths)
