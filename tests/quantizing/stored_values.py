"""What a written checkpoint holds: its tensors as a reader has them, its files as bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from quire.checkpoints.embedded import ASSETS
from quire.kernels.matrices.lattice_matrix import LatticeMatrix
from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.models.config.config_reader import read_model_config
from quire.models.family_tensors import open_tensors

#: Options of calibration that takes a moment, of enough inputs for small models.
SAMPLES = ("--samples", "8", "--sample-length", "128")
#: The same, of a text of which not 900 lines are made tokens before samples are chosen.
FEW = (*SAMPLES, "--calibration", str(ASSETS / "quire-tiny/eval/heldout.txt"))
#: What quantized matrices are unpacked to.
KINDS = (QuantizedTensor, LatticeMatrix)


def values_of(folder: Path) -> dict[str, np.ndarray]:
    """Return the float32 values of all tensors."""
    tensors = open_tensors(folder, read_model_config(folder))
    return {name: np.array(tensors.tensor(name).float32()) for name in sorted(tensors.names)}


def quantized_names(folder: Path) -> list[str]:
    """Return the matrices that are not floats."""
    tensors = open_tensors(folder, read_model_config(folder))
    names = sorted(tensors.names)
    return [name for name in names if isinstance(tensors.tensor(name), KINDS)]


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the bytes of each file of a folder but its card, which names the folder."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != "README.md"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}
