"""The KV cache in plain torch: rounding on the way in, floats on the way out.

K KV heads, H head dim. The rounding is defined in ``kernels/attention.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np
import torch

from quire.core.model.kv_cache_spec import INT4_GROUP, KVCacheSpec
from quire.kernels.reference.linear import DTYPES

_KV_DTYPES = {
    **DTYPES, "fp8_e4m3": torch.float8_e4m3fn, "int8": torch.int8, "int4": torch.uint8
}  # fmt: skip
E4M3_HIGHEST = 448.0


class ReferenceKVCache:
    """Elements (layers, sides, num_blocks, block_size, K, H), scales (..., K, scales of a head).

    Of ``int4`` the last axis of elements are bytes, H / 2 of them. What was never written is read
    as NaN.
    """

    def __init__(self, spec: KVCacheSpec, num_blocks: int) -> None:
        self.spec = spec
        self.num_blocks = num_blocks
        shape = (spec.num_layers, spec.sides, num_blocks, spec.block_size, spec.num_kv_heads)
        dtype = _KV_DTYPES[spec.dtype]
        empty = float("nan") if dtype.is_floating_point else 0
        units = spec.head_dim // 2 if spec.dtype == "int4" else spec.head_dim
        self.blocks = torch.full((*shape, units), empty, dtype=dtype)
        scales = (*shape, spec.head_scales)
        self.scales = torch.full(scales, float("nan"), dtype=torch.bfloat16)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block over all layers, scales included."""
        return self.spec.block_bytes

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks ``(source, destination)`` in every layer, in order."""
        for source, destination in pairs:
            self.blocks[:, :, destination] = self.blocks[:, :, source]
            self.scales[:, :, destination] = self.scales[:, :, source]

    def copy_slots(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy slots ``(source, destination)`` in every layer, in order."""
        size = self.spec.block_size
        for source, destination in pairs:
            at, to = divmod(source, size), divmod(destination, size)
            self.blocks[:, :, to[0], to[1]] = self.blocks[:, :, at[0], at[1]]
            self.scales[:, :, to[0], to[1]] = self.scales[:, :, at[0], at[1]]

    def checksums(self, block_ids: Sequence[int]) -> list[int]:
        """Return a checksum of each block's bytes and scales over all layers (CRC-32)."""
        return [
            crc32(_bytes(self.scales[:, :, block_id]), crc32(_bytes(self.blocks[:, :, block_id])))
            for block_id in block_ids
        ]

    def read_blocks(self, block_ids: Sequence[int]) -> np.ndarray:
        """Return (B, bytes of a block over all layers) uint8: elements, then scales."""
        parts = [_bytes(self.blocks[:, :, i]) + _bytes(self.scales[:, :, i]) for i in block_ids]
        return np.frombuffer(b"".join(parts), np.uint8).reshape(-1, self.spec.block_bytes)

    def write_blocks(self, block_ids: Sequence[int], data: np.ndarray) -> None:
        """Give blocks the content that was read of others."""
        split = self.spec.token_element_bytes * self.spec.block_size
        for block_id, row in zip(block_ids, torch.from_numpy(data.copy()), strict=True):
            for part, target in ((row[:split], self.blocks), (row[split:], self.scales)):
                if len(part):
                    block = target[:, :, block_id]
                    target[:, :, block_id] = part.clone().view(target.dtype).view_as(block)

    def write(self, layer: int, slots: torch.Tensor, *sides: torch.Tensor) -> None:
        """Round k and v, or latents, (T, K, H) and store them in ``slots`` (T,)."""
        for which, x in enumerate(sides):
            elements = self.blocks[layer, which].flatten(0, 1)
            if self.spec.head_scales:
                codes, scales = self._quantize(which, x)
                elements[slots] = codes
                self.scales[layer, which].flatten(0, 1)[slots] = scales
            elif self.spec.dtype == "fp8_e4m3":
                bounded = x.clamp(-E4M3_HIGHEST, E4M3_HIGHEST)
                elements[slots] = bounded.to(torch.float8_e4m3fn)
            else:
                elements[slots] = x.to(elements.dtype)

    def read(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return K and V, or latents, of ``slots`` (S,) as float32 (S, K, H)."""
        elements = self.blocks[layer].flatten(1, 2)[:, slots]
        scales = self.scales[layer].flatten(1, 2)[:, slots].float()
        if self.spec.dtype == "int4":
            k, v = dequantize_int4(elements, scales)
            return rotate_by_hadamard(k), v
        values = elements.float() * scales if self.spec.head_scales else elements.float()
        return values.unbind(0)

    def _quantize(self, which: int, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.spec.dtype == "int4":
            x = x.float()
            return quantize_int4(rotate_by_hadamard(x) if which == 0 else x)
        codes, scales = quantize_int8(x)
        return codes, scales[..., None]


def quantize_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int8 codes (..., H) and bfloat16 scales (...) of float32 ``x``, ``codes * scales``."""
    scales = _away_from_zero(x.abs().amax(-1) / 127)
    scales[~x.isfinite().all(-1)] = float("nan")
    divisors = torch.where(scales == 0, 1.0, scales)
    codes = (x / divisors[..., None]).round().nan_to_num(0).to(torch.int8)
    return codes, scales.to(torch.bfloat16)


def rotate_by_hadamard(x: torch.Tensor) -> torch.Tensor:
    """Return float32 ``x`` (..., H) times R; R is symmetric and its own inverse.

    R has blocks of ``n x n``, n the largest power of two that divides H: a Hadamard matrix over
    ``sqrt(n)``. Sums and differences are taken 1, 2, 4, ... elements apart, in this order.
    """
    size = x.shape[-1] & -x.shape[-1]
    turned, apart = x, 1
    while apart < size:
        first, second = _divided(turned, -1, 2, apart).unbind(-2)
        turned = torch.stack([first + second, first - second], -2).flatten(-3)
        apart *= 2
    return turned * (1 / torch.tensor(float(size)).sqrt())


def quantize_int4(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round groups of 32 of float32 ``x`` (..., H) to codes 0 to 15.

    ``x = code * scale + minimum``: the lowest element rounded down to bfloat16, and a 15th of the
    distance from there to the highest, rounded up, both NaN where an element is not finite.

    Returns:
        uint8 (..., H / 2), in pairs of neighbours, the first in the lower half of a byte; bfloat16
        (..., 2 H / 32), each group's scale and minimum.
    """
    groups = _divided(x, -1, INT4_GROUP)
    lowest, highest = groups.amin(-1) + 0.0, groups.amax(-1) + 0.0  # -0 becomes 0
    rounded = _toward_zero(lowest)
    minimum = torch.where(lowest < 0, _away_from_zero(lowest), rounded)
    scale = _away_from_zero((highest - minimum) / 15)
    spoiled = ~(groups.isfinite().all(-1) & scale.isfinite())
    scale[spoiled] = minimum[spoiled] = float("nan")
    divisor = torch.where(scale == 0, 1.0, scale)
    codes = ((groups - minimum[..., None]) / divisor[..., None]).round().nan_to_num(0)
    first, second = _divided(codes.to(torch.uint8).flatten(-2), -1, 2).unbind(-1)
    return first | second << 4, torch.stack([scale, minimum], -1).flatten(-2).to(torch.bfloat16)


def dequantize_int4(pairs: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return float32 (..., H) of what :func:`quantize_int4` returned, scales as float32."""
    codes = torch.stack([pairs & 15, pairs >> 4], -1).flatten(-2).float()
    scale, minimum = _divided(scales, -1, 2).unbind(-1)
    groups = _divided(codes, -1, INT4_GROUP)
    return (groups * scale[..., None] + minimum[..., None]).flatten(-2)


def _divided(x: torch.Tensor, *sizes: int) -> torch.Tensor:
    """The last axis as several."""
    return x.reshape(*x.shape[:-1], *sizes)


def _toward_zero(x: torch.Tensor) -> torch.Tensor:
    return (x.contiguous().view(torch.int32) >> 16 << 16).view(torch.float32)


def _away_from_zero(x: torch.Tensor) -> torch.Tensor:
    """The upper half of a float's bits, the lower half carried."""
    return ((x.contiguous().view(torch.int32) + 0xFFFF) >> 16 << 16).view(torch.float32)


def _bytes(x: torch.Tensor) -> bytes:
    return x.contiguous().flatten().view(torch.uint8).numpy().tobytes()
