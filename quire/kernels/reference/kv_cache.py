"""The KV cache in plain torch: rounding on the way in, floats on the way out.

K KV heads, H head dim. The rounding is defined in ``kernels/attention.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np
import torch

from quire.core.kv_cache_spec import KVCacheSpec
from quire.kernels.reference.linear import DTYPES

_KV_DTYPES = {**DTYPES, "fp8_e4m3": torch.float8_e4m3fn, "int8": torch.int8}
E4M3_HIGHEST = 448.0


class ReferenceKVCache:
    """Elements (layers, 2, num_blocks, block_size, K, H), and scales of int8 without the H.

    What was never written is read as NaN.
    """

    def __init__(self, spec: KVCacheSpec, num_blocks: int) -> None:
        self.spec = spec
        self.num_blocks = num_blocks
        shape = (spec.num_layers, 2, num_blocks, spec.block_size, spec.num_kv_heads)
        dtype = _KV_DTYPES[spec.dtype]
        empty = 0 if dtype == torch.int8 else float("nan")
        self.blocks = torch.full((*shape, spec.head_dim), empty, dtype=dtype)
        scales = shape if spec.dtype == "int8" else (spec.num_layers, 2, num_blocks, 0, 0)
        self.scales = torch.full(scales, float("nan"), dtype=torch.bfloat16)

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
            if self.scales.shape[3]:
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
        return np.frombuffer(b"".join(parts), np.uint8).reshape(-1, self.spec.allocated_block_bytes)

    def write_blocks(self, block_ids: Sequence[int], data: np.ndarray) -> None:
        """Give blocks the content that was read of others."""
        split = self.spec.block_bytes
        for block_id, row in zip(block_ids, torch.from_numpy(data.copy()), strict=True):
            for part, target in ((row[:split], self.blocks), (row[split:], self.scales)):
                if len(part):
                    block = target[:, :, block_id]
                    target[:, :, block_id] = part.clone().view(target.dtype).view_as(block)

    def write(self, layer: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Round k and v (T, K, H) and store them in ``slots`` (T,)."""
        for which, x in enumerate((k, v)):
            elements = self.blocks[layer, which].flatten(0, 1)
            if self.spec.dtype == "int8":
                codes, scales = quantize_int8(x)
                elements[slots] = codes
                self.scales[layer, which].flatten(0, 1)[slots] = scales
            elif self.spec.dtype == "fp8_e4m3":
                bounded = x.clamp(-E4M3_HIGHEST, E4M3_HIGHEST)
                elements[slots] = bounded.to(torch.float8_e4m3fn)
            else:
                elements[slots] = x.to(elements.dtype)

    def read(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return K and V of ``slots`` (S,) as float32 (S, K, H)."""
        elements = self.blocks[layer].flatten(1, 2)[:, slots].float()
        if self.spec.dtype == "int8":
            elements *= self.scales[layer].flatten(1, 2)[:, slots].float()[..., None]
        return elements[0], elements[1]


def quantize_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int8 codes (..., H) and bfloat16 scales (...) of float32 ``x``, ``codes * scales``."""
    scales = (x.abs().amax(-1) / 127).contiguous()
    # The upper half of a positive float's bits, the lower half carried: rounded up.
    upper = (scales.view(torch.int32) + 0xFFFF) >> 16 << 16
    scales = upper.view(torch.float32)
    scales[~x.isfinite().all(-1)] = float("nan")
    divisors = torch.where(scales == 0, 1.0, scales)
    codes = (x / divisors[..., None]).round().nan_to_num(0).to(torch.int8)
    return codes, scales.to(torch.bfloat16)


def _bytes(x: torch.Tensor) -> bytes:
    return x.contiguous().flatten().view(torch.uint8).numpy().tobytes()
