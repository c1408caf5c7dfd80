"""A checkpoint folder as metadata and tensors of a GGUF file, all but the tokenizer."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from quire.checkpoints.checkpoint import Checkpoint
from quire.checkpoints.gguf.gguf_layouts import LAYOUTS
from quire.checkpoints.gguf.gguf_mix import Mix
from quire.checkpoints.gguf.gguf_names import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS, gguf_family
from quire.checkpoints.gguf.gguf_writer import TensorPlan
from quire.checkpoints.gguf.importance_matrix import ImportanceMatrix
from quire.checkpoints.quantized.quantization_config import read_quantization
from quire.checkpoints.split_experts import split_experts
from quire.checkpoints.tensor_source import check_tensors
from quire.core.errors import ConfigError, ModelLoadError
from quire.kernels.matrices.block_matrix import CHUNK
from quire.kernels.matrices.host_tensor import HostTensor
from quire.layers.rope import inverse_frequencies
from quire.models.arranged_tensors import arrange
from quire.models.config.config_reader import read_model_config
from quire.models.family_tensors import family_names, map_weights
from quire.models.gguf.gguf_metadata import PlannedFile, check_file_says, model_metadata
from quire.models.gguf.gguf_places import GgufPlace, file_config, find_places
from quire.quantization.producers.gguf.gguf_quantize import quantize_rows

log = logging.getLogger(__name__)

#: A tensor of ours, and its place.
_Source = tuple[str, GgufPlace]

QUANTIZATION_VERSION = 2
HALF_MAX = 65504.0
#: Magnitudes whose scale is a finite float16; of other types those that are float16 themselves.
LARGEST = {"Q8_0": 127 * HALF_MAX, "Q4_0": 8 * HALF_MAX, "F32": math.inf, "BF16": math.inf}

#: Small, and read as float32 by llama.cpp.
_KEPT_FLOAT = re.compile(
    r"blk\.\d+\.(ffn_gate_inp(_shexp)?\.weight|ffn_(gate|up|down)_exps\.bias)|position_embd\.weight"
)


class GgufExport:
    """Contents of a GGUF file of a checkpoint.

    Args:
        folder: Checkpoint folder in Hugging Face's layout.
        type_name: One of :data:`quire.checkpoints.gguf.gguf_mix.MIXES`. Vectors are F32; matrices
            whose rows are not a whole number of blocks have another type, as in llama.cpp.
        pure: Whether all matrices have the type of most.
        importance: Weights of the errors of each input; None where all count alike.
        threads: Number of threads that search for codes.

    Attributes:
        config: Configuration of the checkpoint.
        metadata: All metadata but the tokenizer's.
        tensors: Tensors in the order of the file.

    Raises:
        ModelLoadError: The checkpoint is damaged, or has a property that a GGUF file cannot state.
        ConfigError: The checkpoint is quantized, or the type needs the importance of every matrix
            and that of one is missing.
    """

    def __init__(
        self,
        folder: Path,
        type_name: str,
        *,
        pure: bool = False,
        importance: ImportanceMatrix | None = None,
        threads: int = 1,
    ) -> None:
        config = read_model_config(folder)
        if read_quantization(folder) is not None:
            raise ConfigError(
                f"[convert] MODEL must hold floats; got {folder}, which is quantized. Convert the "
                "checkpoint that it was made of."
            )
        if config.pooler and config.classifier is None:
            log.warning("The pooler is left out: a GGUF file has one where it has classes.")
            config = replace(config, pooler=False)
        self.config = config
        self._checkpoint = split_experts(Checkpoint(folder), config, family_names(config))
        self._family = gguf_family(config.architecture)
        self._mix = Mix(type_name, config, pure, importance is not None)
        self._importance, self._threads = importance, threads
        self.metadata: dict[str, Any] = {
            "general.architecture": self._family.architecture,
            "general.type": "model",
            "general.name": folder.resolve().name,
            "general.file_type": self._mix.file_type,
        }
        if LAYOUTS[self._mix.main].is_quantized:
            self.metadata["general.quantization_version"] = QUANTIZATION_VERSION
        if config.token_types:
            self.metadata["tokenizer.ggml.token_type_count"] = config.token_types
        options = model_metadata(config, folder)
        self.metadata |= {f"{self._family.architecture}.{key}": v for key, v in options.items()}
        self.tensors = self._plans()
        check_file_says(file_config(config), PlannedFile(folder, self.metadata, self.tensors))

    def _plans(self) -> list[TensorPlan]:
        """Give each tensor of the file those of ours that it holds."""
        config = self.config
        weights = map_weights(self._checkpoint, config)
        names, ours = weights.names, weights.shapes()
        tied = (re.escape(f"{names.head}.weight"),) if config.tie_word_embeddings else ()
        pooler = (rf"{re.escape(names.pooler)}\.(weight|bias)",) if names.pooler else ()
        check_tensors(self._checkpoint, ours, (*names.harmless, *tied, *pooler))
        self._arranged = arrange(self._checkpoint, weights)
        sources: dict[str, list[_Source]] = {}
        for name, place in find_places(config, ours):
            sources.setdefault(place.name, []).append((name, place))
        plans = [self._plan(name, parts) for name, parts in sources.items()]
        return plans + self._factor_plans()

    def _plan(self, name: str, sources: list[_Source]) -> TensorPlan:
        shape = sources[0][1].shape
        if len(shape) == 1 or _KEPT_FLOAT.fullmatch(name):
            type_name = "F32"
        else:
            type_name = self._mix.type_of(name, shape[-1])
            if shape[-1] % LAYOUTS[self._mix.main].block_size:
                log.warning(
                    "%s: rows of %d are no whole number of %s blocks; written as %s",
                    name, shape[-1], self._mix.main, type_name,
                )  # fmt: skip
        counts: list[np.ndarray | None] = [None] * len(sources)
        if self._importance is not None and LAYOUTS[type_name].is_quantized:
            counts = self._importance.of_tensor(name, len(sources), shape[-1])
        if counts[0] is None and len(shape) > 1 and self._mix.needs_importance(name, shape[-1]):
            raise ConfigError(
                f"[convert] --imatrix must say how much errors of {name} count for {type_name}; "
                "got nothing. Make one with quire imatrix, or take iq3_s, q2_k or more bits."
            )
        return TensorPlan(
            name, LAYOUTS[type_name], shape, partial(self._chunks, type_name, sources, counts)
        )

    def _chunks(
        self, type_name: str, sources: list[_Source], importance: list[np.ndarray | None]
    ) -> Iterator[bytes]:
        largest = LARGEST.get(type_name, HALF_MAX)
        for (source, place), counts in zip(sources, importance, strict=True):
            tensor = self._arranged.tensor(source)
            assert isinstance(tensor, HostTensor)
            array = tensor.array if place.order is None else tensor.array[place.order]
            if place.transposed:
                parts = array.reshape(place.transposed, -1, array.shape[1]).swapaxes(1, 2)
                array = parts.reshape(-1, parts.shape[2])
            rows = array if array.ndim > 1 else array[None]
            step = max(1, CHUNK // rows.shape[1])
            for begin in range(0, len(rows), step):
                part = np.ascontiguousarray(rows[begin : begin + step])
                values = HostTensor(source, tensor.dtype, part).float32()
                # Not greater: NaN is neither.
                if largest < math.inf and not np.abs(values).max() <= largest:
                    raise ModelLoadError(
                        f"[convert] {source} must fit the float16 of {type_name}; got "
                        f"{np.abs(values).max():g}. Use --type bf16 or f32."
                    )
                yield quantize_rows(type_name, values, counts, self._threads).tobytes()
            self._arranged.release(source)

    def _factor_plans(self) -> list[TensorPlan]:
        """Return the tensors of factors that the frequencies of positions are divided by."""
        rope = self.config.rope
        kind = rope.scaling["rope_type"] if rope is not None and rope.scaling is not None else ""
        if rope is None or rope.scaling is None or kind not in ("llama3", "longrope"):
            return []
        if kind == "longrope":
            long, short = (rope.scaling[f"{name}_factor"] for name in ("long", "short"))
            factors = {LONG_FACTORS: np.array(long), SHORT_FACTORS: np.array(short)}
        else:
            plain = type(rope)(theta=rope.theta, rotary_dim=rope.rotary_dim)
            scaled, _ = inverse_frequencies(rope, 1)
            factors = {ROPE_FACTORS: inverse_frequencies(plain, 1)[0] / scaled}
        return [
            TensorPlan(name, LAYOUTS["F32"], row.shape, partial(_bytes_of, row.astype(np.float32)))
            for name, row in factors.items()
        ]


def _bytes_of(row: np.ndarray) -> Iterator[bytes]:
    yield row.tobytes()


def tensor_names(folder: Path) -> dict[str, list[str]]:
    """Return which tensors of a checkpoint a GGUF file's tensors hold: one, or one per expert."""
    config = read_model_config(folder)
    found: dict[str, list[str]] = {}
    names = map_weights(
        split_experts(Checkpoint(folder), config, family_names(config)), config
    ).shapes()
    for name, place in find_places(config, names):
        found.setdefault(place.name, []).append(name)
    return found
