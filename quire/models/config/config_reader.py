"""A checkpoint's configuration to :class:`ModelConfig`: all checked, nothing ignored silently."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from quire.checkpoints.config_fields import ConfigFields, read_json
from quire.checkpoints.file_state import FileState, file_states
from quire.checkpoints.gguf.gguf_file import open_gguf
from quire.checkpoints.quantized.quantization_config import KEYS, read_quantization
from quire.checkpoints.safetensors_file import DTYPES, SafetensorsFile
from quire.core.errors import ModelLoadError, UnsupportedArchitectureError
from quire.core.model.kv_cache_spec import DTYPE_BYTES
from quire.core.model.model_config import ModelConfig
from quire.models.config.nearest_family import refuse_architecture
from quire.models.config.registry import FAMILIES, known_architecture
from quire.models.config.sentence_modules import read_pooling
from quire.models.families.llama import read_architecture
from quire.models.gguf.gguf_config import read_gguf_config
from quire.models.vision.picture_shape import read_picture_shape

log = logging.getLogger(__name__)

#: In all layers: each has names of tensors, which are looked for. Published models have 25,000.
MOST_EXPERTS = 1 << 16


def read_model_config(folder: Path) -> ModelConfig:
    """Read the configuration of a checkpoint.

    Args:
        folder: Folder with a ``config.json`` of any version of transformers; or a GGUF file.

    Raises:
        UnsupportedArchitectureError: An architecture, or an option that changes the output, is not
            implemented.
        ModelLoadError: The file is missing or broken, or a field is missing or out of range.
    """
    if folder.is_file():
        file = open_gguf(folder)
        in_blocks = any(tensor.layout.block_size > 1 for tensor in file.tensors.values())
        return replace(read_gguf_config(file), stored_quantization="gguf" if in_blocks else "")
    path = folder / "config.json"
    fields = ConfigFields(read_json(path), str(path))
    named = read_architecture(fields)
    architecture = known_architecture(named)
    if architecture is None:
        raise refuse_architecture(named, fields)
    config = FAMILIES[architecture].read_config(fields.changed({"architectures": [architecture]}))
    is_bare = architecture != named and named.endswith("Model")
    if is_bare and not config.tie_word_embeddings:
        config = replace(config, tie_word_embeddings=True, has_head=False)
    num_experts = config.num_layers * (config.moe.num_experts if config.moe else 0)
    if num_experts > MOST_EXPERTS:
        raise ModelLoadError(
            f"[load] {path} must have <= {MOST_EXPERTS} experts in all layers; got {num_experts}."
        )
    bos = _special_ids(fields, "bos_token_id")
    config = replace(
        config,
        dtype=_read_dtype(fields, folder),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=_special_ids(fields, "eos_token_id"),
    )
    if config.vision is not None:
        shape = read_picture_shape(folder, config.vision)
        config = replace(config, vision=replace(config.vision, input=shape))
    config = replace(config, pooling=read_pooling(folder) or config.pooling)
    for name in KEYS:
        fields.has(name)
    quantization = read_quantization(folder)
    fields.refuse_unread()
    if quantization is not None:
        config = replace(config, stored_quantization=quantization.method)
    return config


def read_generating_config(folder: Path) -> ModelConfig:
    """Return :func:`read_model_config` of a model that has an output head.

    Raises:
        UnsupportedArchitectureError: The model has none; also what :func:`read_model_config` says.
    """
    config = read_model_config(folder)
    if not config.generates:
        raise UnsupportedArchitectureError(
            f"[load] {folder} must be a model that generates text; got {config.architecture}, "
            "which can be served and asked for vectors, scores or classes."
        )
    return config


def _special_ids(fields: ConfigFields, name: str) -> tuple[int, ...]:
    """Return ids of the model, which one that reads pictures may have with its decoder's fields."""
    text = fields.object("text_config")
    return fields.token_ids(name) or (() if text is None else text.token_ids(name))


def supported_config(path: Path) -> ModelConfig | None:
    """Return :func:`read_model_config`, or None where it raises.

    Files that have not changed are not read again.

    Args:
        path: Path of a folder or GGUF file.
    """
    return _supported(path, file_states((path, path / "config.json")))


@lru_cache(256)
def _supported(path: Path, states: tuple[FileState, ...]) -> ModelConfig | None:
    try:
        return read_model_config(path)
    except ModelLoadError as error:
        log.debug("%s", error)
        return None


def _read_dtype(fields: ConfigFields, folder: Path) -> str:
    name = "dtype" if fields.has("dtype") else "torch_dtype"
    if not fields.has(name):
        return _stored_dtype(folder)
    dtype = fields.text(name).removeprefix("torch.")
    if dtype not in DTYPE_BYTES:
        raise fields.error(name, f"must be one of {', '.join(DTYPE_BYTES)}")
    return dtype


def _stored_dtype(folder: Path) -> str:
    """Return the type of the first tensor that has one we can load."""
    for path in sorted(folder.glob("model*.safetensors"))[:1]:
        for entry in SafetensorsFile(path).entries.values():
            if entry.dtype in DTYPES:
                return DTYPES[entry.dtype]
    return "auto"
