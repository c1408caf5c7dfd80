"""A linear whose matrix is held in NF4 and never trained; what is trained lies next to it.

N rows (outputs), K columns (inputs), T tokens. Source: Dettmers et al. 2023 (QLoRA).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from quire.kernels.matrices.host_tensor import HostTensor
from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.quantization.rounding_schemes import NF4, create_scheme, quantize


def round_to_nf4(name: str, weight: np.ndarray, threads: int = 1) -> QuantizedTensor:
    """Round a matrix (N, K) float32 to NF4, in groups of 64 columns.

    Raises:
        ModelLoadError: A weight is infinite or NaN.
    """
    return quantize(HostTensor(name, "float32", weight), create_scheme("nf4"), threads)


class FrozenLinear(torch.nn.Linear):
    """A linear in place of one of floats; its ``weight`` is made anew whenever it is asked for.

    Args:
        name: The module's name, for messages.
        linear: The linear to replace: its matrix is rounded, its bias stays.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    pairs: torch.Tensor

    def __init__(self, name: str, linear: torch.nn.Linear) -> None:
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach().float().cpu().numpy()
        made = round_to_nf4(f"{name}.weight", weight, torch.get_num_threads())
        self.group_size = made.group_size
        codes = np.pad(made.codes, ((0, 0), (0, -made.codes.shape[1] % 2)))
        self.register_buffer("codes", torch.from_numpy(codes[:, ::2] << 4 | codes[:, 1::2]))
        self.register_buffer("scales", torch.from_numpy(made.scales))
        book = torch.from_numpy(NF4)
        pairs = torch.stack((book.repeat_interleave(16), book.repeat(16)), dim=1)
        self.register_buffer("pairs", pairs, persistent=False)
        self.bias = linear.bias

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]
        """The rounded matrix, (N, K) float32."""
        values = self.pairs[self.codes.int()].reshape(self.out_features, -1)[:, : self.in_features]
        scales = self.scales.float().repeat_interleave(self.group_size, dim=1)
        return values * scales[:, : self.in_features]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return (..., N) of inputs (..., K); no float matrix is kept for the gradient."""
        output: torch.Tensor = _Multiply.apply(input, self)  # type: ignore[no-untyped-call]
        return output if self.bias is None else output + self.bias


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, linear: FrozenLinear) -> torch.Tensor:
        ctx.linear = linear
        return inputs @ linear.weight.T.to(inputs.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0] @ ctx.linear.weight.to(gradients[0].dtype), None
