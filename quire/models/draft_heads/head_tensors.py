"""The tensors of a folder with a draft head, and linears and norms made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from quire.checkpoints.config_fields import ConfigFields, read_json
from quire.checkpoints.safetensors_file import SafetensorsFile, TensorEntry
from quire.core.errors import ModelLoadError
from quire.kernels.backend import Array, Backend, Linear
from quire.kernels.matrices.host_tensor import HostTensor
from quire.layers.norm import RMSNorm
from quire.quantization.rounding_schemes import RoundingScheme, quantize


class HeadTensors:
    """Tensors of a head by name; each is read when it is asked for.

    Args:
        folder: Folder with ``config.json`` and any number of safetensors.
        files: File of each tensor; None: all tensors of the folder are the head's.

    Raises:
        ModelLoadError: The folder has no tensors, they are damaged, or two have one name.
    """

    def __init__(self, folder: Path, files: Mapping[str, SafetensorsFile] | None = None) -> None:
        self.path = folder
        config = folder / "config.json"
        self.config = ConfigFields(read_json(config), str(config))
        self._files = dict(_find_files(folder) if files is None else files)

    @property
    def num_elements(self) -> int:
        """Number of elements of all tensors."""
        return sum(math.prod(file.entries[name].shape) for name, file in self._files.items())

    @property
    def names(self) -> set[str]:
        """Names of all tensors."""
        return set(self._files)

    def entry(self, name: str) -> TensorEntry:
        """Return type, shape and place of a tensor.

        Raises:
            ModelLoadError: No tensor has that name.
        """
        if name not in self._files:
            some = ", ".join(sorted(self._files)[:4])
            raise ModelLoadError(
                f"[load] a draft head of this kind must have {name}; got {some} and others in "
                f"{self.path}."
            )
        return self._files[name].entries[name]

    def matrix_shape(self, name: str) -> tuple[int, int]:
        """Return (out, in) of a matrix.

        Raises:
            ModelLoadError: No tensor has that name, or it is not a matrix.
        """
        shape = self.entry(name).shape
        if len(shape) != 2:
            raise ModelLoadError(f"[load] {self.path}: {name} must be a matrix; got {shape}.")
        return shape[0], shape[1]

    def tensor(self, name: str) -> HostTensor:
        """Return a view of a tensor of floats."""
        self.entry(name)
        return self._files[name].tensor(name)

    def integers(self, name: str) -> np.ndarray:
        """Return a copy of a tensor of integers, as int64."""
        self.entry(name)
        return self._files[name].integers(name)

    def release(self, name: str) -> None:
        """Give the pages of a tensor back."""
        self._files[name].release(name)


def _find_files(folder: Path) -> dict[str, SafetensorsFile]:
    files: dict[str, SafetensorsFile] = {}
    for path in sorted(folder.glob("*.safetensors")):
        file = SafetensorsFile(path)
        twice = sorted(files.keys() & file.entries.keys())
        if twice:
            raise ModelLoadError(
                f"[load] files of {folder} must not repeat tensors; got {twice[0]} in "
                f"{files[twice[0]].path.name} and {path.name}."
            )
        files |= dict.fromkeys(file.entries, file)
    if not files:
        found = ", ".join(sorted(p.name for p in folder.iterdir())[:8]) or "nothing"
        raise ModelLoadError(
            f"[load] {folder} must hold a draft head as safetensors; got {found}. Convert "
            "pickles (.bin, .pt) to safetensors: reading one can run code."
        )
    return files


@dataclass(slots=True)
class HeadBuilder:
    """Packs tensors of a head for a backend.

    Attributes:
        tensors: Tensors of the head.
        backend: The backend that packs them.
        dtype: Type that matrices are held in where they are not quantized.
        scheme: Scheme that matrices are quantized to, or None; tables (V, D) are not quantized.
        weight_bytes: Bytes of all that was made.
    """

    tensors: HeadTensors
    backend: Backend
    dtype: str
    scheme: RoundingScheme | None = None
    weight_bytes: int = field(default=0, init=False)

    def linear(self, modules: Sequence[str], *, is_table: bool = False) -> Linear:
        """Pack matrices stacked along their outputs, with biases where there are some."""
        scheme = None if is_table else self.scheme
        names = [f"{module}.weight" for module in modules]
        bias_names = [f"{m}.bias" for m in modules if f"{m}.bias" in self.tensors.names]
        matrices = [self.tensors.tensor(name) for name in names]
        linear = self.backend.linear(
            [quantize(m, scheme, self.backend.threads) for m in matrices] if scheme else matrices,
            [self.tensors.tensor(name) for name in bias_names],
            dtype=self.dtype,
        )
        self.weight_bytes += linear.nbytes
        for name in (*names, *bias_names):
            self.tensors.release(name)
        return linear

    def norm(self, module: str, eps: float) -> RMSNorm:
        """Make an RMSNorm of a weight (D,)."""
        return RMSNorm(self.backend, self.parameter(f"{module}.weight"), eps)

    def parameter(self, name: str) -> Array:
        """Copy a small weight to the backend."""
        tensor = self.tensors.tensor(name)
        # A copy of our own, so that float32 weights do not go on living in the mapped file.
        weight = self.backend.parameter(replace(tensor, array=tensor.array.copy()))
        self.weight_bytes += weight.nbytes
        return weight


def refuse_width(tensors: HeadTensors, name: str, size: int, what: str, wanted: int) -> None:
    """Refuse a head that was trained on another target.

    Args:
        tensors: Tensors of the head.
        name: The tensor whose size it is.
        size: Size of the head.
        what: Name of the size, such as ``hidden size``.
        wanted: Size of the target.

    Raises:
        ModelLoadError: The two sizes differ.
    """
    if size != wanted:
        raise ModelLoadError(
            f"[load] {tensors.path}: a draft head must have the {what} of the model it drafts "
            f"for, {wanted}; got {size} in {name}. Take a head that was trained on this model."
        )
