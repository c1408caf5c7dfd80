"""The format of compressed-tensors: a group of settings for each kind of matrix."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quire.checkpoints.formats.compressed_tensors import (
    store_bytes,
    store_four_bits,
    store_packed_integers,
)
from quire.checkpoints.safetensors_writer import TensorData, tensor_data
from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.quantization.producers.float8 import BLOCK
from quire.quantizing.layouts.stored_layout import (
    HEAD,
    Fitting,
    Schemes,
    Shapes,
    StoredFormat,
    dividing_group,
    kinds_of,
    words_only,
)
from quire.quantizing.scheme import QuantizationScheme


@dataclass(frozen=True, slots=True)
class CompressedLayout:
    """One of the format's layouts.

    Attributes:
        name: Name of the layout in ``format``.
        weights: A function that returns ``weights`` of a scheme.
        store: A function that returns the parts of a matrix.
        refusal: The same as in :meth:`Fitting.keep`.
        group_size: The same as ``size_of`` in :meth:`Fitting.group`.
        inputs: A function that returns ``input_activations`` of a scheme.
    """

    name: str
    weights: Callable[[QuantizationScheme], dict[str, Any]]
    store: Callable[[QuantizedTensor, QuantizationScheme], dict[str, TensorData]]
    refusal: Callable[[QuantizationScheme, tuple[int, int]], str] = lambda scheme, shape: ""
    group_size: Callable[[QuantizationScheme, int], int] = lambda scheme, width: scheme.group_size
    inputs: Callable[[QuantizationScheme], dict[str, Any] | None] = lambda scheme: None


class CompressedTensorsLayout(StoredFormat):
    """Matrices of any layout, in groups of settings."""

    name = "compressed-tensors"

    def _fit(self, fitting: Fitting, schemes: Schemes, shapes: Shapes) -> None:
        """Leave out what a layout cannot hold; groups divide rows."""
        fitting.keep(schemes, shapes, lambda s, shape: _kind(s).refusal(s, shape))
        fitting.group(shapes, lambda s, width: _kind(s).group_size(s, width))

    def store(self, matrix: QuantizedTensor, scheme: QuantizationScheme) -> dict[str, TensorData]:
        """Return the parts of a matrix."""
        return _kind(scheme).store(matrix, scheme)

    def config(self, schemes: Schemes, floats: Sequence[str]) -> dict[str, Any]:
        """Return a group of settings for each kind of matrix."""
        groups = {}
        kinds = kinds_of(schemes, lambda scheme: json.dumps(_group(scheme)))
        for number, (scheme, modules) in enumerate(kinds):
            targets = [f"re:{re.escape(name)}$" for name in modules]
            if len(kinds) == 1:
                # vLLM's head is of no class that is called Linear.
                targets = ["Linear", *([f"re:{HEAD}$"] if HEAD in modules else [])]
            groups[f"group_{number}"] = {"targets": targets, **_group(scheme)}
        formats = {group["format"] for group in groups.values()}
        head = [] if HEAD in {*schemes, *floats} else [HEAD]
        return {
            "quant_method": "compressed-tensors",
            "format": formats.pop() if len(formats) == 1 else "mixed-precision",
            "quantization_status": "compressed",
            "config_groups": groups,
            "ignore": [*floats, *head],
            "kv_cache_scheme": None,
        }


def _group(scheme: QuantizationScheme) -> dict[str, Any]:
    kind = _kind(scheme)
    return {
        "format": kind.name,
        "weights": kind.weights(scheme),
        "input_activations": kind.inputs(scheme),
        "output_activations": None,
    }


def _packed_integers(scheme: QuantizationScheme) -> dict[str, Any]:
    row = scheme.group_size == -1
    return {
        "num_bits": scheme.bits,
        "type": "int",
        "symmetric": scheme.symmetric,
        "strategy": "channel" if row else "group",
        "group_size": None if row else scheme.group_size,
        "actorder": "group" if scheme.act_order else None,
        "dynamic": False,
    }


def _store_packed_integers(
    matrix: QuantizedTensor, scheme: QuantizationScheme
) -> dict[str, TensorData]:
    return {name: tensor_data(array) for name, array in store_packed_integers(matrix).items()}


_PACKED = CompressedLayout(
    "pack-quantized", _packed_integers, _store_packed_integers, words_only, dividing_group
)


def _floats(scheme: QuantizationScheme) -> dict[str, Any]:
    return {
        "num_bits": 8,
        "type": "float",
        "symmetric": True,
        "strategy": scheme.scales,
        "group_size": None,
        "block_structure": [BLOCK, BLOCK] if scheme.scales == "block" else None,
        "dynamic": False,
    }


def _inputs_of_floats(scheme: QuantizationScheme) -> dict[str, Any]:
    """Say that activations may be rounded to floats of 8 bits, as they come or by one scale."""
    if scheme.static_inputs:
        kind = {"num_bits": 8, "type": "float", "symmetric": True}
        return {**kind, "strategy": "tensor", "dynamic": False}
    return {
        "num_bits": 8,
        "type": "float",
        "symmetric": True,
        "strategy": "group" if scheme.scales == "block" else "token",
        "group_size": BLOCK if scheme.scales == "block" else None,
        "dynamic": True,
    }


def _store_floats(matrix: QuantizedTensor, scheme: QuantizationScheme) -> dict[str, TensorData]:
    return _typed(store_bytes(matrix, scheme.scales, BLOCK), weight="F8_E4M3")


def _bytes(_: QuantizationScheme) -> dict[str, Any]:
    return {
        "num_bits": 8,
        "type": "int",
        "symmetric": True,
        "strategy": "channel",
        "group_size": None,
        "dynamic": False,
    }


def _inputs_of_bytes(_: QuantizationScheme) -> dict[str, Any]:
    """Say that activations may be rounded as they come, to bytes."""
    return {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}


def _store_bytes(matrix: QuantizedTensor, _: QuantizationScheme) -> dict[str, TensorData]:
    return _typed(store_bytes(matrix, "channel", BLOCK))


def _four_bits(scheme: QuantizationScheme) -> dict[str, Any]:
    nvidia = scheme.method == "nvfp4"
    return {
        "num_bits": 4,
        "type": "float",
        "symmetric": True,
        "strategy": "tensor_group" if nvidia else "group",
        "group_size": scheme.group_size,
        "scale_dtype": "torch.float8_e4m3fn" if nvidia else "torch.uint8",
        "dynamic": False,
    }


def _store_four_bits(matrix: QuantizedTensor, scheme: QuantizationScheme) -> dict[str, TensorData]:
    kind = "F8_E4M3" if scheme.method == "nvfp4" else "U8"
    return _typed(store_four_bits(matrix), weight_scale=kind)


def _full_groups(scheme: QuantizationScheme, shape: tuple[int, int]) -> str:
    size = scheme.group_size
    return f"has {scheme.method} in full groups of {size}" if shape[1] % size else ""


def _typed(parts: Mapping[str, np.ndarray], **types: str) -> dict[str, TensorData]:
    return {name: tensor_data(array, types.get(name, "")) for name, array in parts.items()}


_BYTES = CompressedLayout("int-quantized", _bytes, _store_bytes, inputs=_inputs_of_bytes)
#: By method; those that are not there pack integers.
_KINDS = {
    "fp8": CompressedLayout("float-quantized", _floats, _store_floats, inputs=_inputs_of_floats),
    "int8": _BYTES,
    "smoothquant": _BYTES,
    "nvfp4": CompressedLayout("nvfp4-pack-quantized", _four_bits, _store_four_bits, _full_groups),
    "mxfp4": CompressedLayout("mxfp4-pack-quantized", _four_bits, _store_four_bits, _full_groups),
}


def _kind(scheme: QuantizationScheme) -> CompressedLayout:
    return _KINDS.get(scheme.method, _PACKED)
