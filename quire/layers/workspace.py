"""The activations of a step: buffers allocated once, cut to the step's rows by cached views.

T tokens of the step, D model dim, N query heads, K KV heads, H head dim, M width of the MLP.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.model_config import ModelConfig
from quire.kernels.backend import Array, Backend


@dataclass(frozen=True, slots=True)
class Rows:
    """The activations of T rows; float32. Fields that share memory are never alive together.

    Attributes:
        residual: (T, D).
        normed: (T, D): a norm's output, and the output of the projection that follows it.
        qkv: (T, (N + 2 K) H).
        attended: (T, N H).
        up: (T, 2 M), or (T, M) where the MLP is not gated; shares memory with ``qkv``.
        activated: (T, M); shares memory with ``attended``.
        routed: (T, experts) of a mixture of experts; shares memory with ``qkv``.
        mixed: (T, D), its output; shares memory with ``attended``.
        last_attended: (T, N H), rows picked from ``attended``; shares memory with ``qkv``.
        last_residual: (T, D), rows picked from ``residual``.
    """

    residual: Array
    normed: Array
    qkv: Array
    attended: Array
    up: Array
    activated: Array
    routed: Array
    mixed: Array
    last_attended: Array
    last_residual: Array


class Workspace:
    """Buffers for up to ``max_tokens`` rows.

    Args:
        backend: Where to allocate.
        config: Widths.
        max_tokens: Most rows of a step.
    """

    def __init__(self, backend: Backend, config: ModelConfig, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self._config = config
        wide, narrow = _widths(config)
        self._residual, self._normed, self._last = (
            backend.empty((max_tokens * config.hidden_size,)) for _ in range(3)
        )
        self._wide, self._narrow = (backend.empty((max_tokens * w,)) for w in (wide, narrow))
        self._views: dict[int, Rows] = {}

    def rows(self, num_rows: int) -> Rows:
        """Return the first ``num_rows`` rows of every buffer."""
        rows = self._views.get(num_rows)
        if rows is None:
            assert num_rows <= self.max_tokens, (num_rows, self.max_tokens)
            rows = self._views[num_rows] = self._cut(num_rows)
        return rows

    def _cut(self, num_rows: int) -> Rows:
        config = self._config

        def cut(buffer: Array, width: int) -> Array:
            return buffer[: num_rows * width].reshape(num_rows, width)

        query_width = config.num_heads * config.head_dim
        return Rows(
            residual=cut(self._residual, config.hidden_size),
            normed=cut(self._normed, config.hidden_size),
            qkv=cut(self._wide, query_width + 2 * config.num_kv_heads * config.head_dim),
            attended=cut(self._narrow, query_width),
            up=cut(self._wide, _up_width(config)),
            activated=cut(self._narrow, _activated_width(config)),
            routed=cut(self._wide, config.moe.num_experts if config.moe else 0),
            mixed=cut(self._narrow, config.hidden_size if config.moe else 0),
            last_attended=cut(self._wide, query_width),
            last_residual=cut(self._last, config.hidden_size),
        )


def workspace_bytes(config: ModelConfig, max_tokens: int) -> int:
    """Return the bytes a :class:`Workspace` takes."""
    return 4 * max_tokens * (3 * config.hidden_size + sum(_widths(config)))


def _widths(config: ModelConfig) -> tuple[int, int]:
    query_width = config.num_heads * config.head_dim
    qkv_width = query_width + 2 * config.num_kv_heads * config.head_dim
    wide = max(qkv_width, _up_width(config), config.moe.num_experts if config.moe else 0)
    narrow = max(query_width, _activated_width(config), config.hidden_size if config.moe else 0)
    return wide, narrow


def _up_width(config: ModelConfig) -> int:
    # Experts have scratch of their own, and only a gated MLP needs room beside its input.
    if config.moe:
        return 0
    return config.intermediate_size * (2 if config.gated_mlp else 1)


def _activated_width(config: ModelConfig) -> int:
    return config.intermediate_size if config.gated_mlp and not config.moe else 0
