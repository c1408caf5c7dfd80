"""The tensors of a GGUF file as a loader wants them: one per expert, rows in the order of our RoPE.

Quantized matrices stay in the file's blocks, which kernels pack.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from quire.core.errors import WeightMismatchError
from quire.core.model_config import ModelConfig
from quire.kernels.block_matrix import BlockMatrix
from quire.kernels.host_tensor import NUMPY_DTYPES, HostTensor
from quire.models.gguf_file import GgufFile
from quire.models.gguf_names import FUSED_QKV, gguf_family
from quire.models.weight_names import WeightNames
from quire.quantization.gguf_layouts import Layout
from quire.quantization.gguf_types import FORMS, MX_SCALE_NAN, dequantize

FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}

_EXPERTS = re.compile(r"(blk\.\d+\.ffn_(?:gate|up|down))_exps\.(weight|bias)")
#: A matrix of one row, which some files have as a vector.
_SHARED_GATE = re.compile(r"blk\.\d+\.ffn_gate_inp_shexp\.weight")
_ROTATED = re.compile(r"blk\.\d+\.attn_(q|k|qkv)\.(?:weight|bias)")


@dataclass(frozen=True, slots=True)
class GgufEntry:
    """A tensor, or one expert's share of it.

    Attributes:
        stored: The file's name of it.
        expert: Which share, or None for all.
        layout: Its type.
        shape: Row-major, of the share.
        nbytes: Of the share.
    """

    stored: str
    expert: int | None
    layout: Layout
    shape: tuple[int, ...]
    nbytes: int


class GgufCheckpoint:
    """All tensors of a file by name; see :class:`quire.models.tensor_source.TensorSource`.

    Args:
        file: The file.
        config: Read from it; says how query and key rows are ordered.
    """

    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        self._file = file
        self._config = config
        self._entries: dict[str, GgufEntry] = {}
        for name in file.tensors:
            self._add(name)

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    @property
    def names(self) -> set[str]:
        """Names of all tensors."""
        return set(self._entries)

    @property
    def is_arranged(self) -> bool:
        """Yes, by those who write such files, or here."""
        return True

    @property
    def mixes_types(self) -> bool:
        """Yes: quantized types and floats."""
        return True

    def weight_names(self, config: ModelConfig) -> WeightNames:
        """Return what the tensors are called."""
        names = gguf_family(config.architecture).weight_names(config)
        forms = {FUSED_QKV, ("attn_q", "attn_k", "attn_v")}
        # Files of one architecture have the one or the other.
        for qkv in forms - {names.qkv}:
            if f"blk.0.{qkv[0]}.weight" in self._entries:
                names = replace(names, qkv=qkv)
        return names

    def notices(self) -> list[str]:
        """Return the types of tensors in one line."""
        count = Counter(tensor.layout.name for tensor in self._file.tensors.values())
        types = ", ".join(f"{number} {name}" for name, number in count.most_common())
        return [f"tensors are {types}"]

    def entry(self, name: str) -> GgufEntry:
        """Return type, shape and size of a tensor."""
        return self._entries[name]

    def rows(self, name: str) -> np.ndarray:
        """Return a tensor as it is stored: (rows, bytes of a row) uint8, whole blocks each.

        A view of the file, or a copy where rows are put into the order of our RoPE.
        """
        entry = self._entries[name]
        data = np.frombuffer(self._file.data(entry.stored), np.uint8)
        if entry.expert is not None:
            data = data[entry.expert * entry.nbytes : (entry.expert + 1) * entry.nbytes]
        order = row_order(name, self._config)
        if order is not None:
            data = data.reshape(entry.shape[0], -1)[order]
        rows = math.prod(entry.shape[:-1])
        return data.reshape(rows, entry.nbytes // rows)

    def tensor(self, name: str) -> HostTensor | BlockMatrix:
        """Return a tensor: floats or, of quantized ones, the file's blocks."""
        entry = self._entries[name]
        rows, layout = self.rows(name), entry.layout
        if layout.name in FLOATS:
            dtype = FLOATS[layout.name]
            values = np.ascontiguousarray(rows).reshape(-1).view(NUMPY_DTYPES[dtype])
            return HostTensor(
                name, dtype, np.require(values, requirements="A").reshape(entry.shape)
            )
        if layout.name == "MXFP4" and (rows[:, :: layout.block_bytes] == MX_SCALE_NAN).any():
            raise WeightMismatchError(
                f"[load] {self.path}: {name} must have scales below {MX_SCALE_NAN}, NaN in "
                "MXFP4; got one. The file is damaged: fetch it again."
            )
        return BlockMatrix(
            name=name,
            type_name=layout.name,
            type_code=layout.code,
            shape=entry.shape,
            rows=np.ascontiguousarray(rows),
            form=FORMS[layout.name],
            dequantize=dequantize,
        )

    def release(self, name: str) -> None:
        """Give the pages of a tensor back."""
        self._file.release(self._entries[name].stored)

    def _add(self, name: str) -> None:
        tensor = self._file.tensors[name]
        if len(tensor.shape) == 1 and tensor.layout.is_quantized:
            raise WeightMismatchError(
                f"[load] {self.path}: {name} must be F32, F16 or BF16, being a vector; got "
                f"{tensor.layout.name}."
            )
        match, moe = _EXPERTS.fullmatch(name), self._config.moe
        if match is None or moe is None:
            is_row = _SHARED_GATE.fullmatch(name) and len(tensor.shape) == 1
            shape = (1, *tensor.shape) if is_row else tensor.shape
            self._put(name, GgufEntry(name, None, tensor.layout, shape, tensor.nbytes))
            return
        num_dims, rule = {"weight": (3, "rows, columns"), "bias": (2, "rows")}[match[2]]
        if len(tensor.shape) != num_dims or tensor.shape[0] != moe.num_experts:
            raise WeightMismatchError(
                f"[load] {self.path}: {name} must have shape ({moe.num_experts}, {rule}); "
                f"got {tensor.shape}."
            )
        share = tensor.nbytes // moe.num_experts
        for expert in range(moe.num_experts):
            entry = GgufEntry(name, expert, tensor.layout, tensor.shape[1:], share)
            self._put(f"{match[1]}.{expert}.{match[2]}", entry)

    def _put(self, name: str, entry: GgufEntry) -> None:
        if name in self._entries:
            raise WeightMismatchError(
                f"[load] {self.path}: {name} must be there once; got it in {entry.stored} and "
                f"{self._entries[name].stored}."
            )
        self._entries[name] = entry


def row_order(name: str, config: ModelConfig) -> np.ndarray | None:
    """Return which stored row each of our rows is; None where a tensor's are stored in our order.

    Stored heads rotate the neighbours (2i, 2i + 1), ours (i, i + R/2); R rotated elements.
    """
    match = _ROTATED.fullmatch(name)
    if (
        match is None
        or config.rope is None
        or not gguf_family(config.architecture).interleaved_rope
    ):
        return None
    queries, keys = config.num_heads, config.num_kv_heads
    heads = {"q": queries, "k": keys, "qkv": queries + 2 * keys}[match[1]]
    rows = np.arange(heads * config.head_dim).reshape(heads, config.head_dim)
    turned = rows[: queries + keys]
    rotated = config.rope.rotary_dim
    pairs = turned[:, :rotated].reshape(len(turned), -1, 2)
    turned[:, :rotated] = pairs.swapaxes(1, 2).reshape(len(turned), rotated)
    return rows.reshape(-1)
