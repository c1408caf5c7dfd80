"""What the runner needs of a loaded model; how it is built is the decoder's business."""

from __future__ import annotations

from typing import Protocol

from quire.core.model_config import ModelConfig
from quire.kernels.backend import Array, KVCache
from quire.layers.forward_batch import ForwardBatch


class CausalModel(Protocol):
    """A decoder on one backend.

    Attributes:
        config: Its shape.
        nbytes: Bytes its weights take in memory.
    """

    config: ModelConfig
    nbytes: int

    def forward(self, batch: ForwardBatch, kv_cache: KVCache) -> Array:
        """Compute the step and write its K and V.

        Returns:
            (T, D) float32, the final norm applied; valid until the next call.
        """
        ...

    def logits(self, hidden: Array, rows: Array) -> Array:
        """Project ``rows`` (L,) int32 of ``hidden`` (T, D) to the vocabulary.

        Called more than once a step where prompt log-probabilities are wanted.

        Returns:
            (L, V) float32; valid until the next call, and free to be overwritten.
        """
        ...

    def scratch_bytes(self, num_tokens: int) -> int:
        """Bytes of activations that a step of ``num_tokens`` tokens holds, logits left out."""
        ...
