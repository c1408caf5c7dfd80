"""An adapter added to the matrices of its model, as a checkpoint of floats.

``merged = base + scale * up @ down`` in float32, its rows scaled to DoRA's magnitudes, rounded to
the type of the base once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from quire.checkpoints.checkpoint import Checkpoint
from quire.checkpoints.gguf.gguf_types import to_bfloat16
from quire.checkpoints.safetensors_writer import TensorData
from quire.core.errors import ConfigError
from quire.kernels.matrices.host_tensor import HostTensor
from quire.models.adapters.matching import AdapterParts, find_parts
from quire.models.adapters.peft_folder import AdapterMatrices, PeftAdapter
from quire.models.adapters.places import find_places
from quire.models.weight_map import WeightMap

Change = Callable[[np.ndarray], np.ndarray]


def merged_tensors(
    stored: Checkpoint, weights: WeightMap, adapter: PeftAdapter
) -> dict[str, TensorData]:
    """Return the tensors that an adapter changes, made when they are written.

    Raises:
        ModelLoadError: The adapter is another model's.
        ConfigError: The adapter changes a head that is the embedding, or the other way round, or a
            bias that the model does not have.
    """
    places = list(find_places(stored, weights).values())
    parts = find_parts(adapter, places)
    _check_tied(weights, parts)
    tensors = {}
    for place in places:
        for module in place.modules:
            changed = {
                "weight": _change_of(parts, module, place.transposed),
                "bias": _replaced(parts.biases.get(module)),
            }
            for kind, change in changed.items():
                if change is not None:
                    name = f"{module}.{kind}"
                    if name not in stored.names:
                        raise ConfigError(
                            f"[merge] {name} must be a tensor of the model; got none. Serve the "
                            "adapter with --enable-lora."
                        )
                    tensors[name] = _tensor_data(stored, name, change)
    return tensors


def _check_tied(weights: WeightMap, parts: AdapterParts) -> None:
    names = weights.names
    both = {names.head, names.embedding}
    if weights.config.tie_word_embeddings and both & (parts.matrices.keys() | parts.whole.keys()):
        raise ConfigError(
            f"[merge] {names.head} and {names.embedding} must be matrices of their own; got a "
            "model whose head is its embedding, of which the adapter changes one. Serve the "
            "adapter with --enable-lora."
        )


def _change_of(parts: AdapterParts, module: str, turned: bool) -> Change | None:
    if module in parts.whole:
        return _replaced(parts.whole[module])
    own = parts.matrices.get(module)
    return None if own is None else partial(_merged, own, turned)


def _replaced(tensor: HostTensor | None) -> Change | None:
    return None if tensor is None else lambda _: tensor.float32()


def _merged(own: AdapterMatrices, turned: bool, values: np.ndarray) -> np.ndarray:
    added = np.float32(own.scale) * (own.up.float32() @ own.down.float32())
    matrix: np.ndarray = (values.T if turned else values) + added
    if own.magnitudes is not None:
        norms = np.sqrt(np.einsum("oi,oi->o", matrix, matrix))
        matrix *= (own.magnitudes.float32() / norms)[:, None]
    return matrix.T if turned else matrix


def _tensor_data(stored: Checkpoint, name: str, change: Change) -> TensorData:
    entry = stored.entry(name)

    def read() -> np.ndarray:
        tensor = stored.tensor(name)
        assert isinstance(tensor, HostTensor), tensor
        values = change(tensor.float32())
        if tensor.dtype == "bfloat16":
            return to_bfloat16(np.ascontiguousarray(values))
        return np.ascontiguousarray(values, np.dtype(tensor.dtype))

    return TensorData(entry.dtype, entry.shape, read, partial(stored.release, name))
