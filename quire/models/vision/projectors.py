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
    """Two matrices, for each feature by itself or for neighbours together (Qwen2-VL).

    Attributes:
        backend: The backend that computes.
        first, second: Matrices from ``merged * W`` to any width, and from that to D; ``merged``
            neighbours are a square's.
        activation: Activation between the two.
        norm: Norm of each feature, or None.
    """

    backend: Backend
    first: Linear
    second: Linear
    activation: str
    norm: Norm | None = None

    @property
    def width(self) -> int:
        """D."""
        return self.second.out_features

    def project(self, features: Array, down: int, across: int) -> Slices[Array]:
        """Return (S / merged, D)."""
        if self.norm is not None:
            yield from norm_in_place(self.norm, features)
        x, first, second = features.reshape(-1, self.first.in_features), self.first, self.second
        work = first.out_features * (first.in_features + second.out_features)
        out = self.backend.empty((x.shape[0], self.width), self.backend.activation_dtype)
        for rows in cut_rows(x.shape[0], work):
            inner = first(x[rows])
            self.backend.activation(inner, self.activation, inner)
            yield
            second(inner, out[rows])
            yield
        return out


@dataclass(frozen=True, slots=True)
class SquaresProjector:
    """A matrix of squares of features: of all in them (Idefics3, SmolVLM), or means (Gemma 3).

    Attributes:
        backend: The backend that computes.
        linear: Matrix to D from ``merge ** 2 * W``, or from W for means.
        merge: Edge of the squares.
        norm_of_means: Norm of the means of squares; None where squares go in whole.
    """

    backend: Backend
    linear: Linear
    merge: int
    norm_of_means: Norm | None = None

    @property
    def width(self) -> int:
        """D."""
        return self.linear.out_features

    def project(self, features: Array, down: int, across: int) -> Slices[Array]:
        """Return (S / merge ** 2, D)."""
        norm, linear = self.norm_of_means, self.linear
        found = squares(np.asarray(self.backend.to_numpy(features)), down, across, self.merge)
        out = self.backend.empty((len(found), self.width), self.backend.activation_dtype)
        for rows in cut_rows(len(found), linear.in_features * self.width):
            if norm is None:
                whole = found[rows].reshape(-1, linear.in_features)
                linear(self.backend.from_numpy(whole), out[rows])
            else:
                means = self.backend.from_numpy(found[rows].mean(1, dtype=np.float32))
                linear(norm(means, means), out[rows])
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
