"""Training with rounded weights: which matrices, and what comes out; the loop is elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch.nn.utils import parametrize

from quire.quantization.producers.integer_grid import IntegerGrid
from quire.training.finetuning.causal_model import find_linears
from quire.training.finetuning.fake_quantize import FakeQuantize


class RoundedModel:
    """A model whose matrices are rounded whenever it computes.

    Everything else is computed as it is and not trained, so that it is the source's.

    Args:
        model: The model, which is changed in place.
        grids: Grid of each matrix that is trained, by the checkpoint's name of its module.

    Raises:
        UnsupportedArchitectureError: A matrix is not a linear of its own.
    """

    def __init__(self, model: torch.nn.Module, grids: Mapping[str, IntegerGrid]) -> None:
        self.model = model
        self._places = find_linears(model, list(grids))
        for module, place in self._places.items():
            linear = model.get_submodule(place)
            linear.requires_grad_(True)
            if isinstance(linear.bias, torch.nn.Parameter):
                linear.bias.requires_grad_(False)
            parametrize.register_parametrization(linear, "weight", FakeQuantize(grids[module]))

    def floats(self, module: str) -> np.ndarray:
        """Return the trained matrix before it is rounded, (N, K) float32."""
        linear = self.model.get_submodule(self._places[module])
        weights: torch.Tensor = linear.parametrizations["weight"].original  # type: ignore[index, union-attr]
        return weights.detach().cpu().numpy()

    def rounded(self, module: str) -> np.ndarray:
        """Return the matrix that the model computes with, (N, K) float32."""
        linear = self.model.get_submodule(self._places[module])
        assert isinstance(linear.weight, torch.Tensor)
        return linear.weight.detach().cpu().numpy()
