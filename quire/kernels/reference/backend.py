"""The definition of every op as a backend: plain torch, simple, never optimised."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from quire.core.model.moe_config import ExpertRouting
from quire.kernels import activation as activation_op
from quire.kernels import elementwise as elementwise_op
from quire.kernels import moe as moe_op
from quire.kernels import norm as norm_op
from quire.kernels import rows as rows_op
from quire.kernels import sampling as sampling_op
from quire.kernels.backend import Arrays, ChainShape, Forward
from quire.kernels.batch.sampling_batch import SamplingBatch
from quire.kernels.matrices.host_tensor import HostTensor
from quire.kernels.reference import moe, norm, sampling
from quire.kernels.reference.activation import activate, gated
from quire.kernels.reference.attention import ReferenceAttention
from quire.kernels.reference.kv_cache import ReferenceKVCache
from quire.kernels.reference.latent_attention import ReferenceLatentAttention
from quire.kernels.reference.linear import ReferenceLinear
from quire.kernels.reference.low_rank import ReferenceLowRank, add_low_rank, adjust_rows

Tensor = torch.Tensor


class ReferenceBackend:
    """Arrays are torch tensors on the CPU. See ``kernels/backend.py`` for the methods."""

    name = "reference"
    activation_dtype = "float32"
    threads = 1
    packed_weights_version: int | None = None

    kv_cache = ReferenceKVCache
    linear = ReferenceLinear
    low_rank = ReferenceLowRank
    add_low_rank = staticmethod(add_low_rank)
    adjust_rows = staticmethod(adjust_rows)
    attention = ReferenceAttention
    latent_attention = ReferenceLatentAttention
    experts = moe.ReferenceExperts
    grouped_linear = moe.ReferenceGroupedLinear

    def kernel_names(self) -> dict[str, str]:
        return {}

    def empty(self, shape: Sequence[int], dtype: str = "float32") -> Tensor:
        return torch.empty(tuple(shape), dtype=getattr(torch, dtype))

    def from_numpy(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(array))

    def upload(self, arrays: Arrays) -> Arrays:
        fields = {f.name: getattr(arrays, f.name) for f in dataclasses.fields(arrays)}  # type: ignore[arg-type]
        present = {n: self.from_numpy(x) for n, x in fields.items() if isinstance(x, np.ndarray)}
        return dataclasses.replace(arrays, **present)  # type: ignore[type-var]

    def to_numpy(self, array: Tensor) -> Any:
        return array.numpy()

    def checksums(self, data: Any, parts: Sequence[tuple[int, int]]) -> list[int]:
        view = memoryview(data)
        return [zlib.crc32(view[begin : begin + nbytes]) for begin, nbytes in parts]

    def parameter(self, tensor: HostTensor) -> Tensor:
        return torch.from_numpy(tensor.float32().copy())

    def rms_norm(
        self, x: Tensor, weight: Tensor, eps: float, out: Tensor, residual: Tensor | None = None
    ) -> Tensor:
        norm_op.check("rms_norm", x, out, residual, weight)
        total = x if residual is None else residual.add_(x)
        return out.copy_(norm.rms_norm(total, weight, eps))

    def layer_norm(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        out: Tensor,
        residual: Tensor | None = None,
    ) -> Tensor:
        norm_op.check("layer_norm", x, out, residual, weight, bias)
        total = x if residual is None else residual.add_(x)
        return out.copy_(norm.layer_norm(total, weight, bias, eps))

    def scale(self, x: Tensor, factor: float, out: Tensor) -> Tensor:
        elementwise_op.check("scale", x, out)
        return out.copy_(x * factor)

    def soft_cap(self, x: Tensor, cap: float, out: Tensor) -> Tensor:
        elementwise_op.check("soft_cap", x, out)
        return out.copy_(cap * torch.tanh(x / cap))

    def add_residual(self, x: Tensor, residual: Tensor, out: Tensor | None = None) -> Tensor:
        elementwise_op.check("add_residual", x, residual, out)
        residual.add_(x)
        if out is not None:
            out.copy_(residual)
        return residual

    def gated_activation(self, x: Tensor, activation: str, out: Tensor) -> Tensor:
        activation_op.check(x, activation, out, gated=True)
        return out.copy_(gated(x, activation))

    def activation(self, x: Tensor, activation: str, out: Tensor) -> Tensor:
        activation_op.check(x, activation, out, gated=False)
        return out.copy_(activate(x, activation))

    def add_rows(self, x: Tensor, table: Tensor, rows: Tensor) -> Tensor:
        rows_op.check("add_rows", table, rows, x)
        return x.add_(_rows("add_rows", table, rows))

    def gather_rows(self, x: Tensor, rows: Tensor, out: Tensor) -> Tensor:
        rows_op.check("gather_rows", x, rows, out)
        return out.copy_(_rows("gather_rows", x, rows))

    def scatter_rows(self, x: Tensor, rows: Tensor, out: Tensor) -> Tensor:
        rows_op.check("scatter_rows", out, rows, x)
        _rows("scatter_rows", out, rows)
        return out.index_copy_(0, rows.long(), x)

    def spread_columns(self, x: Tensor, columns: Tensor, out: Tensor) -> Tensor:
        rows_op.check_columns(x, columns, out)
        if bool(((columns < 0) | (columns >= out.shape[1])).any()):
            raise rows_op.refuse_row("spread_columns", out.shape[1], "columns")
        return out.fill_(-torch.inf).index_copy_(1, columns.long(), x)

    def draft_chain(self, forward: Forward, shape: ChainShape) -> None:
        """Steps are taken one by one."""

    def route(
        self, logits: Tensor, routing: ExpertRouting, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        moe_op.check_route(logits, routing, bias)
        return moe.route(logits, routing, bias)

    def combine_experts(self, y: Tensor, places: Tensor, weights: Tensor, out: Tensor) -> Tensor:
        return moe.combine(y, places, weights, out)

    def add_gated_rows(self, x: Tensor, gate: Tensor, out: Tensor) -> Tensor:
        moe_op.check_rows("add_gated_rows", x, gate, out)
        return out.add_(x * gate.sigmoid())

    def scale_rows(self, x: Tensor, scales: Tensor, out: Tensor) -> Tensor:
        moe_op.check_rows("scale_rows", x, scales, out)
        return out.copy_(x * scales)

    def sample(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        sampling_op.check(logits, batch)
        return sampling.sample(logits, batch)

    def sampling_probabilities(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        sampling_op.check(logits, batch)
        return sampling.sampling_probabilities(logits, batch)

    def token_logprobs(
        self, logits: Tensor, token_ids: Tensor, num_top: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        sampling_op.check_logprobs(logits, token_ids, num_top)
        return sampling.token_logprobs(logits, token_ids, num_top)


def _rows(op: str, table: Tensor, rows: Tensor) -> Tensor:
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(table):
        raise rows_op.refuse_row(op, len(table))
    return table[rows.long()]
