"""A checkpoint that is divided already: a file of tensors for each rank, and an index.

Written by :mod:`quire.models.shards.rank_writer`. A rank maps its own file; experts that move to it
later are read from the file of a rank that has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from quire.checkpoints.config_fields import read_json
from quire.checkpoints.matrix_rows import Tensor
from quire.checkpoints.safetensors_file import SafetensorsFile
from quire.checkpoints.stored_parts import part_names, put_together
from quire.checkpoints.weight_names import WeightNames
from quire.core.built_types import built
from quire.core.errors import ModelLoadError, WeightMismatchError
from quire.core.model.model_config import ModelConfig
from quire.core.plurals import counted
from quire.kernels.matrices.host_tensor import NUMPY_DTYPES, HostTensor
from quire.kernels.matrices.quantized_tensor import QuantizedForm
from quire.settings.parallel_layout import ParallelLayout

INDEX = "ranks.json"
#: Changes when files written before cannot be read any more.
VERSION = 1
#: The tensor that describes the others of a file, as JSON.
DESCRIPTION = "quire"


def rank_file(rank: int, size: int) -> str:
    """Return the name of a rank's file."""
    return f"rank-{rank:02}-of-{size:02}.safetensors"


@dataclass(frozen=True, slots=True)
class RankEntry:
    """A tensor of all ranks.

    Attributes:
        shape: Shape of the whole tensor.
        nbytes: Bytes in the files of all ranks.
        form: Form that a quantized matrix is held in; None for floats.
    """

    shape: tuple[int, ...]
    nbytes: int
    form: QuantizedForm | None


@dataclass(frozen=True, slots=True)
class RankIndex:
    """Index of all files of a folder.

    Attributes:
        version: :data:`VERSION`.
        tensor_parallel_size: Shards of each layer.
        has_experts: Whether the model is a mixture of experts.
        splits_experts: Whether ranks have a part of each expert, instead of whole ones.
        names: Names of the tensors.
        forms: Forms that quantized matrices are held in, each once.
        tensors: Shape of the whole, bytes of all ranks and index of its form, by tensor.
        stage_layers: Layers of each stage; empty where there is one stage.
    """

    version: int
    tensor_parallel_size: int
    has_experts: bool
    splits_experts: bool
    names: WeightNames
    forms: list[QuantizedForm]
    tensors: dict[str, tuple[tuple[int, ...], int, int | None]]
    stage_layers: tuple[int, ...] = ()

    @property
    def layout(self) -> ParallelLayout:
        """Layout of the ranks that the files are for."""
        counts = self.stage_layers
        return ParallelLayout(self.tensor_parallel_size, max(1, len(counts)), counts)

    def stage(self, layers: range) -> int | None:
        """Return the stage that has these layers; None if there is none."""
        if not self.stage_layers:
            return 0
        stages = self.layout.stage_layers(sum(self.stage_layers))
        return stages.index(layers) if layers in stages else None


class _Divided:
    """Common part of all ranks' tensors and of one rank's.

    Args:
        folder: Folder with the index and the files.
        index: The folder's index.
    """

    #: Rows were put in order when they were divided.
    is_arranged = True
    mixes_types = False

    def __init__(self, folder: Path, index: RankIndex) -> None:
        self.path, self._index = folder, index

    @property
    def names(self) -> set[str]:
        """Names of all tensors."""
        return set(self._index.tensors)

    def weight_names(self, config: ModelConfig, family: WeightNames) -> WeightNames:
        """Return the names of the tensors."""
        return self._index.names

    def notices(self) -> list[str]:
        """Return how many ranks it is for."""
        return [f"tensors are divided over {counted(self._index.layout.size, 'rank')}"]

    def entry(self, name: str) -> RankEntry:
        """Return shape and size of a tensor as all ranks have it."""
        shape, nbytes, form = self._index.tensors[name]
        return RankEntry(shape, nbytes, None if form is None else self._index.forms[form])


class RankFolder(_Divided):
    """The tensors of all ranks; see :class:`quire.checkpoints.tensor_source.TensorSource`.

    Names and shapes are those of all ranks; contents are read for one rank, see :meth:`of_rank`.

    Args:
        folder: Folder with the index and the files.

    Raises:
        ModelLoadError: The index is damaged or of another version.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, _read_index(folder / INDEX))

    def tensor(self, name: str) -> Tensor:
        """Refuse: a rank has a part."""
        raise self._refuse_shards(1)

    def release(self, name: str) -> None:
        """Do nothing: nothing was read."""

    def of_rank(
        self,
        layers: range,
        shapes: Mapping[str, tuple[int, ...]],
        *,
        rank: int = 0,
        size: int = 1,
        splits_experts: bool = True,
    ) -> RankTensors:
        """Return the tensors of a rank.

        Args:
            layers: Layers of the rank's stage.
            shapes: Shapes of its parts; a tensor without one must be whole.
            rank, size: Number of the shard, and of all shards.
            splits_experts: Whether ranks have a part of each expert, if there are any.

        Raises:
            ModelLoadError: The files are for other ranks, or one is missing or damaged.
        """
        index = self._index
        if size != index.tensor_parallel_size:
            raise self._refuse_shards(size)
        stage = index.stage(layers)
        if stage is None:
            raise self._refuse_layers(layers)
        if size > 1 and index.has_experts and splits_experts != index.splits_experts:
            has, asked = ("a part of each", "is") if index.splits_experts else ("whole", "is not")
            raise ModelLoadError(
                f"[load] {self.path} has experts divided so that a rank has {has} ones; got "
                f"--enable-expert-parallel that {asked} set. Change it, or convert again."
            )
        return RankTensors(self.path, index, index.layout.stage_ranks(stage)[rank], shapes)

    def _refuse_shards(self, size: int) -> ModelLoadError:
        shards, whole = self._index.tensor_parallel_size, self._index.layout.pipeline == 1
        parts = counted(shards, "rank" if whole else "shard")
        return ModelLoadError(
            f"[load] {self.path} is divided over {parts}, which --tensor-parallel-size must be; "
            f"got {size}. Give that number, or the checkpoint it was made of."
        )

    def _refuse_layers(self, layers: range) -> ModelLoadError:
        counts = ",".join(map(str, self._index.stage_layers))
        return ModelLoadError(
            f"[load] {self.path} is divided into stages of {counts} layers, which stages must have;"
            f" got one of layers {layers[0]} to {layers[-1]}. Give --pipeline-parallel-size "
            f"{len(self._index.stage_layers)} --stage-layers {counts}, or the checkpoint it was "
            "made of."
        )


class RankTensors(_Divided):
    """The tensors of one rank.

    Args:
        folder, index: The same as of all ranks.
        rank: Number of the rank.
        shapes: The same as in :meth:`RankFolder.of_rank`.
    """

    def __init__(
        self, folder: Path, index: RankIndex, rank: int, shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        super().__init__(folder, index)
        self._rank, self._shapes = rank, shapes
        self._files: dict[int, SafetensorsFile] = {}
        self._described: dict[int, dict[str, Any]] = {}
        self._open(rank)

    def tensor(self, name: str) -> Tensor:
        """Return this rank's part, or a whole expert that another has.

        Raises:
            WeightMismatchError: No rank has the tensor, or it is of another shape or type.
        """
        rank = self._holder(name)
        file, described = self._files[rank], self._described[rank][name]

        def read(part: str) -> np.ndarray:
            stored = f"{name}/{part}"
            dtype = file.entries[stored].dtype
            return file.tensor(stored).array if dtype == "BF16" else file.array(stored)

        try:
            made: Tensor = put_together(described, read)
            _check(made, self._shapes.get(name) or self.entry(name).shape)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise WeightMismatchError(
                f"[load] {file.path}: {name} must be a matrix that was divided; got {error!r:.120}."
                " Convert the checkpoint again."
            ) from None
        return made

    def release(self, name: str) -> None:
        """Give the pages of a tensor back."""
        for rank, described in self._described.items():
            if name in described:
                for part in part_names(described[name]):
                    self._files[rank].release(f"{name}/{part}")

    def _holder(self, name: str) -> int:
        """Return a rank of the stage that has a tensor, this one first."""
        layout = self._index.layout
        stage, _ = layout.place(self._rank)
        others = (rank for rank in layout.stage_ranks(stage) if rank != self._rank)
        for rank in (self._rank, *others):
            if name in self._open(rank):
                return rank
        raise WeightMismatchError(f"[load] {self.path}: {name} is in no rank's file.")

    def _open(self, rank: int) -> dict[str, Any]:
        if rank not in self._files:
            file = SafetensorsFile(self.path / rank_file(rank, self._index.layout.size))
            try:
                described = json.loads(file.array(DESCRIPTION).tobytes())
                if not isinstance(described, dict):
                    raise ValueError(DESCRIPTION)
            except (KeyError, ValueError) as error:
                raise ModelLoadError(
                    f"[load] {file.path} must describe its tensors; got {error!r:.80}. Convert the "
                    "checkpoint again."
                ) from None
            self._files[rank], self._described[rank] = file, described
        return self._described[rank]


def _read_index(path: Path) -> RankIndex:
    read = read_json(path)
    if read.get("version") != VERSION:
        raise ModelLoadError(
            f"[load] {path} must be of version {VERSION}; got {read.get('version')!r:.80}. Convert "
            "the checkpoint again."
        )
    try:
        index = msgspec.convert(read, built(RankIndex))
        numbers = [form for _, _, form in index.tensors.values() if form is not None]
        if any(form not in range(len(index.forms)) for form in numbers):
            raise ValueError("number of a form")
        if min([index.tensor_parallel_size, *index.stage_layers]) < 1:
            raise ValueError("number of shards or layers")
    except ValueError as error:
        raise ModelLoadError(
            f"[load] {path} must describe files of ranks; got {error!r:.120}. Convert the "
            "checkpoint again."
        ) from None
    return index


def _check(tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse what kernels would read as something that it is not."""
    if tensor.shape != shape:
        raise ValueError(f"{tensor.shape}, not {shape}")
    if isinstance(tensor, HostTensor) and tensor.array.dtype != NUMPY_DTYPES[tensor.dtype]:
        raise ValueError(f"{tensor.array.dtype}, not {tensor.dtype}")
