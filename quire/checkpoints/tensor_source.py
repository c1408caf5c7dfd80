"""A checkpoint of any format as the loader sees it: tensors by name, all accounted for."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Protocol

from quire.checkpoints.checkpoint import Checkpoint
from quire.checkpoints.formats.stored_matrix import UnpackedMatrix
from quire.checkpoints.gguf.gguf_checkpoint import GgufCheckpoint
from quire.checkpoints.gguf.gguf_file import open_gguf
from quire.checkpoints.quantized.quantization_config import SETTINGS_FILES, read_quantization
from quire.checkpoints.quantized.quantized_checkpoint import QuantizedCheckpoint
from quire.checkpoints.rank_files import INDEX, RankFolder
from quire.checkpoints.split_experts import split_experts
from quire.checkpoints.weight_names import WeightNames
from quire.core.errors import WeightMismatchError
from quire.core.model.model_config import ModelConfig
from quire.kernels.matrices.block_matrix import BlockMatrix
from quire.kernels.matrices.host_tensor import HostTensor

log = logging.getLogger(__name__)

#: Tensors named in one error message.
MAX_NAMED = 8


class TensorInfo(Protocol):
    """Shape and size of a tensor, known before it is read."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Row-major shape."""
        ...

    @property
    def nbytes(self) -> int:
        """Size in the file, in bytes."""
        ...


class NamedTensors(Protocol):
    """Names and sizes of a checkpoint's tensors."""

    @property
    def path(self) -> Path:
        """The folder or file, for messages."""
        ...

    @property
    def names(self) -> set[str]:
        """Names of all tensors."""
        ...

    def entry(self, name: str) -> TensorInfo:
        """Return shape and size of a tensor."""
        ...


class TensorSource(NamedTensors, Protocol):
    """Tensors of one checkpoint."""

    @property
    def is_arranged(self) -> bool:
        """Whether rows and norms are as kernels take them, whatever the family stores."""
        ...

    @property
    def mixes_types(self) -> bool:
        """Whether matrices of different types are usual in one checkpoint."""
        ...

    def weight_names(self, config: ModelConfig, family: WeightNames) -> WeightNames:
        """Return what the tensors are called here; ``family`` has other names for some."""
        ...

    def notices(self) -> list[str]:
        """Return what a user should know of how the tensors are stored."""
        ...

    def tensor(self, name: str) -> HostTensor | BlockMatrix | UnpackedMatrix:
        """Return the values, or what a quantized matrix is made of.

        Their pages stay resident until :meth:`release`.
        """
        ...

    def release(self, name: str) -> None:
        """Give the pages of a tensor back."""
        ...


def open_source(path: Path, config: ModelConfig, family: WeightNames) -> TensorSource:
    """Open a folder of safetensors or a GGUF file.

    Args:
        path: The folder or the file.
        config: The configuration that was read from the same path.
        family: The names that the model's family gives the tensors.

    Raises:
        ModelLoadError: The weights are missing or damaged.
    """
    if path.is_file():
        return GgufCheckpoint(open_gguf(path), config)
    if (path / INDEX).exists():
        return RankFolder(path)
    stored, quantization = split_experts(Checkpoint(path), config, family), read_quantization(path)
    if quantization is not None:
        return QuantizedCheckpoint(stored, quantization)
    packed = sorted(name for name in stored.names if name.endswith(".qweight"))
    if packed:
        files = ", ".join(SETTINGS_FILES)
        raise WeightMismatchError(
            f"[load] {path}: quantized matrices need their settings, quantization_config in "
            f"config.json or one of {files}; got {packed[0]} and none. Copy that file, too."
        )
    return stored


def check_tensors(
    source: NamedTensors,
    shapes: Mapping[str, tuple[int, ...]],
    harmless: Sequence[str],
    others: Set[str] = frozenset(),
) -> None:
    """Account for every tensor.

    Args:
        source: The checkpoint.
        shapes: The tensors the model takes.
        harmless: Regular expressions of tensors that may be there besides.
        others: Tensors of the checkpoint that something else takes.

    Raises:
        WeightMismatchError: Tensors are missing, surplus or of another shape; all are named.
    """
    stored = source.names
    problems = [f"missing {name} {shapes[name]}" for name in shapes if name not in stored]
    for name in sorted(stored - others):
        got = source.entry(name).shape
        if name in shapes and got != shapes[name]:
            problems.append(f"{name} must have shape {shapes[name]}; got {got}")
        elif name not in shapes and not any(re.fullmatch(p, name) for p in harmless):
            problems.append(f"surplus {name} {got}")
    if problems:
        more = f" and {len(problems) - MAX_NAMED} more" if len(problems) > MAX_NAMED else ""
        raise WeightMismatchError(
            f"[load] the tensors in {source.path} must be those of its configuration; got "
            f"{'; '.join(problems[:MAX_NAMED])}{more}. Check that both belong together."
        )
    ignored = sorted(stored - set(shapes) - others)
    if ignored:
        log.info("%s: %d tensors are not needed: %s ...", source.path, len(ignored), ignored[0])
