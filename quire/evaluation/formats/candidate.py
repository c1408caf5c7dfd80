"""A model that is compared: how it is loaded, and what its files and its weights in memory are."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quire.checkpoints.quantized.quantization_config import read_quantization
from quire.evaluation.formats.held_bits import held_bits
from quire.evaluation.local_model import LocalModel
from quire.kernels.packed_weights import PackedWeights
from quire.settings.config import EngineConfig
from quire.store.model_details import known_details


@dataclass(frozen=True, slots=True)
class ComparedModel:
    """One of the models.

    Attributes:
        label: Name in tables, different for each candidate.
        folder: A folder or a GGUF file.
        config: Settings by which the model is held and computed.
    """

    label: str
    folder: Path
    config: EngineConfig

    @property
    def is_rounded(self) -> bool:
        """Whether it is rounded at load, so that no file has its format."""
        return self.config.model.quantization is not None

    @property
    def file_bytes(self) -> int:
        """Bytes of the files with its weights."""
        if self.folder.is_file():
            return self.folder.stat().st_size
        return sum(path.stat().st_size for path in self.folder.glob("*.safetensors"))


def stored_format(candidate: ComparedModel) -> str:
    """Return the name of a model's format, as far as files and settings tell it."""
    if candidate.is_rounded:
        return f"{candidate.config.model.quantization}, rounded at load"
    if not candidate.folder.is_file():
        stored = read_quantization(candidate.folder)
        if stored is not None:
            return stored.method
    return known_details(candidate.folder).quantization or "floats"


def describe(candidate: ComparedModel, model: LocalModel) -> dict[str, Any]:
    """Return what a loaded model takes, and what computes it.

    Returns:
        ``format`` and ``held_as`` (of most weights of its layers); ``bits_per_weight`` and
        ``formula_bits`` of its layers' matrices, None where the device packs nothing; bytes of
        ``weights`` in memory and of its file, None where it is rounded at load; ``kernel``.
    """
    decoder = model.decoder
    tables = {id(part) for linear in (decoder.embedding, decoder.head) for part in linear.packed}
    layers = [part for part in decoder.held.packed if id(part) not in tables]
    bits, everything = held_bits(layers), held_bits(decoder.held.packed)
    commonest = _commonest(layers)
    return {
        "format": stored_format(candidate),
        "held_as": None if commonest is None else _held_as(commonest),
        "bits_per_weight": None if bits is None else bits.held,
        "formula_bits": None if bits is None else bits.formula,
        "matrices": None if everything is None else asdict(everything),
        "weight_bytes": decoder.weight_bytes,
        "file_bytes": None if candidate.is_rounded else candidate.file_bytes,
        "dtype": model.dtype,
        "kv_cache_dtype": model.kv_cache_dtype,
        "kernel": _kernel(commonest, candidate.config, model.kernel_names),
    }


def _commonest(matrices: list[PackedWeights]) -> PackedWeights | None:
    """Return one of the matrices that are held as most weights are."""
    sizes: Counter[tuple[object, str]] = Counter()
    for matrix in matrices:
        sizes[matrix.form, matrix.dtype] += matrix.shape[0] * matrix.shape[1]
    if not sizes:
        return None
    key = sizes.most_common(1)[0][0]
    return next(matrix for matrix in matrices if (matrix.form, matrix.dtype) == key)


def _held_as(matrix: PackedWeights) -> str:
    return matrix.dtype if matrix.form is None else str(matrix.form)


def _kernel(
    matrix: PackedWeights | None, config: EngineConfig, names: dict[str, str]
) -> str | None:
    """Return the instructions that multiply a matrix; None where the device has no choice."""
    if matrix is None or not names:
        return None
    if matrix.form is None:
        is_brain = matrix.dtype == "bfloat16"
        return names["bfloat16 weights" if is_brain else "float32 and float16 weights"]
    exact = config.model.activations == "fp32"
    activations = "--activations fp32" if exact else "int8 activations"
    return names[f"quantized weights, {activations}"]
