"""A backend whose linears and experts show what they are given, while a layer is computed.

T tokens, D model dim, M width of the MLP, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from quire.kernels.attention_protocol import (
    Attention,
    AttentionSpec,
    LatentAttention,
    LatentSpec,
)
from quire.kernels.backend import Array, Backend, Experts, Linear, Weight
from quire.kernels.batch.forward_batch import BatchRows
from quire.kernels.matrices.host_tensor import HostTensor

#: Takes the modules that are one linear, and their inputs (T, K).
Observer = Callable[[tuple[str, ...], np.ndarray], None]


class ObservedBackend:
    """A backend for one layer at a time: its KV cache has one layer, and its inputs are seen.

    Args:
        backend: The backend that computes.
        observer: A function called with each linear's inputs before it multiplies them, or None.
        unread: Linears whose products are not read, so that observed ones need not multiply.
    """

    def __init__(
        self,
        backend: Backend,
        observer: Observer | None,
        unread: Collection[tuple[str, ...]] = (),
    ) -> None:
        self._backend, self._observer, self._unread = backend, observer, unread

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def attention(self, spec: AttentionSpec, **options: Any) -> Attention:
        """Make the attention of whichever layer it is, as the first of a cache."""
        return self._backend.attention(replace(spec, layer=0), **options)

    def latent_attention(self, spec: LatentSpec, *options: Any) -> LatentAttention:
        """Make the same of latents."""
        return self._backend.latent_attention(replace(spec, layer=0), *options)

    def linear(self, weights: Sequence[Weight], *arguments: Any, **options: Any) -> Linear:
        """Pack a linear; its inputs are seen."""
        made = self._backend.linear(weights, *arguments, **options)
        if self._observer is None:
            return made
        modules = _modules(weights)
        return _ObservedLinear(made, modules, self._observer, modules not in self._unread)

    def experts(
        self,
        gate_up: Iterable[Sequence[Weight]],
        down: Iterable[Sequence[Weight]],
        activation: str,
        *,
        biases: Iterable[Sequence[HostTensor]] = (),
        **options: Any,
    ) -> Experts:
        """Pack experts; the inputs of each are seen."""
        if self._observer is None:
            return self._backend.experts(gate_up, down, activation, biases=biases, **options)
        first, second = [list(w) for w in gate_up], [list(w) for w in down]
        added = list(biases)
        made = self._backend.experts(first, second, activation, biases=added, **options)
        seen = _ObservedMatrices(first, added, [_modules(w) for w in second], activation)
        return _ObservedExperts(self._backend, made, seen, self._observer)


class _ObservedLinear:
    def __init__(
        self, linear: Linear, modules: tuple[str, ...], observer: Observer, is_read: bool
    ) -> None:
        self._linear, self._modules, self._observer = linear, modules, observer
        self._is_read = is_read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._linear, name)

    def __call__(self, x: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        self._observer(self._modules, x)
        if not self._is_read and out is not None:
            return out
        return self._linear(x, out, rows)


class _ObservedMatrices:
    """The matrices that compute the inputs of experts' second matrices."""

    def __init__(
        self,
        first: list[list[Weight]],
        biases: Sequence[Sequence[HostTensor]],
        second: list[tuple[str, ...]],
        activation: str,
    ) -> None:
        self.first, self.second, self.activation = first, second, activation
        self._biases = biases

    def gate_up(self, expert: int, rows: np.ndarray) -> np.ndarray:
        """Return the product (T, 2 M) float32 of rows (T, D)."""
        matrix = np.concatenate([_float32(weight) for weight in self.first[expert]])
        product = np.ascontiguousarray(rows @ matrix.T)
        biases = self._biases[expert] if self._biases else ()
        return product + np.concatenate([b.float32() for b in biases]) if biases else product


class _ObservedExperts:
    def __init__(
        self, backend: Backend, experts: Experts, seen: _ObservedMatrices, observer: Observer
    ) -> None:
        self._backend, self._experts = backend, experts
        self._seen, self._observer = seen, observer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._experts, name)

    def __call__(
        self, x: Array, ids: Array, weights: Array, out: Array, rows: BatchRows | None = None
    ) -> Array:
        for expert, second in enumerate(self._seen.second):
            given = x[(ids == expert).any(axis=1)]
            if not len(given):
                continue
            up = self._seen.gate_up(expert, given)
            self._observer(_modules(self._seen.first[expert]), given)
            activated = np.empty((len(given), up.shape[1] // 2), np.float32)
            self._backend.gated_activation(up, self._seen.activation, activated)
            self._observer(second, activated)
        return self._experts(x, ids, weights, out, rows)


def _modules(weights: Sequence[Weight]) -> tuple[str, ...]:
    names = []
    for weight in weights:
        assert isinstance(weight, HostTensor), weight
        names.append(weight.name.removesuffix(".weight"))
    return tuple(names)


def _float32(weight: Weight) -> np.ndarray:
    assert isinstance(weight, HostTensor), weight
    return weight.float32()
