"""The one decoder of all families: embedding, layers, final norm, head; built by the loader.

T tokens of the step, L rows whose logits are wanted, D model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.core.model_config import ModelConfig
from quire.kernels.backend import Array, Backend, KVCache, Linear
from quire.kernels.forward_batch import ForwardBatch
from quire.layers.decoder_layer import DecoderLayer
from quire.layers.norm import Norm
from quire.layers.workspace import Workspace


@dataclass(frozen=True, slots=True)
class DecoderParts:
    """What the loader made.

    Attributes:
        embedding: Looked up by token id.
        positions: Learned positions (P, D), or None.
        first_norm: The first layer's attention norm.
        layers: At least one.
        head: D to V; the embedding itself where they are tied.
        weight_bytes: Memory of all weights and tables.
    """

    embedding: Linear
    positions: Array | None
    first_norm: Norm
    layers: Sequence[DecoderLayer]
    head: Linear
    weight_bytes: int


class Decoder:
    """A loaded model.

    Attributes:
        config: What it looks like; ``dtype`` is the type its weights are held in.
        max_model_len: Longest context its tables serve, in tokens.
        weight_bytes: Memory of all weights and tables, in bytes.
    """

    def __init__(
        self, config: ModelConfig, backend: Backend, max_model_len: int, parts: DecoderParts
    ) -> None:
        self.config = config
        self.backend = backend
        self.max_model_len = max_model_len
        self.weight_bytes = parts.weight_bytes
        self._parts = parts
        self._workspace: Workspace | None = None
        self._logits: Array | None = None

    def reserve(self, max_tokens: int, max_logits_rows: int = 0) -> None:
        """Allocate activations for steps of up to ``max_tokens`` rows.

        Args:
            max_tokens: Most T of a step; a larger step reserves again.
            max_logits_rows: Most rows of :meth:`logits`; more rows reserve again.
        """
        self._workspace = Workspace(self.backend, self.config, max_tokens)
        if max_logits_rows:
            self._logits = self.backend.empty((max_logits_rows, self.config.vocab_size))

    def forward(self, batch: ForwardBatch, kv_cache: KVCache) -> Array:
        """Compute a step and store its K and V.

        Returns:
            (L, D) float32, the rows ``batch.logits_indices`` after the final norm. The array
            belongs to the decoder: the next step overwrites it.
        """
        num_tokens, num_wanted = batch.input_ids.shape[0], batch.logits_indices.shape[0]
        workspace = self._workspace
        if workspace is None or workspace.max_tokens < max(num_tokens, num_wanted):
            self.reserve(max(num_tokens, num_wanted))
            workspace = self._workspace
            assert workspace is not None
        parts, rows, wanted = self._parts, workspace.rows(num_tokens), workspace.rows(num_wanted)
        residual = parts.embedding.lookup(batch.input_ids, rows.residual)
        if parts.positions is not None:
            self.backend.add_rows(residual, parts.positions, batch.positions)
        parts.first_norm(residual, rows.normed)
        for layer in parts.layers[:-1]:
            layer.feed(layer.attend(rows, batch, kv_cache), residual, rows)
        last = parts.layers[-1]
        attended = last.attend(rows, batch, kv_cache)
        if num_wanted == 0:
            return wanted.normed
        # Past the last attention, rows are on their own: only the wanted ones go on.
        gather, indices = self.backend.gather_rows, batch.logits_indices
        attended = gather(attended, indices, wanted.last_attended)
        residual = gather(residual, indices, wanted.last_residual)
        return last.feed(attended, residual, wanted)

    def logits(self, hidden: Array) -> Array:
        """Multiply ``hidden`` (L, D) with the head.

        Returns:
            (L, V) float32. The array belongs to the decoder: the next call overwrites it.
        """
        num_rows = hidden.shape[0]
        if self._logits is None or self._logits.shape[0] < num_rows:
            self._logits = self.backend.empty((num_rows, self.config.vocab_size))
        return self._parts.head(hidden, self._logits[:num_rows])
