"""The CPU backend: numpy arrays, contiguous float32, handed to the native kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.core.model.moe_config import ExpertRouting
from quire.kernels import activation as activation_op
from quire.kernels import elementwise, norm, sampling
from quire.kernels import moe as moe_op
from quire.kernels import rows as rows_op
from quire.kernels.activation import ACTIVATIONS
from quire.kernels.backend import Arrays, ChainShape, Forward
from quire.kernels.batch.sampling_batch import SamplingBatch
from quire.kernels.cpu.attention import CpuAttention, CpuKVCache
from quire.kernels.cpu.draft_chain import CpuDraftChain, record_chain
from quire.kernels.cpu.kernel_names import kernel_names
from quire.kernels.cpu.latent_attention import CpuLatentAttention
from quire.kernels.cpu.linear import CpuLinear
from quire.kernels.cpu.low_rank import CpuLowRank, add_low_rank, adjust_rows
from quire.kernels.cpu.moe import CpuExperts, CpuGroupedLinear, route
from quire.kernels.cpu.native import isa_choice, native
from quire.kernels.cpu.tile_threshold import choose_matrix_rows, range_of_rows
from quire.kernels.matrices.host_tensor import HostTensor

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


class CpuBackend:
    """Arrays are numpy. See ``kernels/backend.py`` for the methods.

    Args:
        threads: Compute threads of the whole process.
    """

    name = "cpu"
    activation_dtype = "float32"
    packed_weights_version: int | None = native.packed_weights_version

    kv_cache = CpuKVCache
    linear = CpuLinear
    low_rank = CpuLowRank
    add_low_rank = staticmethod(add_low_rank)
    adjust_rows = staticmethod(adjust_rows)
    attention = CpuAttention
    latent_attention = CpuLatentAttention
    experts = CpuExperts
    grouped_linear = CpuGroupedLinear

    def __init__(self, threads: int) -> None:
        native.set_num_threads(threads)
        self.threads = threads
        choose_matrix_rows()

    def kernel_names(self) -> dict[str, str]:
        return kernel_names(native.isa(), isa_choice.reason, range_of_rows())

    def empty(self, shape: Sequence[int], dtype: str = "float32") -> Any:
        return np.empty(tuple(shape), dtype)

    def from_numpy(self, array: Any) -> Any:
        return array

    def upload(self, arrays: Arrays) -> Arrays:
        return arrays

    def to_numpy(self, array: Any) -> Any:
        return array

    def checksums(self, data: Any, parts: Sequence[tuple[int, int]]) -> list[int]:
        found: list[int] = native.checksums(data, parts)
        return found

    def parameter(self, tensor: HostTensor) -> Floats:
        return np.ascontiguousarray(tensor.float32())

    def rms_norm(
        self, x: Floats, weight: Floats, eps: float, out: Floats, residual: Floats | None = None
    ) -> Floats:
        norm.check("rms_norm", x, out, residual, weight)
        native.rms_norm(x, residual, weight, eps, *x.shape, out)
        return out

    def layer_norm(
        self,
        x: Floats,
        weight: Floats,
        bias: Floats,
        eps: float,
        out: Floats,
        residual: Floats | None = None,
    ) -> Floats:
        norm.check("layer_norm", x, out, residual, weight, bias)
        native.layer_norm(x, residual, weight, bias, eps, *x.shape, out)
        return out

    def scale(self, x: Floats, factor: float, out: Floats) -> Floats:
        elementwise.check("scale", x, out)
        native.scale(x, factor, x.size, out)
        return out

    def soft_cap(self, x: Floats, cap: float, out: Floats) -> Floats:
        elementwise.check("soft_cap", x, out)
        native.soft_cap(x, cap, x.size, out)
        return out

    def add_residual(self, x: Floats, residual: Floats, out: Floats | None = None) -> Floats:
        elementwise.check("add_residual", x, residual, out)
        native.add_residual(x, x.size, residual, out)
        return residual

    def gated_activation(self, x: Floats, activation: str, out: Floats) -> Floats:
        activation_op.check(x, activation, out, gated=True)
        native.gated_activation(x, ACTIVATIONS.index(activation), *out.shape, out)
        return out

    def activation(self, x: Floats, activation: str, out: Floats) -> Floats:
        activation_op.check(x, activation, out, gated=False)
        native.activation(x, ACTIVATIONS.index(activation), *out.shape, out)
        return out

    def add_rows(self, x: Floats, table: Floats, rows: Ints) -> Floats:
        rows_op.check("add_rows", table, rows, x)
        if not native.add_rows(x, table, len(table), rows, *x.shape):
            raise rows_op.refuse_row("add_rows", len(table))
        return x

    def gather_rows(self, x: Floats, rows: Ints, out: Floats) -> Floats:
        rows_op.check("gather_rows", x, rows, out)
        if not native.gather_rows(x, len(x), rows, *out.shape, out):
            raise rows_op.refuse_row("gather_rows", len(x))
        return out

    def scatter_rows(self, x: Floats, rows: Ints, out: Floats) -> Floats:
        rows_op.check("scatter_rows", out, rows, x)
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(out):
            raise rows_op.refuse_row("scatter_rows", len(out))
        out[rows] = x
        return out

    def spread_columns(self, x: Floats, columns: Ints, out: Floats) -> Floats:
        rows_op.check_columns(x, columns, out)
        if not native.spread_columns(x, columns, *x.shape, out.shape[1], out):
            raise rows_op.refuse_row("spread_columns", out.shape[1], "columns")
        return out

    def draft_chain(self, forward: Forward, shape: ChainShape) -> CpuDraftChain | None:
        return record_chain(forward, shape)

    def route(
        self, logits: Floats, routing: ExpertRouting, bias: Floats | None = None
    ) -> tuple[Ints, Floats]:
        moe_op.check_route(logits, routing, bias)
        return route(logits, routing, bias)

    def combine_experts(self, y: Floats, places: Ints, weights: Floats, out: Floats) -> Floats:
        native.combine_experts(y, places, weights, *places.shape, out.shape[1], out)
        return out

    def add_gated_rows(self, x: Floats, gate: Floats, out: Floats) -> Floats:
        moe_op.check_rows("add_gated_rows", x, gate, out)
        native.add_gated_rows(x, gate, *x.shape, out)
        return out

    def scale_rows(self, x: Floats, scales: Floats, out: Floats) -> Floats:
        moe_op.check_rows("scale_rows", x, scales, out)
        native.scale_rows(x, scales, *x.shape, out)
        return out

    def sample(self, logits: Floats, batch: SamplingBatch) -> Ints:
        sampling.check(logits, batch)
        out = np.empty(len(logits), np.int32)
        if not native.sample(logits, *logits.shape, batch, *_lengths(batch), out):
            raise sampling.refuse_batch()
        return out

    def sampling_probabilities(self, logits: Floats, batch: SamplingBatch) -> Floats:
        sampling.check(logits, batch)
        out = np.empty(logits.shape, np.float32)
        if not native.sampling_probabilities(logits, *logits.shape, batch, *_lengths(batch), out):
            raise sampling.refuse_batch()
        return out

    def token_logprobs(
        self, logits: Floats, token_ids: Ints, num_top: int
    ) -> tuple[Floats, Ints, Ints, Floats]:
        sampling.check_logprobs(logits, token_ids, num_top)
        count = len(logits)
        logprobs, ranks = np.empty(count, np.float32), np.empty(count, np.int32)
        top_ids = np.empty((count, num_top), np.int32)
        top_logprobs = np.empty((count, num_top), np.float32)
        native.token_logprobs(
            logits, *logits.shape, token_ids, num_top, logprobs, ranks, top_ids, top_logprobs
        )
        return logprobs, ranks, top_ids, top_logprobs


def _lengths(batch: SamplingBatch) -> list[int]:
    flat = (batch.history_ids, batch.bias_ids, batch.allowed_ids, batch.mask_words)
    return [len(values) for values in flat]
