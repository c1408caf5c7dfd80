"""Medusa heads: each a few residual blocks and an output matrix, of its own or the target's.

Head k (from 0) reads what the target's final norm makes of position i and predicts token
i + 2 + k. B states, D model dim, V vocabulary.

Source: Cai et al. 2024 (Medusa).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quire.checkpoints.tensor_source import check_tensors
from quire.core.errors import ModelLoadError
from quire.core.model.forward_work import ForwardWork
from quire.kernels.backend import Array, Backend, Linear
from quire.models.draft_heads.head_tensors import HeadBuilder, HeadTensors, refuse_width
from quire.models.model import Model

#: Published names: of the block (head, layer), and of the head's own output matrix.
BLOCK = re.compile(r"(?:medusa_head\.)?(\d+)\.(\d+)\.linear|blocks\.(\d+)\.layers\.(\d+)")
OUTPUT = re.compile(r"(?:medusa_head\.)?(\d+)\.\d+|lm_heads\.(\d+)|lm_head")


@dataclass(frozen=True, slots=True)
class MedusaNames:
    """Modules of the heads.

    Attributes:
        blocks: Block modules of each head, in order.
        outputs: Output module of each head, or one for all; none where the target's is used.
    """

    blocks: tuple[tuple[str, ...], ...]
    outputs: tuple[str, ...]


class MedusaHeads:
    """The heads, loaded.

    Args:
        backend: The target's backend.
        blocks: Linears of each head's blocks; a block is ``x + silu(linear(x))``.
        outputs: Output matrix of each head.
        weight_bytes: Bytes of all weights that are not the target's.
    """

    def __init__(
        self,
        backend: Backend,
        blocks: Sequence[Sequence[Linear]],
        outputs: Sequence[Linear],
        weight_bytes: int,
    ) -> None:
        self.backend = backend
        self.weight_bytes = weight_bytes
        self.hidden_size = outputs[0].in_features
        self.vocab_size = outputs[0].out_features
        self._blocks = blocks
        self._outputs = outputs
        self.reserve(1)

    @property
    def num_heads(self) -> int:
        """Number of tokens that can be drafted."""
        return len(self._blocks)

    def work(self, head: int, num_rows: int) -> ForwardWork:
        """Return what computing a head for some rows takes, estimated."""
        linears = (*self._blocks[head], self._outputs[head])
        flops = sum(2 * linear.in_features * linear.out_features for linear in linears)
        return ForwardWork(flops * num_rows, sum(linear.nbytes for linear in linears))

    def reserve(self, max_rows: int) -> None:
        """Allocate for that many states; more reserve again."""
        backend, dtype = self.backend, self.backend.activation_dtype
        self._rows: Array = backend.from_numpy(np.arange(max_rows, dtype=np.int32))
        shape = max_rows, self.hidden_size
        self._states, self._added = backend.empty(shape, dtype), backend.empty(shape, dtype)
        self._logits = backend.empty((max_rows, self.vocab_size))

    def logits(self, states: Array, rows: Array, head: int) -> Array:
        """Compute one head.

        Args:
            states: (P, D).
            rows: (B,) int32, rows of the states.
            head: Number of the head.

        Returns:
            (B, V) float32; the next call overwrites it.
        """
        num_rows = rows.shape[0]
        if num_rows > self._rows.shape[0]:
            self.reserve(num_rows)
        x, added = self._states[:num_rows], self._added[:num_rows]
        self.backend.gather_rows(states, rows, x)
        for linear in self._blocks[head]:
            linear(x, added)
            self.backend.activation(added, "silu", added)
            self.backend.add_rows(x, added, self._rows[:num_rows])
        return self._outputs[head](x, self._logits[:num_rows])


def read_medusa(tensors: HeadTensors, hidden_size: int, vocab_size: int) -> MedusaNames:
    """Find the heads of a folder, by its tensors: published configurations count them wrong.

    Raises:
        ModelLoadError: The tensors are not heads of a target of that hidden size and vocabulary.
    """
    blocks: dict[tuple[int, int], str] = {}
    outputs: dict[int, str] = {}
    for name in tensors.names:
        module = name.removesuffix(".weight").removesuffix(".bias")
        if found := BLOCK.fullmatch(module):
            head, layer = (int(n) for n in found.groups() if n is not None)
            blocks[head, layer] = module
        elif name.endswith(".weight") and (found := OUTPUT.fullmatch(module)):
            number = next((n for n in found.groups() if n is not None), "0")
            outputs[int(number)] = module
    num_heads = 1 + max((head for head, _ in blocks), default=-1)
    num_layers = 1 + max((layer for _, layer in blocks), default=-1)
    numbers = [(h, n) for h in range(num_heads) for n in range(num_layers)]
    if not numbers or sorted(blocks) != numbers:
        raise ModelLoadError(
            f"[load] {tensors.path} must hold Medusa heads, 0.0.linear.weight and so on, without "
            f"gaps; got {', '.join(sorted(tensors.names)[:4])}."
        )
    shared = set(outputs.values()) == {"lm_head"}
    if outputs and not shared and sorted(outputs) != list(range(num_heads)):
        raise ModelLoadError(
            f"[load] {tensors.path} must hold an output matrix for each of {num_heads} Medusa "
            f"heads, one for all, or none; got those of {sorted(outputs)}."
        )
    for output in outputs.values():
        size, width = tensors.matrix_shape(f"{output}.weight")
        refuse_width(tensors, f"{output}.weight", width, "hidden size", hidden_size)
        refuse_width(tensors, f"{output}.weight", size, "vocabulary", vocab_size)
    _, width = tensors.matrix_shape(f"{blocks[0, 0]}.weight")
    refuse_width(tensors, f"{blocks[0, 0]}.weight", width, "hidden size", hidden_size)
    shapes: dict[str, tuple[int, ...]] = {}
    for module in blocks.values():
        shapes[f"{module}.weight"] = hidden_size, hidden_size
        if f"{module}.bias" in tensors.names:
            shapes[f"{module}.bias"] = (hidden_size,)
    shapes |= {f"{module}.weight": (vocab_size, hidden_size) for module in outputs.values()}
    check_tensors(tensors, shapes, ())
    own = tuple(outputs[head] for head in sorted(outputs))
    return MedusaNames(
        tuple(tuple(blocks[h, n] for n in range(num_layers)) for h in range(num_heads)),
        own * num_heads if shared else own,
    )


def load_medusa(names: MedusaNames, builder: HeadBuilder, target: Model) -> MedusaHeads:
    """Make the heads."""
    made = {
        module: builder.linear([module], is_table=True) for module in dict.fromkeys(names.outputs)
    }
    blocks = [[builder.linear([module]) for module in head] for head in names.blocks]
    outputs = [made[module] for module in names.outputs] or [target.head] * len(blocks)
    return MedusaHeads(builder.backend, blocks, outputs, builder.weight_bytes)
