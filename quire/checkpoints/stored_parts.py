"""Matrices of any layout as plain arrays and a description, to be written and read again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import numpy as np

from quire.checkpoints.matrix_rows import Tensor
from quire.kernels.matrices.activation_scheme import ActivationScheme
from quire.kernels.matrices.host_tensor import HostTensor
from quire.kernels.matrices.lattice_matrix import LatticeMatrix
from quire.kernels.matrices.nested_scales import NestedScales
from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.kernels.matrices.row_tables import Outliers

#: What matrices are made of, by name.
KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        HostTensor, QuantizedTensor, LatticeMatrix, NestedScales, Outliers, ActivationScheme,
    )
}  # fmt: skip
#: Arrays by the path of fields to them.
Parts = dict[str, np.ndarray]


def take_apart(tensor: Tensor) -> tuple[dict[str, Any], Parts]:
    """Return a matrix's description, which JSON can hold, and its arrays.

    Codes of fewer than 8 bits are packed, bit after bit.
    """
    parts: Parts = {}
    return _describe(tensor, "", parts), parts


def put_together(described: dict[str, Any], array: Callable[[str], np.ndarray]) -> Any:
    """Return the matrix of a description; ``array`` returns arrays by their names.

    Raises:
        KeyError, TypeError: The description is not a matrix's.
    """
    return _make(described, "", array)


def part_names(described: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield the names of the arrays of a description."""
    for name, value in described["fields"].items():
        if isinstance(value, dict) and "array" in value:
            yield path + name
        elif isinstance(value, dict):
            yield from part_names(value, f"{path}{name}.")


def _describe(value: Any, path: str, parts: Parts) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in fields(value):
        own = getattr(value, field.name)
        if isinstance(own, np.ndarray):
            bits = value.bits if isinstance(value, QuantizedTensor) else 8
            is_packed = field.name == "codes" and bits < 8
            # Files of tensors have no unsigned words.
            words = own.view(np.int16) if own.dtype == np.uint16 else own
            parts[path + field.name] = _pack_bits(own, bits) if is_packed else words
            found[field.name] = {"array": str(own.dtype), "columns": own.shape[-1]}
        elif type(own).__name__ in KINDS:
            found[field.name] = _describe(own, f"{path}{field.name}.", parts)
        else:
            found[field.name] = own
    return {"kind": type(value).__name__, "fields": found}


def _make(described: dict[str, Any], path: str, array: Callable[[str], np.ndarray]) -> Any:
    made: dict[str, Any] = {}
    values = described["fields"]
    for name, value in values.items():
        if not isinstance(value, dict):
            made[name] = value
        elif "array" not in value:
            made[name] = _make(value, f"{path}{name}.", array)
        else:
            own = array(path + name)
            bits = values["bits"] if described["kind"] == "QuantizedTensor" else 8
            if name == "codes" and bits < 8:
                own = _unpack_bits(own, value["columns"])
            made[name] = own.view(value["array"]) if value["array"] == "uint16" else own
    return KINDS[described["kind"]](**made)


def _pack_bits(codes: np.ndarray, bits: int) -> np.ndarray:
    """Return (bits, N, ceil(K / 8)) uint8 of codes (N, K): a plane of each bit."""
    planes = [np.packbits(codes >> bit & 1, axis=1, bitorder="little") for bit in range(bits)]
    return np.stack(planes)


def _unpack_bits(planes: np.ndarray, columns: int) -> np.ndarray:
    """Undo :func:`_pack_bits`."""
    codes = np.zeros((planes.shape[1], columns), np.uint8)
    for bit, plane in enumerate(planes):
        codes |= np.unpackbits(plane, axis=1, count=columns, bitorder="little") << bit
    return codes
