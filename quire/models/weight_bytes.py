"""How much memory weights will take, known before any is read."""

from __future__ import annotations

import math
from pathlib import Path

from quire.core.kv_cache_spec import DTYPE_BYTES
from quire.core.model_config import ModelConfig
from quire.layers.rope import rope_table_bytes
from quire.models.gguf_file import open_gguf
from quire.models.registry import get_family
from quire.models.weight_map import WeightMap
from quire.quantization.gguf_types import FORMS
from quire.quantization.plan import QuantizationPlan


def expected_weight_bytes(
    path: Path, config: ModelConfig, dtype: str, plan: QuantizationPlan, max_model_len: int
) -> int:
    """Return what weights and RoPE tables will take, padding left out.

    Args:
        path: The checkpoint, a folder or a GGUF file.
        config: Read from it.
        dtype: Type its floats will be held in.
        plan: What is quantized at load.
        max_model_len: Positions of the tables.
    """
    tables = rope_table_bytes(config.rope, max_model_len) if config.rope else 0
    if path.is_file() and plan.layers is None:
        return tables + _gguf_bytes(path, config, dtype)
    weight_map = WeightMap(config, get_family(config.architecture).names)
    shapes, dtype_bytes = weight_map.shapes(), DTYPE_BYTES[dtype]
    positions = weight_map.positions() if config.learned_positions else None
    return tables + sum(
        plan.matrix_bytes(
            name.removesuffix(".weight"), shape, shape[0] == config.vocab_size, dtype_bytes
        )
        if len(shape) == 2 and name != positions
        else 4 * math.prod(shape)  # norms, biases and learned positions are held in float32
        for name, shape in shapes.items()
    )


def _gguf_bytes(path: Path, config: ModelConfig, dtype: str) -> int:
    """Count floats as stored, or as ``dtype`` where another than the file's was asked for."""
    total = 0
    for tensor in open_gguf(path).tensors.values():
        count, columns = math.prod(tensor.shape), tensor.shape[-1]
        if tensor.layout.is_quantized:
            total += FORMS[tensor.layout.name].matrix_bytes(count // columns, columns)
        elif len(tensor.shape) == 1:
            total += 4 * count
        else:
            total += tensor.nbytes if dtype == config.dtype else count * DTYPE_BYTES[dtype]
    return total
