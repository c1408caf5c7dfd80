"""Divides a checkpoint: tensors of each rank, for :mod:`quire.checkpoints.rank_files` to read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from quire.checkpoints.quantized.quantized_checkpoint import MatrixEntry
from quire.checkpoints.rank_files import (
    DESCRIPTION,
    INDEX,
    VERSION,
    RankFolder,
    RankIndex,
    rank_file,
)
from quire.checkpoints.safetensors_file import DTYPES
from quire.checkpoints.safetensors_writer import NAMES, TensorData, tensor_data, write_safetensors
from quire.checkpoints.stored_parts import Parts, take_apart
from quire.checkpoints.tensor_source import TensorSource
from quire.core.errors import ConfigError
from quire.kernels.matrices.host_tensor import HostTensor
from quire.kernels.matrices.quantized_tensor import QuantizedForm
from quire.layers.parallel.expert_placement import ExpertDivision
from quire.models.arranged_tensors import arrange
from quire.models.loader import open_checkpoint
from quire.models.opened_checkpoint import OpenedCheckpoint
from quire.models.shards.cuts import find_cuts
from quire.models.shards.share_weights import ShareWeights, own_parts
from quire.models.shards.shares import find_shares
from quire.quantization.quantization_plan import QuantizationPlan
from quire.settings.parallel_layout import ParallelLayout

#: Types of floats as files name them.
FILE_DTYPES = {ours: theirs for theirs, ours in DTYPES.items()}


def write_ranks(
    source: Path,
    out: Path,
    layout: ParallelLayout,
    whole_experts: bool,
    on_progress: Callable[[int, int], None],
) -> list[int]:
    """Write a file for each rank, and the index last.

    Outputs are divided, as exact sums want them.

    Args:
        source: A folder of safetensors.
        out: An existing folder.
        layout: Layout of the ranks.
        whole_experts: Whether a rank has some experts, not a part of each.
        on_progress: Function called with tensors written and tensors in all.

    Returns:
        Bytes of each file.

    Raises:
        ConfigError: The model cannot be divided that far, or reads pictures.
        ModelLoadError: The checkpoint cannot be read.
        OSError: No room, or no permission.
    """
    opened = open_checkpoint(source, "auto", None)
    _check(opened)
    ranks = list(_ranks(opened, layout, ExpertDivision(whole_experts)))
    (out / INDEX).unlink(missing_ok=True)  # one from before is not of files that replace its own
    done, total = 0, sum(len(names) for _, names in ranks)
    nbytes: list[int] = []
    sizes: dict[str, int] = {}
    for stage in range(layout.pipeline):
        own: dict[str, int] = {}
        for rank in layout.stage_ranks(stage):
            tensors, names = ranks[rank]
            path = out / rank_file(rank, layout.size)
            for _ in write_safetensors(path, _file_tensors(tensors, names, own)):
                pass
            done += len(names)
            on_progress(done, total)
            nbytes.append(path.stat().st_size)
        sizes = own | sizes  # of a tied matrix, which two stages have, those of one
    index = _index(opened, layout, whole_experts, sizes)
    (out / INDEX).write_bytes(msgspec.json.encode(index))
    return nbytes


def _ranks(
    opened: OpenedCheckpoint, layout: ParallelLayout, division: ExpertDivision
) -> Iterator[tuple[TensorSource, list[str]]]:
    """Yield what each rank takes of a checkpoint, and the names of its tensors."""
    size, whole = layout.tensor, opened.weights
    cuts = find_cuts(opened.tensors, whole, QuantizationPlan(), size, exact=True)
    shares = find_shares(opened.config, size, cuts.unit, division) if size > 1 else []
    for layers in layout.stage_layers(opened.config.num_layers):
        stage = whole.of_layers(layers)
        if not shares:
            yield arrange(opened.tensors, whole), sorted(stage.shapes())
        for share in shares:
            weights = ShareWeights(stage, share, cuts)
            picks = own_parts(weights, cuts).picks
            yield arrange(opened.tensors, whole, picks), sorted(weights.shapes())


def _check(opened: OpenedCheckpoint) -> None:
    if opened.path.is_file() or isinstance(opened.tensors, RankFolder):
        raise ConfigError(
            f"[convert] MODEL must be a folder of safetensors to be divided; got {opened.path}."
        )
    if opened.config.vision is not None:
        raise ConfigError(
            f"[convert] a model that reads pictures is divided when it is loaded; got "
            f"{opened.path}. Give the division to quire serve alone."
        )


def _file_tensors(
    tensors: TensorSource, names: list[str], sizes: dict[str, int]
) -> dict[str, TensorData]:
    """Return a file's tensors, whose elements are read again when they are written."""
    described: dict[str, Any] = {}
    found: dict[str, TensorData] = {}

    @lru_cache(maxsize=1)
    def parts_of(name: str) -> Parts:
        return take_apart(tensors.tensor(name))[1]

    def read(name: str, part: str) -> np.ndarray:
        return np.ascontiguousarray(parts_of(name)[part])

    for name in names:
        tensor = tensors.tensor(name)
        described[name], arrays = take_apart(tensor)
        for part, array in arrays.items():
            dtype = NAMES[str(array.dtype)]
            if isinstance(tensor, HostTensor):
                dtype = FILE_DTYPES[tensor.dtype]
            found[f"{name}/{part}"] = TensorData(
                dtype,
                array.shape,
                partial(read, name, part),
                partial(tensors.release, name),
            )
            sizes[name] = sizes.get(name, 0) + array.nbytes
        tensors.release(name)
    text = json.dumps(described, default=lambda number: number.item()).encode()
    return found | {DESCRIPTION: tensor_data(np.frombuffer(text, np.uint8))}


def _index(
    opened: OpenedCheckpoint, layout: ParallelLayout, whole_experts: bool, sizes: dict[str, int]
) -> RankIndex:
    stages = layout.stage_layers(opened.config.num_layers)
    forms: list[QuantizedForm] = []
    tensors: dict[str, tuple[tuple[int, ...], int, int | None]] = {}
    for name, shape in opened.weights.shapes().items():
        entry, number = opened.tensors.entry(name), None
        if isinstance(entry, MatrixEntry):
            if entry.form not in forms:
                forms.append(entry.form)
            number = forms.index(entry.form)
        tensors[name] = shape, sizes[name], number
    return RankIndex(
        version=VERSION,
        tensor_parallel_size=layout.tensor,
        has_experts=opened.config.moe is not None,
        splits_experts=not whole_experts,
        names=opened.weights.names,
        forms=forms,
        tensors=tensors,
        stage_layers=() if layout.pipeline == 1 else tuple(map(len, stages)),
    )


def rank_files_of(size: int) -> Iterator[str]:
    """Yield the names of what :func:`write_ranks` writes."""
    yield from (rank_file(rank, size) for rank in range(size))
    yield INDEX
