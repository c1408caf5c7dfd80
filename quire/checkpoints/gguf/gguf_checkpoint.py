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

from quire.checkpoints.gguf.gguf_file import GgufFile
from quire.checkpoints.gguf.gguf_layouts import LAYOUTS, BlockLayout
from quire.checkpoints.gguf.gguf_names import FUSED_QKV, gguf_family
from quire.checkpoints.gguf.gguf_types import FORMS, MX_SCALE_NAN, dequantize
from quire.checkpoints.latent_rows import neighbours_apart
from quire.checkpoints.weight_names import WeightNames
from quire.core.errors import WeightMismatchError
from quire.core.model.model_config import LatentConfig, ModelConfig
from quire.kernels.matrices.block_matrix import BlockMatrix
from quire.kernels.matrices.host_tensor import NUMPY_DTYPES, HostTensor

FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}

_EXPERTS = re.compile(r"(blk\.\d+\.ffn_(?:gate|up|down))_exps\.(weight|bias)")
#: A matrix of one row, which some files have as a vector.
_SHARED_GATE = re.compile(r"blk\.\d+\.ffn_gate_inp_shexp\.weight")
_ROTATED = re.compile(r"blk\.\d+\.attn_(q|k|qkv|q_b|kv_a_mqa)\.(?:weight|bias)")
_BLOCK = re.compile(r"blk\.(\d{1,9})\.")
#: What makes keys and values of latents: one matrix, or one of each with keys' inputs and outputs
#: swapped.
HEADS, KEY_HEADS, VALUE_HEADS = (f"attn_{kind}_b.weight" for kind in ("kv", "k", "v"))


@dataclass(frozen=True, slots=True)
class GgufEntry:
    """A tensor, or one expert's share of it.

    Attributes:
        stored: The file's names of it: two for the matrix that makes keys and values of latents.
        expert: Index of the expert whose share it is, or None for all.
        layout: Layout of its type.
        shape: Row-major shape of the share.
        nbytes: Bytes of the share.
    """

    stored: tuple[str, ...]
    expert: int | None
    layout: BlockLayout
    shape: tuple[int, ...]
    nbytes: int


class GgufCheckpoint:
    """All tensors of a file by name; see :class:`quire.checkpoints.tensor_source.TensorSource`.

    The matrix that makes keys and values of latents is one, as in checkpoints, also where the file
    has two. Blocks that draft further tokens are left out.

    Args:
        file: The file.
        config: Configuration read from the file; it decides the order of query and key rows.
    """

    #: Rows are put in order when such files are written, or here.
    is_arranged = True
    #: A file has quantized types and floats.
    mixes_types = True

    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        self._file = file
        self._config = config
        self._entries: dict[str, GgufEntry] = {}
        self._drafting = {name for name in file.tensors if self._drafts(name)}
        for name in file.tensors:
            if name not in self._drafting:
                self._add(name)

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    @property
    def names(self) -> set[str]:
        """Names of all tensors."""
        return set(self._entries)

    def weight_names(self, config: ModelConfig, family: WeightNames) -> WeightNames:
        """Return what the tensors are called."""
        names = gguf_family(config.architecture).weight_names(config)
        forms = {FUSED_QKV, ("attn_q", "attn_k", "attn_v")}
        # Files of one architecture have the one or the other.
        for qkv in forms - {names.qkv} if names.qkv else ():
            if f"blk.0.{qkv[0]}.weight" in self._entries:
                names = replace(names, qkv=qkv)
        return names

    def notices(self) -> list[str]:
        """Return the types of tensors in one line."""
        count = Counter(tensor.layout.name for tensor in self._file.tensors.values())
        types = ", ".join(f"{number} {name}" for name, number in count.most_common())
        drafting = f"tensors that draft further tokens are not loaded: {len(self._drafting)}"
        return [f"tensors are {types}", *([drafting] if self._drafting else [])]

    def entry(self, name: str) -> GgufEntry:
        """Return type, shape and size of a tensor."""
        return self._entries[name]

    def rows(self, name: str) -> np.ndarray:
        """Return a tensor as it is stored: (rows, bytes of a row) uint8, whole blocks each.

        A view of the file, or a copy where rows are put into the order of our RoPE.
        """
        entry = self._entries[name]
        data = np.frombuffer(self._file.data(entry.stored[0]), np.uint8)
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
        if len(entry.stored) > 1:
            return self._latent_heads(name, entry)
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
        for stored in self._entries[name].stored:
            self._file.release(stored)

    def _drafts(self, name: str) -> bool:
        match, first = _BLOCK.match(name), self._config.num_layers
        return match is not None and 0 <= int(match[1]) - first < self._file.num_drafting_blocks

    def _add(self, name: str) -> None:
        tensor = self._file.tensors[name]
        latent = self._config.latent
        if latent is not None and name.endswith((KEY_HEADS, VALUE_HEADS)):
            self._add_latent_heads(name.removesuffix(KEY_HEADS).removesuffix(VALUE_HEADS), latent)
            return
        if len(tensor.shape) == 1 and tensor.layout.is_quantized:
            raise WeightMismatchError(
                f"[load] {self.path}: {name} must be F32, F16 or BF16, being a vector; got "
                f"{tensor.layout.name}."
            )
        match, moe = _EXPERTS.fullmatch(name), self._config.moe
        if match is None or moe is None:
            is_row = _SHARED_GATE.fullmatch(name) and len(tensor.shape) == 1
            shape = (1, *tensor.shape) if is_row else tensor.shape
            self._put(name, GgufEntry((name,), None, tensor.layout, shape, tensor.nbytes))
            return
        num_dims, rule = {"weight": (3, "rows, columns"), "bias": (2, "rows")}[match[2]]
        if len(tensor.shape) != num_dims or tensor.shape[0] != moe.num_experts:
            raise WeightMismatchError(
                f"[load] {self.path}: {name} must have shape ({moe.num_experts}, {rule}); "
                f"got {tensor.shape}."
            )
        share = tensor.nbytes // moe.num_experts
        for expert in range(moe.num_experts):
            entry = GgufEntry((name,), expert, tensor.layout, tensor.shape[1:], share)
            self._put(f"{match[1]}.{expert}.{match[2]}", entry)

    def _add_latent_heads(self, block: str, latent: LatentConfig) -> None:
        stored, heads = (block + KEY_HEADS, block + VALUE_HEADS), self._config.num_heads
        if block + HEADS in self._entries and self._entries[block + HEADS].stored == stored:
            return
        shapes = (
            (heads, latent.rank, latent.key_dim),
            (heads, latent.value_dim, latent.rank),
        )
        tensors = [self._file.tensors.get(part) for part in stored]
        for part, tensor, shape in zip(stored, tensors, shapes, strict=True):
            if tensor is None or tensor.shape != shape:
                got = "none" if tensor is None else tensor.shape
                raise WeightMismatchError(
                    f"[load] {self.path}: {part} must have shape {shape}; got {got}."
                )
        found = [tensor for tensor in tensors if tensor is not None]
        layout = found[0].layout
        if layout != found[1].layout or layout.is_quantized:
            layout = LAYOUTS["F32"]
        joined = (heads * (latent.key_dim + latent.value_dim), latent.rank)
        nbytes = sum(tensor.nbytes for tensor in found)
        self._put(block + HEADS, GgufEntry(stored, None, layout, joined, nbytes))

    def _latent_heads(self, name: str, entry: GgufEntry) -> HostTensor:
        """Return what makes each head's key, then its value; float32 where it was quantized."""
        dtype, made = FLOATS[entry.layout.name], []
        for stored in entry.stored:
            tensor = self._file.tensors[stored]
            rows = np.frombuffer(self._file.data(stored), np.uint8)
            rows = rows.reshape(math.prod(tensor.shape[:-1]), -1)
            is_kept = tensor.layout == entry.layout
            values = (
                rows.view(NUMPY_DTYPES[dtype]) if is_kept else dequantize(tensor.layout.name, rows)
            )
            made.append(values.reshape(tensor.shape))
        heads = np.concatenate([made[0].swapaxes(1, 2), made[1]], axis=1)
        return HostTensor(name, dtype, heads.reshape(entry.shape))

    def _put(self, name: str, entry: GgufEntry) -> None:
        if name in self._entries:
            places = " and ".join(self._entries[name].stored + entry.stored)
            raise WeightMismatchError(
                f"[load] {self.path}: {name} must be there once; got it in {places}."
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
    if config.latent is not None:
        return neighbours_apart(config)[match[1] == "kv_a_mqa"]
    queries, keys = config.num_heads, config.num_kv_heads
    heads = {"q": queries, "k": keys, "qkv": queries + 2 * keys}[match[1]]
    rows = np.arange(heads * config.head_dim).reshape(heads, config.head_dim)
    turned = rows[: queries + keys]
    rotated = config.rope.rotary_dim
    pairs = turned[:, :rotated].reshape(len(turned), -1, 2)
    turned[:, :rotated] = pairs.swapaxes(1, 2).reshape(len(turned), rotated)
    return rows.reshape(-1)
