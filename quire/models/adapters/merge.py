"""An adapter added to the matrices of its model, as a checkpoint of floats.

``merged = base + scale * up @ down`` in float32, rounded to the type of the base once.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from quire.core.errors import ConfigError
from quire.kernels.host_tensor import HostTensor
from quire.models.adapters.peft_folder import AdapterMatrices, PeftAdapter
from quire.models.adapters.placement import find_matrices
from quire.models.adapters.places import adaptable_linears, adapter_place
from quire.models.checkpoint import Checkpoint
from quire.models.safetensors_writer import TensorData
from quire.models.weight_map import WeightMap
from quire.quantization.gguf_types import to_bfloat16


def merged_tensors(
    stored: Checkpoint, weights: WeightMap, adapter: PeftAdapter
) -> dict[str, TensorData]:
    """Return the matrices that an adapter changes, made when they are written.

    Raises:
        ModelLoadError: It is another model's.
        ConfigError: It changes a head that is the embedding, too.
    """
    linears = adaptable_linears(weights)
    matrices = find_matrices(adapter, [adapter_place(linear, {}) for linear in linears])
    head = weights.names.head
    if weights.config.tie_word_embeddings and head in matrices:
        raise ConfigError(
            f"[merge] {head} must be a matrix of its own; got a model whose head is its embedding, "
            "which the adapter does not change. Serve the adapter with --enable-lora."
        )
    transposed = {module for linear in linears if linear.transposed for module in linear.modules}
    tensors = {}
    for module, own in matrices.items():
        entry = stored.entry(f"{module}.weight")
        read = partial(_merged, stored, module, own, module in transposed)
        release = partial(stored.release, f"{module}.weight")
        tensors[f"{module}.weight"] = TensorData(entry.dtype, entry.shape, read, release)
    return tensors


def _merged(stored: Checkpoint, module: str, own: AdapterMatrices, turned: bool) -> np.ndarray:
    tensor = stored.tensor(f"{module}.weight")
    assert isinstance(tensor, HostTensor), tensor
    added = np.float32(own.scale) * (own.up.float32() @ own.down.float32())
    values = tensor.float32() + (added.T if turned else added)
    if tensor.dtype == "bfloat16":
        return to_bfloat16(np.ascontiguousarray(values))
    return np.ascontiguousarray(values, np.dtype(tensor.dtype))
