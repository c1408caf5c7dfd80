"""Projectors of an encoder's features to rows as wide as the decoder, one picture at a time.

S features of a picture, W their width, D model dim, R rows that the picture has in a prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from quire.kernels.backend import Array, Backend, Linear
from quire.layers.norm import Norm
from quire.models.vision.slices import Slices, cut_rows, norm_in_place

FloatArray = npt.NDArray[np.float32]


class Projector(Protocol):
    """Makes the rows of a picture."""

    @property
    def width(self) -> int:
        """D."""
        ...

    def project(self, features: Array, down: int, across: int) -> Slices[Array]:
        """Return (R, D).

        Args:
            features: (S, W), row by row of the picture.
            down, across: Features in a column and in a row; a class token precedes them.
        """
        ...


@dataclass(frozen=True, slots=True)
class MlpProjector:
    """Two matrices, for each feature by itself.

    Attributes:
        backend: The backend that computes.
        first, second: Matrices from W to D, and from D to D.
        activation: Activation between the two.
    """

    backend: Backend
    first: Linear
    second: Linear
    activation: str

    @property
    def width(self) -> int:
        """D."""
        return self.second.out_features

    def project(self, features: Array, down: int, across: int) -> Slices[Array]:
        """Return (S, D)."""
        matrices = self.first, self.second
        return (yield from _multiply_twice(self.backend, features, matrices, self.activation))


@dataclass(frozen=True, slots=True)
class PooledProjector:
    """Means of squares of features, normed and multiplied (Gemma 3).

    Attributes:
        backend: The backend that computes.
        norm: Norm of the means.
        linear: Matrix from W to D.
        merge: Edge of the squares.
    """

    backend: Backend
    norm: Norm
    linear: Linear
    merge: int

    @property
    def width(self) -> int:
        """D."""
        return self.linear.out_features

    def project(self, features: Array, down: int, across: int) -> Slices[Array]:
        """Return (S / merge ** 2, D)."""
        found = squares(np.asarray(self.backend.to_numpy(features)), down, across, self.merge)
        out = self.backend.empty((len(found), self.width), self.backend.activation_dtype)
        for rows in cut_rows(len(found), self.linear.in_features * self.width):
            means = self.backend.from_numpy(found[rows].mean(1, dtype=np.float32))
            self.linear(self.norm(means, means), out[rows])
            yield
        return out


@dataclass(frozen=True, slots=True)
class MergingProjector:
    """A norm of each feature, then two matrices for ``merged`` neighbours together (Qwen2-VL).

    Attributes:
        backend: The backend that computes.
        norm: Norm of each feature.
        first, second: Matrices from ``merged * W`` to the same, and to D.
        activation: Activation between the two.
    """

    backend: Backend
    norm: Norm
    first: Linear
    second: Linear
    activation: str

    @property
    def width(self) -> int:
        """D."""
        return self.second.out_features

    def project(self, features: Array, down: int, across: int) -> Slices[Array]:
        """Return (S / merged, D), of features whose neighbours are the squares."""
        yield from norm_in_place(self.norm, features)
        normed = features.reshape(-1, self.first.in_features)
        matrices = self.first, self.second
        return (yield from _multiply_twice(self.backend, normed, matrices, self.activation))


@dataclass(frozen=True, slots=True)
class ShuffledProjector:
    """A matrix of the features of squares (Idefics3, SmolVLM).

    Attributes:
        backend: The backend that computes.
        linear: Matrix from ``merge ** 2 * W`` to D.
        merge: Edge of the squares.
    """

    backend: Backend
    linear: Linear
    merge: int

    @property
    def width(self) -> int:
        """D."""
        return self.linear.out_features

    def project(self, features: Array, down: int, across: int) -> Slices[Array]:
        """Return (S / merge ** 2, D)."""
        found = squares(np.asarray(self.backend.to_numpy(features)), down, across, self.merge)
        merged = self.backend.from_numpy(found.reshape(len(found), -1))
        out = self.backend.empty((len(found), self.width), self.backend.activation_dtype)
        for rows in cut_rows(len(found), self.linear.in_features * self.width):
            self.linear(merged[rows], out[rows])
            yield
        return out


def squares(features: FloatArray, down: int, across: int, edge: int) -> FloatArray:
    """Return the features of each square, (squares, edge ** 2, W), row by row both.

    Args:
        features: (down * across, W).
        down, across: Features in a column and in a row, multiples of ``edge``.
        edge: Edge of a square.
    """
    width = features.shape[-1]
    cut = features.reshape(down // edge, edge, across // edge, edge, width)
    return np.ascontiguousarray(cut.swapaxes(1, 2)).reshape(-1, edge * edge, width)


def _multiply_twice(
    backend: Backend, features: Array, matrices: tuple[Linear, Linear], activation: str
) -> Slices[Array]:
    """Return rows multiplied by one matrix and then the other, with an activation between."""
    first, second = matrices
    work = first.out_features * (first.in_features + second.out_features)
    out = backend.empty((features.shape[0], second.out_features), backend.activation_dtype)
    for rows in cut_rows(features.shape[0], work):
        inner = first(features[rows])
        backend.activation(inner, activation, inner)
        yield
        second(inner, out[rows])
        yield
    return out
