"""AWQ's or SmoothQuant's scales of a layer, taken over by what computes the inputs.

```
attention norm ─▶ q, k, v      v's rows ─▶ output, where each query head has its own v
MLP norm ─▶ gate, up           up's rows ─▶ down
```
N rows (outputs), K columns (inputs) of a matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from quire.checkpoints.checkpoint import Checkpoint
from quire.checkpoints.safetensors_file import DTYPES
from quire.checkpoints.safetensors_writer import TensorData
from quire.models.weight_map import LinearWeights, NormWeights, WeightMap
from quire.quantization.producers.awq import ScaledMatrix, search_scales
from quire.quantization.producers.smoothing import smoothing_scales
from quire.quantizing.inputs.input_sums import InputSums
from quire.quantizing.methods import METHODS
from quire.quantizing.scheme import QuantizationScheme


@dataclass(slots=True)
class ScaledLayer:
    """A layer's tensors as floats, some of them scaled.

    Attributes:
        weights: (N, K) float32 by module.
        small: Norms and biases that changed, float32 by tensor, exact in the type they are
            stored in.
    """

    weights: dict[str, np.ndarray]
    small: dict[str, np.ndarray] = field(default_factory=dict)


class LayerScaler:
    """Scales layers of a checkpoint.

    Args:
        weights: The map of the checkpoint's tensors.
        stored: The checkpoint of floats.
        schemes: Schemes by module.
        threads: Number of threads that search.
    """

    def __init__(
        self,
        weights: WeightMap,
        stored: Checkpoint,
        schemes: Mapping[str, QuantizationScheme],
        threads: int,
    ) -> None:
        self._weights, self._stored = weights, stored
        self._schemes, self._threads = schemes, threads

    def scale(self, layer: int, matrices: dict[str, np.ndarray], sums: InputSums) -> ScaledLayer:
        """Scale the matrices of a layer whose methods ask for it, where that is possible.

        Args:
            layer: Index of the layer.
            matrices: (N, K) float32 by module, of the layer.
            sums: Sums of the linears' inputs; they are scaled with the matrices.
        """
        weights, config = self._weights, self._weights.config
        made = ScaledLayer(matrices)
        # Two matrices of latent attention have one norm, and no rows come before its output.
        if config.latent is None:
            qkv, output = weights.qkv(layer), weights.attention_output(layer)
            self._by_norm(made, qkv, weights.attention_norm(layer), sums)
            if config.num_heads == config.num_kv_heads and len(qkv.modules) == 3:
                self._by_rows(made, output, qkv, sums)
        mlps = weights.mlps(layer)
        if config.layer_moe(layer) is None:
            self._by_norm(made, mlps[0].gate_up, weights.mlp_norm(layer), sums)
        if config.gated_mlp:
            for mlp in mlps:
                self._by_rows(made, mlp.down, mlp.gate_up, sums)
        return made

    def _by_norm(
        self, made: ScaledLayer, linear: LinearWeights, norm: NormWeights | None, sums: InputSums
    ) -> None:
        """Scale a linear's columns; a norm that no other linear uses takes the inverse over."""
        config = self._weights.config
        if norm is None or config.shared_norm or linear.modules not in sums.num_rows:
            return
        if not self._scalable(linear.modules):
            return
        name, offset = f"{norm.module}.weight", np.float32(config.norm_offset)
        before = self._small(made, name) + offset
        # The norm is rounded to the type it is stored in; the columns make up for that.
        wanted = before / self._scales(made, linear, sums)
        after = _rounded(wanted - offset, self._dtype(name)) + offset
        kept = (after == 0) | ~np.isfinite(after)
        after = np.where(kept, before, after)
        scales = np.where(kept, np.float32(1), before / np.where(kept, 1, after))
        if norm.bias:
            bias = f"{norm.module}.bias"
            made.small[bias] = _rounded(self._small(made, bias) / scales, self._dtype(bias))
        made.small[name] = after - offset
        _scale_columns(made, linear, scales, sums)

    def _by_rows(
        self, made: ScaledLayer, linear: LinearWeights, before: LinearWeights, sums: InputSums
    ) -> None:
        """Scale a linear's columns; the rows of the last matrix before take the inverse over."""
        source = before.modules[-1]
        if not self._scalable((*linear.modules, source)) or linear.modules not in sums.num_rows:
            return
        scales = self._scales(made, linear, sums)
        if before.bias:
            bias = f"{source}.bias"
            values = np.array(self._small(made, bias))
            values[-len(scales) :] /= scales
            made.small[bias] = _rounded(values, self._dtype(bias))
        # Where matrices are stored as one, these are the last of its rows.
        made.weights[source][-len(scales) :] /= scales[:, None]
        _scale_columns(made, linear, scales, sums)

    def _scales(self, made: ScaledLayer, linear: LinearWeights, sums: InputSums) -> np.ndarray:
        scheme = self._schemes[linear.modules[0]]
        if scheme.method == "smoothquant":
            weights = [made.weights[module] for module in linear.modules]
            return smoothing_scales(weights, sums.largest[linear.modules], scheme.smoothing)
        matrices = [
            ScaledMatrix(made.weights[module], self._schemes[module].grid)
            for module in linear.modules
        ]
        magnitudes = sums.magnitudes[linear.modules] / sums.num_rows[linear.modules]
        sample = sums.sample(linear.modules)
        return search_scales(matrices, magnitudes, sample, self._threads, duo=scheme.duo_scaling)

    def _scalable(self, modules: tuple[str, ...]) -> bool:
        """Tell whether all have one method that scales columns."""
        schemes = [self._schemes.get(module) for module in modules]
        methods = {None if scheme is None else scheme.method for scheme in schemes}
        method = methods.pop()
        return not methods and method is not None and METHODS[method].scales_columns

    def _small(self, made: ScaledLayer, name: str) -> np.ndarray:
        found = made.small.get(name)
        return np.array(self._stored.tensor(name).float32()) if found is None else found

    def _dtype(self, name: str) -> str:
        return self._stored.entry(name).dtype

    def stored(self, made: ScaledLayer) -> dict[str, TensorData]:
        """Return the small tensors that changed, as they are stored."""
        return {name: _data(array, self._dtype(name)) for name, array in made.small.items()}


def _scale_columns(
    made: ScaledLayer, linear: LinearWeights, scales: np.ndarray, sums: InputSums
) -> None:
    for module in linear.modules:
        made.weights[module] *= scales
    products = sums.sums[linear.modules]
    products /= scales
    products /= scales[:, None]
    sums.largest[linear.modules] /= scales


def _rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return float32 values that a type of :data:`DTYPES` has."""
    name = DTYPES[dtype]
    if name == "float16":
        with np.errstate(over="ignore"):
            return array.astype(np.float16).astype(np.float32)
    values = np.ascontiguousarray(array, np.float32)
    if name == "float32":
        return values
    bits = values.view(np.uint32)
    nearest = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    return (nearest & np.uint32(0xFFFF0000)).view(np.float32)


def _data(array: np.ndarray, dtype: str) -> TensorData:
    name = DTYPES[dtype]
    elements = array.astype(np.float32)
    if name == "bfloat16":
        elements = (elements.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    elif name == "float16":
        elements = elements.astype(np.float16)
    return TensorData(dtype, array.shape, lambda: elements)
