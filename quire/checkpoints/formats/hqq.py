"""Matrices as HQQ stores them, groups along the inputs (axis 1).

```
W_q      (R / P, size) uint8   R groups of the flattened (N, K); of P codes in a byte, the highest
                               is of group r, the next of r + R / P, and so on (3 bits: P = 10 in
                               an int32, R rounded up)
scale    (R, 1)                value = scale * (code - zero)
zero     (R, 1)                floats, not whole
shape    (2,)                  (N, K)
nbits, axis, group_size, packing, ...   its settings, each a tensor
```
Values are those of the formula in float32. HQQ computes in the type of the scales and rounds the
difference, too: where ``code - zero`` is exact in that type, both are the same after rounding to
it; with float16 they differ elsewhere by at most its last bit, ours the nearer to the formula.

Source: hqq (core.quantize.Quantizer, core.bitpack.BitPack).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from quire.checkpoints.formats.stored_matrix import FLOATS, StoredMatrix, scale_type
from quire.kernels.matrices.quantized_tensor import QuantizedForm, QuantizedTensor

#: Codes in an element of ``W_q``, by their bits.
CODES_PER_ELEMENT = {8: 1, 4: 2, 3: 10, 2: 4}
PACKINGS = {8: "8bit_u8", 4: "4bit_u8", 3: "3bit_32", 2: "2bit_u8"}
#: What is a tensor as well, and changes no value.
UNUSED = ("channel_wise", "compute_dtype", "encoded_state_dict", "offload_meta", "optimize")
MORE_UNUSED = ("group_size", "round_zero", "stores_quant_config", "unpack_view_dtype")
#: What is not there: scales or zeros quantized themselves, codes in floats.
FLAGS = ("quant_scale", "quant_zero", "view_as_float")
MAX_TEXT = 64


@dataclass(frozen=True, slots=True)
class HQQFormat:
    """See :class:`~quire.checkpoints.formats.stored_matrix.WeightFormat`.

    Attributes:
        bits: Bits of all matrices' codes, as far as the configuration says; None where each matrix
            says its own.
    """

    bits: int | None = None
    marker: str = "W_q"
    parts: frozenset[str] = frozenset(
        ("W_q", "scale", "zero", "shape", "nbits", "axis", "packing", *FLAGS, *UNUSED, *MORE_UNUSED)
    )

    def shape(self, matrix: StoredMatrix) -> tuple[int, int]:
        """Return (N, K)."""
        rows, columns = matrix.array("shape", (2,), "I64", "I32").tolist()
        if not (0 < rows < 2**31 and 0 < columns < 2**31):
            raise matrix.error("shape must be two sizes", (rows, columns))
        return rows, columns

    def form(self, matrix: StoredMatrix) -> QuantizedForm:
        """Return how it will be held."""
        bits, size, _ = self._layout(matrix)
        columns = self.shape(matrix)[1]
        kind = scale_type(matrix.part("scale", *FLOATS))
        return QuantizedForm(bits, _common(matrix, size, columns), kind, zero_type="float16")

    def unpack(self, matrix: StoredMatrix) -> QuantizedTensor:
        """Read the parts."""
        bits, size, groups = self._layout(matrix)
        rows, columns = self.shape(matrix)
        common = _common(matrix, size, columns)
        elements = matrix.part("W_q", "I32" if bits == 3 else "U8").read()
        zeros = matrix.numbers("zero", (groups, 1))
        if zeros.dtype != np.float16:
            raise matrix.error("zero must be numbers that float16 holds", "others")
        shape = (rows, columns // common)
        return QuantizedTensor(
            name=f"{matrix.name}.weight",
            bits=bits,
            group_size=common,
            codes=_unpack(elements, bits)[:groups].reshape(rows, columns),
            # Groups go on from row to row; those that kernels hold do not.
            scales=np.repeat(matrix.numbers("scale", (groups, 1)), size // common).reshape(shape),
            zeros=np.repeat(zeros, size // common).reshape(shape),
        )

    def _layout(self, matrix: StoredMatrix) -> tuple[int, int, int]:
        """Return bits, columns of a group and R; check that codes are stored in the known way."""
        bits = int(matrix.array("nbits", (), "I32", "I64").item())
        if bits not in PACKINGS or self.bits not in (None, bits):
            known = ", ".join(map(str, sorted(PACKINGS)))
            raise matrix.error(f"nbits must be {self.bits or f'one of {known}'}", bits)
        axis = matrix.array("axis", (), "I32", "I64").item()
        if axis != 1:
            raise matrix.error("axis must be 1, groups along the inputs", axis)
        for name in FLAGS:
            if name in matrix.parts and matrix.array(name, (), "U8", "BOOL").item():
                raise matrix.error(f"{name} must be false", "true")
        text = matrix.part("packing", "U8")
        if len(text.shape) != 1 or text.shape[0] > MAX_TEXT:
            raise matrix.error(f"packing must be at most {MAX_TEXT} bytes", text.shape)
        packing = text.read().tobytes().decode("ascii", "replace")
        if packing != PACKINGS[bits]:
            raise matrix.error(f"packing must be {PACKINGS[bits]}", packing)
        rows, columns = self.shape(matrix)
        stored = matrix.part("W_q", "I32" if bits == 3 else "U8").shape
        size = stored[1] if len(stored) == 2 else 0
        groups = rows * columns // size if size else 0
        per_element = CODES_PER_ELEMENT[bits]
        if size < 1 or groups * size != rows * columns or stored[0] != -(-groups // per_element):
            rule = f"W_q must have {rows} x {columns} codes of {bits} bits, {per_element} in each"
            raise matrix.error(rule, stored)
        return bits, size, groups


def _common(matrix: StoredMatrix, size: int, columns: int) -> int:
    """Return the columns that share a scale in every row."""
    common = math.gcd(size, columns)
    if common != 16 and common % 32:
        rule = "group_size and columns must have 16 or a multiple of 32 as common divisor"
        raise matrix.error(rule, f"{size} and {columns}")
    return common


def _unpack(elements: np.ndarray, bits: int) -> np.ndarray:
    """Return codes (R, size) uint8, the highest of all elements first."""
    shifts = range((CODES_PER_ELEMENT[bits] - 1) * bits, -1, -bits)
    mask = elements.dtype.type((1 << bits) - 1)
    return np.concatenate([(elements >> shift & mask).astype(np.uint8) for shift in shifts])


def store_hqq(matrix: QuantizedTensor) -> dict[str, np.ndarray]:
    """Return the parts of a matrix whose groups divide its rows, and HQQ's settings of it."""
    assert matrix.zeros is not None, matrix.name
    codes = matrix.codes.reshape(-1, min(matrix.group_size, matrix.shape[1]))
    flags = {
        **dict.fromkeys(("channel_wise", "encoded_state_dict", "optimize"), True),
        "stores_quant_config": True,
        **dict.fromkeys(("offload_meta", "round_zero", *FLAGS), False),
    }
    texts = {
        "packing": PACKINGS[matrix.bits],
        "unpack_view_dtype": f"torch.{'int32' if matrix.bits == 3 else 'uint8'}",
        "compute_dtype": "torch.float16",
    }
    return {
        "W_q": _pack(codes, matrix.bits),
        "scale": matrix.scales.reshape(-1, 1),
        "zero": matrix.zeros.reshape(-1, 1),
        "shape": np.array(matrix.shape, np.int64),
        "nbits": np.array(matrix.bits, np.int32),
        "group_size": np.array(codes.shape[1], np.int32),
        "axis": np.array(1, np.int32),
        **{name: np.array(flag, np.uint8) for name, flag in flags.items()},
        **{name: np.frombuffer(text.encode(), np.uint8) for name, text in texts.items()},
    }


def _pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """Return ``W_q`` of codes (R, size) uint8; see :func:`_unpack`."""
    per_element = CODES_PER_ELEMENT[bits]
    count = -(-len(codes) // per_element)
    elements = np.zeros((count, codes.shape[1]), np.int32 if bits == 3 else np.uint8)
    for number in range(per_element):
        part = codes[number * count : (number + 1) * count].astype(elements.dtype)
        elements[: len(part)] |= part << (per_element - 1 - number) * bits
    return elements
