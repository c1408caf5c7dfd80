"""The activations of a step: buffers allocated once, cut to the step's rows by views.

T tokens of the step, D model dim, N query heads, K KV heads, H head dim, M width of the MLP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.core.model.kv_cache_spec import DTYPE_BYTES
from quire.core.model.model_config import ModelConfig
from quire.kernels.backend import Array, AttentionPlan, Backend
from quire.kernels.batch.forward_batch import BatchRows, ForwardBatch

#: Most rows of which views are kept: decodes, which come again and again. Longer steps have
#: thousands of lengths; views of each would stay for good, 2 KB, to save 7 us of milliseconds.
MAX_KEPT_ROWS = 128


@dataclass(slots=True)
class Activations:
    """The step that layers compute, and its T rows; fields that share memory are not live together.

    Attributes:
        rows: The step, and the places of these rows in it.
        plans: Attention's preparations for the step, by :attr:`Mixing.plan`.
        residual: (T, D).
        normed: (T, D): a norm's output, and the output of the projection that follows it.
        qkv: (T, (N + 2 K) H); of latent attention queries alone, (T, N H).
        latents: (T, r + R) of latent attention: latents, and the part of keys that turns.
        query_latents: (T, query rank), from which queries are projected.
        attended: (T, N H), or (T, width of the values of N heads).
        up: (T, 2 M), or (T, M) where the MLP is not gated; shares memory with ``qkv``.
        activated: (T, M); shares memory with ``attended``.
        routed: (T, experts) of a mixture of experts; shares memory with ``qkv``.
        mixed: (T, D), its output; shares memory with ``attended``.
        shared_up, shared_activated: (T, 2 S) and (T, S) of experts that are always on, of width S;
            share memory with ``up`` and ``activated``.
        shared: (T, D), their output; shares memory with ``qkv``.
        apart: (T, D) of a parallel layer: attention's output while the MLP computes.
    """

    rows: BatchRows
    plans: Sequence[AttentionPlan]
    residual: Array
    normed: Array
    qkv: Array
    latents: Array
    query_latents: Array
    attended: Array
    up: Array
    activated: Array
    routed: Array
    mixed: Array
    shared_up: Array
    shared_activated: Array
    shared: Array
    apart: Array


class Workspace:
    """Buffers for up to ``max_tokens`` rows, used by one step at a time.

    Args:
        backend: The backend that allocates, in its ``activation_dtype``.
        config: The model's widths.
        max_tokens: Most rows of a step.
    """

    def __init__(self, backend: Backend, config: ModelConfig, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self._config = config
        wide, narrow = _widths(config)
        widths = (*(config.hidden_size,) * 3, wide, narrow, _apart_width(config))
        self._residual, self._normed, self._picked, self._wide, self._narrow, self._apart = (
            backend.empty((max_tokens * width,), backend.activation_dtype) for width in widths
        )
        self._views: dict[int, tuple[Array, ...]] = {}
        self._picked_views: dict[int, tuple[Array, ...]] = {}

    def all_rows(self, batch: ForwardBatch, plans: Sequence[AttentionPlan]) -> Activations:
        """Return the activations of all rows of a step."""
        num_rows = batch.input_ids.shape[0]
        views = self._kept(self._views, num_rows, self._residual, self._narrow)
        return Activations(BatchRows(batch), plans, *views)

    def wanted_rows(self, batch: ForwardBatch) -> Activations:
        """Return the activations of the rows ``batch.logits_indices``, past the last attention.

        Their ``residual`` and ``attended`` are apart from those of all rows, to be picked from
        them; ``attended`` shares memory with ``qkv``.
        """
        num_rows = batch.logits_indices.shape[0]
        views = self._kept(self._picked_views, num_rows, self._picked, self._wide)
        return Activations(BatchRows(batch, batch.logits_indices), (), *views)

    def _kept(
        self, kept: dict[int, tuple[Array, ...]], num_rows: int, residual: Array, attended: Array
    ) -> tuple[Array, ...]:
        """Return the views of ``num_rows`` rows: those that are kept, or new ones."""
        views = kept.get(num_rows)
        if views is None:
            assert num_rows <= self.max_tokens, (num_rows, self.max_tokens)
            views = self._cut(num_rows, residual, attended)
            if num_rows <= MAX_KEPT_ROWS:
                kept[num_rows] = views
        return views

    def _cut(self, num_rows: int, residual: Array, attended: Array) -> tuple[Array, ...]:
        """Return the first rows of every buffer, in the order of the fields."""
        config = self._config
        qkv_width, latent_width, rank = _inputs_of_attention(config)
        after_qkv = self._wide[num_rows * qkv_width :]
        cuts = (
            (residual, config.hidden_size),
            (self._normed, config.hidden_size),
            (self._wide, qkv_width),
            (after_qkv, latent_width),
            (after_qkv[num_rows * latent_width :], rank),
            (attended, config.attended_dim),
            (self._wide, _up_width(config)),
            (self._narrow, _activated_width(config)),
            (self._wide, config.moe.num_experts if config.moe else 0),
            (self._narrow, config.hidden_size if config.moe else 0),
            (self._wide, 2 * _shared_size(config)),
            (self._narrow, _shared_size(config)),
            (self._wide, config.hidden_size if _shared_size(config) else 0),
            (self._apart, _apart_width(config)),
        )
        return tuple(buffer[: num_rows * width].reshape(num_rows, width) for buffer, width in cuts)


def workspace_bytes(config: ModelConfig, max_tokens: int, dtype: str) -> int:
    """Return the bytes a :class:`Workspace` takes, its activations held as ``dtype``."""
    elements = max_tokens * (3 * config.hidden_size + sum(_widths(config)) + _apart_width(config))
    return DTYPE_BYTES[dtype] * elements


def _widths(config: ModelConfig) -> tuple[int, int]:
    # Rows that are picked past the last attention lie in the wide buffer.
    wide = max(sum(_inputs_of_attention(config)), config.attended_dim, _up_width(config))
    narrow = max(config.attended_dim, _activated_width(config))
    if config.moe is not None:
        shared, width = config.moe.shared_size, config.hidden_size
        wide = max(wide, config.moe.num_experts, 2 * shared, width if shared else 0)
        narrow = max(narrow, shared, width)
    return wide, narrow


def _inputs_of_attention(config: ModelConfig) -> tuple[int, int, int]:
    """Return the widths of queries (with keys and values), latents, and query latents."""
    queries, latent = config.num_heads * config.head_dim, config.latent
    if latent is None:
        return queries + 2 * config.num_kv_heads * config.head_dim, 0, 0
    return queries, latent.row_dim, latent.query_rank or 0


def _up_width(config: ModelConfig) -> int:
    # Experts have scratch of their own, and only a gated MLP needs room besides its input.
    if not config.num_dense_layers:
        return 0
    return config.intermediate_size * (2 if config.gated_mlp else 1)


def _activated_width(config: ModelConfig) -> int:
    return config.intermediate_size if config.gated_mlp and config.num_dense_layers else 0


def _shared_size(config: ModelConfig) -> int:
    return config.moe.shared_size if config.moe else 0


def _apart_width(config: ModelConfig) -> int:
    return config.hidden_size if config.parallel else 0
