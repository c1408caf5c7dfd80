"""Rows that enter a model's first layer: those of tokens, and of what stands in their place.

T tokens of the step, D model dim, V vocabulary, P positions.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.kernels.backend import Array, Backend, Linear
from quire.layers.norm import Norm
from quire.layers.workspace import Activations


@dataclass(frozen=True, slots=True)
class InputEmbedding:
    """Embedding, positions, and the first layer's first norm.

    Attributes:
        backend: The backend that computes.
        embedding: Embedding from V to D, looked up by token id.
        scale: Factor of the rows that are looked up.
        positions: Learned positions (P, D), or None.
        token_types: (types, D), rows added to tokens that do not belong to the first text, whose
            own row is 0; or None.
        first_norm: The first layer's attention norm.
    """

    backend: Backend
    embedding: Linear
    scale: float
    positions: Array | None
    token_types: Array | None
    first_norm: Norm

    def __call__(self, step: Activations) -> None:
        """Write ``residual`` and ``normed`` of a step's rows."""
        batch, residual = step.rows.batch, step.residual
        self.embedding.lookup(batch.input_ids, residual, step.rows)
        if self.scale != 1:
            self.backend.scale(residual, self.scale, residual)
        if batch.embedding_rows is not None:
            self.backend.scatter_rows(batch.embeddings, batch.embedding_rows, residual)
        if self.positions is not None:
            self.backend.add_rows(residual, self.positions, batch.positions)
        if self.token_types is not None and batch.token_types is not None:
            self.backend.add_rows(residual, self.token_types, batch.token_types)
        self.first_norm(residual, step.normed, None, step.rows)
