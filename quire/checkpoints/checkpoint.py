"""The tensors of a checkpoint folder, in one file or several; not what they mean."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from copy import copy
from pathlib import Path

import numpy as np

from quire.checkpoints.config_fields import read_json
from quire.checkpoints.expert_share import ExpertShare
from quire.checkpoints.safetensors_file import SafetensorsFile, TensorEntry
from quire.checkpoints.weight_names import WeightNames
from quire.core.errors import ModelLoadError, WeightMismatchError
from quire.core.model.model_config import ModelConfig
from quire.kernels.matrices.host_tensor import HostTensor
from quire.system.regular_files import TABLE_BYTES

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
AUTO_GPTQ = "gptq_model*.safetensors"
log = logging.getLogger(__name__)

#: Files named in one error message.
MAX_NAMED = 8


class Checkpoint:
    """All tensors of a folder by name.

    Args:
        folder: Folder with ``model.safetensors``, or shards and ``model.safetensors.index.json``,
            or the one file that AutoGPTQ names for bits and group.

    Attributes:
        path: The folder.
        names: Names of all tensors.
        files: The file of each tensor that is stored.

    Raises:
        ModelLoadError: The folder has no weights, or only pickled ones; a file is damaged; or one
            tensor is in two files.
    """

    #: Rows are as the family stores them.
    is_arranged = False
    #: All matrices have the type of the configuration, or are rounded to it.
    mixes_types = False

    def __init__(self, folder: Path) -> None:
        self.path = folder
        single = _single_file(folder)
        if single is not None:
            file = SafetensorsFile(single)
            self.files = dict.fromkeys(file.entries, file)
        elif (folder / INDEX).exists():
            self.files = _open_shards(folder)
        else:
            raise _no_weights(folder)
        self._shares: Mapping[str, ExpertShare] = {}
        self.names = set(self.files)

    def with_shares(self, shares: Mapping[str, ExpertShare]) -> Checkpoint:
        """Return the checkpoint with shares of some tensors in place of these, by name."""
        made = copy(self)
        made._shares = shares
        made.names = self.names - {share.stored for share in shares.values()} | set(shares)
        return made

    def weight_names(self, config: ModelConfig, family: WeightNames) -> WeightNames:
        """Return what the tensors are called: some checkpoints leave the family's prefix out."""
        bare = family.without_prefix()
        return bare if f"{bare.embedding}.weight" in self.files else family

    def notices(self) -> list[str]:
        """Return nothing: tensors are stored as they are held, or rounded from it."""
        return []

    def entry(self, name: str) -> TensorEntry | ExpertShare:
        """Return type, shape and size of a tensor."""
        return self._shares.get(name) or self.files[name].entries[name]

    def tensor(self, name: str) -> HostTensor:
        """Return a tensor of floats; its pages stay resident until :meth:`release`."""
        share = self._shares.get(name)
        if share is None:
            return self.files[name].tensor(name)
        whole = self.files[share.stored].tensor(share.stored)
        return HostTensor(name, whole.dtype, share.of(whole.array))

    def array(self, name: str) -> np.ndarray:
        """Return the elements of a tensor as they are, bfloat16 as float32."""
        share = self._shares.get(name)
        if share is None:
            return self.files[name].array(name)
        return share.of(self.files[share.stored].array(share.stored))

    def release(self, name: str) -> None:
        """Give the pages of a tensor back."""
        share = self._shares.get(name)
        stored = name if share is None else share.stored
        self.files[stored].release(stored)


def _single_file(folder: Path) -> Path | None:
    if (folder / SINGLE).exists():
        return folder / SINGLE
    found = [] if (folder / INDEX).exists() else sorted(folder.glob(AUTO_GPTQ))
    return found[0] if len(found) == 1 else None


def _open_shards(folder: Path) -> dict[str, SafetensorsFile]:
    """Return the file of each tensor of the shards, whether the index lists it or not."""
    index = folder / INDEX
    weight_map = read_json(index, TABLE_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelLoadError(f"[load] {index} must hold a weight_map; got {weight_map!r:.80}.")
    opened: dict[str, SafetensorsFile] = {}
    for name, file_name in weight_map.items():
        # A shard is a file of this folder: an index must not point out of it.
        if not isinstance(file_name, str) or Path(file_name).name != file_name:
            raise ModelLoadError(
                f"[load] {index}: {name} must name a file of the folder; got {file_name!r:.80}."
            )
        if file_name not in opened:
            opened[file_name] = SafetensorsFile(folder / file_name)
    files: dict[str, SafetensorsFile] = {}
    for file_name, file in opened.items():
        for name in file.entries:
            if name in files and weight_map.get(name) not in (file_name, files[name].path.name):
                raise WeightMismatchError(
                    f"[load] {file.path} and {files[name].path} hold {name}; {INDEX} says "
                    f"{weight_map.get(name)}."
                )
            if name not in files or weight_map.get(name) == file_name:
                files[name] = file
    unstored = sorted(set(weight_map) - set(files))
    if unstored:
        log.info("%s lists %d tensors that no file has: %s ...", index, len(unstored), unstored[0])
    return files


def refuse_pickles(folder: Path) -> None:
    """Refuse a folder whose weights are pickles alone; one without weights may get some yet.

    Raises:
        ModelLoadError: The weights are pickles alone.
    """
    if _pickles(folder) and _single_file(folder) is None and not (folder / INDEX).exists():
        raise _no_weights(folder)


def _pickles(folder: Path) -> list[str]:
    return [path.name for end in ("*.bin", "*.pt*") for path in sorted(folder.glob(end))]


def _no_weights(folder: Path) -> ModelLoadError:
    pickles = _pickles(folder)
    if pickles:
        return ModelLoadError(
            f"[load] weights must be safetensors; got {pickles[0]} in {folder}. It is a pickle, "
            "which can run code when it is read, and is refused. Convert it to safetensors."
        )
    found = ", ".join(sorted(p.name for p in folder.iterdir())[:MAX_NAMED]) or "nothing"
    return ModelLoadError(f"[load] {folder} must hold {SINGLE} or {INDEX}; got {found}.")
