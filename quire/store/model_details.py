"""Details of a model from its files, without loading it: its shape, its type, its template."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from quire.checkpoints.config_fields import read_json
from quire.checkpoints.file_state import FileState, file_states
from quire.checkpoints.gguf.gguf_mix import MIXES
from quire.core.errors import ModelLoadError

log = logging.getLogger(__name__)

#: ``general.file_type`` of GGUF files by what people call it.
FILE_TYPES = {code: name for name, (_, code) in MIXES.items()}
_CONTEXT = ("max_position_embeddings", "n_positions")
_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclass(frozen=True, slots=True)
class ModelDetails:
    """Details of a model, for users.

    Attributes:
        architecture: Name of the architecture in the files: ``llama``, or ``LlamaForCausalLM``.
        parameters: Number of parameters; 0 if unknown.
        quantization: ``Q4_K_M``, ``BF16``; empty if unknown.
        context: Longest context it was made for, in tokens; 0 if unknown.
        layers, embedding: Decoder layers and the hidden size; 0 if unknown.
        licence: Name of the licence in the files; empty if they do not give one.
    """

    architecture: str = ""
    parameters: int = 0
    quantization: str = ""
    context: int = 0
    layers: int = 0
    embedding: int = 0
    licence: str = ""


def read_details(path: Path) -> ModelDetails:
    """Return the details of a model from its files, supported or not.

    Args:
        path: A folder of safetensors or a GGUF file.

    Raises:
        ModelLoadError: The files cannot be read.
    """
    return _of_gguf(path) if path.is_file() else _of_folder(path)


def known_details(path: Path | None) -> ModelDetails:
    """Return :func:`read_details`, or nothing known where files are missing or cannot be read.

    Files that have not changed are not read again.
    """
    if path is None:
        return ModelDetails()
    files = (path,) if path.is_file() else (path / "config.json", *path.glob("model*.safetensors"))
    return _known(path, file_states(files))


@lru_cache(256)
def _known(path: Path, states: tuple[FileState, ...]) -> ModelDetails:
    try:
        return read_details(path)
    except ModelLoadError as error:  # loading it will say so, too
        log.debug("%s", error)
        return ModelDetails()


def _of_gguf(path: Path) -> ModelDetails:
    from quire.checkpoints.gguf.gguf_file import forget_gguf, open_gguf

    file = open_gguf(path)
    forget_gguf()  # its vocabulary is large
    keys = file.metadata
    architecture = str(keys.get("general.architecture", ""))
    sizes: Counter[str] = Counter()
    for tensor in file.tensors.values():
        sizes[tensor.layout.name] += tensor.nbytes
    commonest = sizes.most_common(1)[0][0] if sizes else ""

    def number(key: str) -> int:
        value = keys.get(f"{architecture}.{key}", 0)
        return value if isinstance(value, int) else 0

    return ModelDetails(
        architecture,
        sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
        FILE_TYPES.get(keys.get("general.file_type", -1), commonest),
        number("context_length"),
        number("block_count"),
        number("embedding_length"),
        str(keys.get("general.license", "")),
    )


def _of_folder(folder: Path) -> ModelDetails:
    from quire.checkpoints.safetensors_file import SafetensorsFile

    config = _optional_json(folder / "config.json")
    count, types = 0, Counter[str]()
    for path in sorted(folder.glob("model*.safetensors")):
        for entry in SafetensorsFile(path).entries.values():
            count += math.prod(entry.shape)
            types[entry.dtype] += entry.nbytes
    names = config.get("architectures")
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "")
    stored = types.most_common(1)[0][0] if types else _DTYPES.get(dtype, dtype)
    return ModelDetails(
        str(names[0]) if isinstance(names, list) and names else "",
        count,
        stored,
        next((n for key in _CONTEXT if (n := _integer(config, key))), 0),
        _integer(config, "num_hidden_layers") or _integer(config, "n_layer"),
        _integer(config, "hidden_size") or _integer(config, "n_embd"),
    )


def _integer(values: Mapping[str, Any], key: str) -> int:
    value = values.get(key)
    return value if isinstance(value, int) else 0


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}
