"""An adapter added to the matrices that it was trained for, as floats.

``merged = base + alpha / rank * B @ A`` in float32, then the type of the checkpoint. N rows, K
columns, R rank.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file

from quire.checkpoints.checkpoint import Checkpoint
from quire.checkpoints.safetensors_writer import TensorData
from quire.kernels.matrices.host_tensor import HostTensor
from quire.training.finetuning.frozen_linear import round_to_nf4

TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class Adapter:
    """An adapter of a folder in peft's layout, as :mod:`.adapters` writes it.

    Args:
        folder: A folder with ``adapter_config.json`` and ``adapter_model.safetensors``.
    """

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "adapter_config.json").read_text("utf-8"))
        self._scale = np.float32(config["lora_alpha"] / config["r"])
        self._parts = load_file(folder / "adapter_model.safetensors")

    def delta(self, module: str) -> np.ndarray:
        """Return what is added to a module's matrix, (N, K) float32."""
        (ups,) = (n for n in self._parts if n.endswith(f".{module}.lora_B.weight"))
        up, down = self._parts[ups], self._parts[ups.replace("lora_B", "lora_A")]
        product: np.ndarray = up.astype(np.float32) @ down.astype(np.float32)
        return product * self._scale


def merged_tensors(
    stored: Checkpoint, modules: Sequence[str], adapter: Adapter, base: str
) -> dict[str, TensorData]:
    """Return the matrices with the adapter in them, made when they are written.

    Args:
        stored: The source.
        modules: Modules that have an adapter.
        adapter: The adapter that was trained for them.
        base: One of :data:`BASES`.
    """
    tensors = {}
    for module in modules:
        entry = stored.entry(f"{module}.weight")
        read: Callable[[], np.ndarray] = partial(_merged, stored, module, adapter, base)
        release = partial(stored.release, f"{module}.weight")
        tensors[f"{module}.weight"] = TensorData(entry.dtype, entry.shape, read, release)
    return tensors


def _merged(stored: Checkpoint, module: str, adapter: Adapter, base: str) -> np.ndarray:
    name = f"{module}.weight"
    tensor = stored.tensor(name)
    assert isinstance(tensor, HostTensor), name
    weight = tensor.float32()
    if base == "nf4":
        weight = round_to_nf4(name, weight).float32()
    return as_stored(weight + adapter.delta(module), stored.entry(name).dtype)


def as_stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return float32 values in a type of a file, bfloat16 as the bits of int16."""
    made = torch.from_numpy(np.ascontiguousarray(values)).to(TYPES[dtype])
    return (made.view(torch.int16) if dtype == "BF16" else made).numpy()
