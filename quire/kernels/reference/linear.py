"""``y = x @ weight.T + bias`` in plain torch, one row at a time; x as matrices want it rounded."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from quire.core.errors import UnsupportedInputError
from quire.kernels.backend import Weight
from quire.kernels.batch.forward_batch import BatchRows
from quire.kernels.linear import held_dtype
from quire.kernels.matrices.activation_scheme import FINE, ActivationScheme, round_rows
from quire.kernels.matrices.host_tensor import HostTensor
from quire.kernels.packed_weights import PackedWeights

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class ReferenceLinear:
    """Floats rounded to their dtype, quantized weights as they are, multiplied in float32."""

    def __init__(
        self,
        weights: Sequence[Weight],
        biases: Sequence[HostTensor] = (),
        dtype: str | None = None,
        exact_activations: bool = True,
    ) -> None:
        dtype = held_dtype(weights, dtype)
        if dtype not in DTYPES:
            raise UnsupportedInputError(
                f"[linear] dtype must be one of {', '.join(DTYPES)}; got {dtype}."
            )
        self.packed: Sequence[PackedWeights] = ()
        # Quantized among them make all of it float32.
        self.weight = torch.cat([_values(weight, DTYPES[dtype]) for weight in weights])
        self.out_features, self.in_features = self.weight.shape
        rules = [None if exact_activations else _rule(weight) for weight in weights]
        sizes = [weight.shape[0] for weight in weights]
        self._rules = list(zip(rules, sizes, strict=True))
        self.nbytes = self.weight.nbytes
        self.bias = torch.zeros(self.out_features)
        if biases:
            self.bias = torch.cat([torch.from_numpy(bias.float32().copy()) for bias in biases])
        if self.bias.shape != (self.out_features,):
            raise UnsupportedInputError(
                f"[linear] biases must stack to ({self.out_features},); "
                f"got {tuple(self.bias.shape)}."
            )

    def __call__(
        self, x: torch.Tensor, out: torch.Tensor | None = None, rows: BatchRows | None = None
    ) -> torch.Tensor:
        """Multiply row by row: a matrix product of several rows may round differently."""
        if out is None:
            out = torch.empty(x.shape[0], self.out_features)
        first = 0
        for rule, size in self._rules:
            part = slice(first, first + size)
            weight, bias = self.weight[part].float(), self.bias[part]
            for row, result in zip(_rounded(rule, x), out, strict=True):
                result[part].copy_(weight @ row + bias)
            first += size
        return out

    def lookup(
        self, ids: torch.Tensor, out: torch.Tensor | None = None, rows: BatchRows | None = None
    ) -> torch.Tensor:
        """Return weight rows ``ids`` as float32."""
        found = self.weight[ids.long()].float()
        return found if out is None else out.copy_(found)


def _rule(weight: Weight) -> ActivationScheme | None:
    form = None if isinstance(weight, HostTensor) else weight.form
    rule = None if form is None else form.activations
    return None if rule == FINE else rule  # the engine's own, and nearly exact


def _rounded(rule: ActivationScheme | None, x: torch.Tensor) -> torch.Tensor:
    if rule is None:
        return x
    return torch.from_numpy(round_rows(rule, x.cpu().numpy()).float32()).to(x.device)


def _values(weight: Weight, dtype: torch.dtype) -> torch.Tensor:
    if isinstance(weight, PackedWeights):
        raise UnsupportedInputError(
            f"[linear] {weight.name} must not be packed for another device."
        )
    values = torch.from_numpy(weight.float32().copy())
    return values.to(dtype) if isinstance(weight, HostTensor) else values
