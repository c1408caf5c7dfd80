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

from quire.core.errors import ModelLoadError, WeightMismatchError
from quire.core.model_config import ModelConfig
from quire.kernels.quantized_tensor import QuantizedForm
from quire.models.config_fields import read_json
from quire.models.matrix_rows import Tensor
from quire.models.safetensors_file import SafetensorsFile
from quire.models.shards.stored_parts import part_names, put_together
from quire.models.weight_names import WeightNames

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
        shape: Of the whole.
        nbytes: In the files, of all ranks.
        form: How a quantized matrix is held; None for floats.
    """

    shape: tuple[int, ...]
    nbytes: int
    form: QuantizedForm | None


class RankFolder:
    """The tensors of all ranks; see :class:`quire.models.tensor_source.TensorSource`.

    Which are there is known of all, what they hold of one rank: see :meth:`of_rank`.

    Args:
        folder: Holds the index and the files.

    Raises:
        ModelLoadError: The index is damaged or of another version.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder
        index = read_json(folder / INDEX)
        if index.get("version") != VERSION:
            raise ModelLoadError(
                f"[load] {folder / INDEX} must be of version {VERSION}; got "
                f"{index.get('version')!r:.80}. Convert the checkpoint again."
            )
        try:
            self.size = int(index["tensor_parallel_size"])
            self.has_experts = bool(index["has_experts"])
            self.splits_experts = bool(index["splits_experts"])
            self._names = msgspec.convert(index["names"], WeightNames)
            forms = msgspec.convert(index["forms"], list[QuantizedForm])
            self._entries: Mapping[str, RankEntry] = {
                name: RankEntry(tuple(shape), nbytes, None if form is None else forms[form])
                for name, (shape, nbytes, form) in index["tensors"].items()
            }
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise ModelLoadError(
                f"[load] {folder / INDEX} must describe files of ranks; got {error!r:.120}. "
                "Convert the checkpoint again."
            ) from None

    @property
    def names(self) -> set[str]:
        """Names of all tensors."""
        return set(self._entries)

    @property
    def is_arranged(self) -> bool:
        """Yes: rows were put in order when they were divided."""
        return True

    @property
    def mixes_types(self) -> bool:
        """No."""
        return False

    def weight_names(self, config: ModelConfig) -> WeightNames:
        """Return what the tensors are called."""
        return self._names

    def notices(self) -> list[str]:
        """Return how many ranks it is for."""
        return [f"tensors are divided over {self.size} ranks"]

    def entry(self, name: str) -> RankEntry:
        """Return shape and size of a tensor as all ranks have it."""
        return self._entries[name]

    def tensor(self, name: str) -> Tensor:
        """Refuse: a rank has a part."""
        raise self._refuse(1)

    def release(self, name: str) -> None:
        """Do nothing: nothing was read."""

    def of_rank(self, rank: int, size: int, splits_experts: bool) -> RankTensors:
        """Return the tensors of a rank.

        Args:
            rank, size: Which, of how many.
            splits_experts: Whether ranks have a part of each expert, if there are any.

        Raises:
            ModelLoadError: The files are for other ranks, or one is missing or damaged.
        """
        if size != self.size:
            raise self._refuse(size)
        if self.has_experts and splits_experts != self.splits_experts:
            has, asked = ("a part of each", "is") if self.splits_experts else ("whole", "is not")
            raise ModelLoadError(
                f"[load] {self.path} has experts divided so that a rank has {has} ones; got "
                f"--enable-expert-parallel that {asked} set. Change it, or convert again."
            )
        return RankTensors(self, rank)

    def _refuse(self, size: int) -> ModelLoadError:
        return ModelLoadError(
            f"[load] {self.path} is divided over {self.size} ranks, which --tensor-parallel-size "
            f"must be; got {size}. Give that number, or the checkpoint it was made of."
        )


class RankTensors:
    """The tensors of one rank.

    Args:
        whole: Of all ranks.
        rank: Which.
    """

    def __init__(self, whole: RankFolder, rank: int) -> None:
        self._whole, self._rank = whole, rank
        self._files: dict[int, SafetensorsFile] = {}
        self._described: dict[int, dict[str, Any]] = {}
        self._open(rank)

    @property
    def path(self) -> Path:
        """The folder."""
        return self._whole.path

    @property
    def names(self) -> set[str]:
        """Names of all tensors."""
        return self._whole.names

    @property
    def is_arranged(self) -> bool:
        """Yes."""
        return True

    @property
    def mixes_types(self) -> bool:
        """No."""
        return False

    def weight_names(self, config: ModelConfig) -> WeightNames:
        """Return what the tensors are called."""
        return self._whole.weight_names(config)

    def notices(self) -> list[str]:
        """Return what is said of all."""
        return self._whole.notices()

    def entry(self, name: str) -> RankEntry:
        """Return shape and size of a tensor as all ranks have it."""
        return self._whole.entry(name)

    def tensor(self, name: str) -> Tensor:
        """Return this rank's part, or a whole expert that another has.

        Raises:
            WeightMismatchError: No rank has it.
        """
        rank = self._holder(name)
        file, described = self._files[rank], self._described[rank][name]

        def read(part: str) -> np.ndarray:
            stored = f"{name}/{part}"
            dtype = file.entries[stored].dtype
            return file.tensor(stored).array if dtype == "BF16" else file.array(stored)

        try:
            made: Tensor = put_together(described, read)
        except (KeyError, TypeError, ValueError) as error:
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
        """Return a rank that has a tensor, this one first."""
        others = (rank for rank in range(self._whole.size) if rank != self._rank)
        for rank in (self._rank, *others):
            if name in self._open(rank):
                return rank
        raise WeightMismatchError(f"[load] {self.path}: {name} is in no rank's file.")

    def _open(self, rank: int) -> dict[str, Any]:
        if rank not in self._files:
            file = SafetensorsFile(self.path / rank_file(rank, self._whole.size))
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
