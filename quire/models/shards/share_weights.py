"""A model's tensors as one of several ranks holds them: shapes, and which rows of each.

Rows are counted in the kernels' order. D model dim, N query heads, K KV heads, H head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from quire.models.matrix_rows import Rows
from quire.models.shards.shares import Share
from quire.models.weight_map import LinearWeights, MLPWeights, WeightMap


class ShareWeights(WeightMap):
    """The tensors of a rank; what it does not divide is that of the whole model.

    Args:
        whole: Of the model.
        share: The rank's.
        keeps_whole: Whether a linear stays whole, because its rows do not stand alone.
    """

    def __init__(
        self, whole: WeightMap, share: Share, keeps_whole: Callable[[LinearWeights], bool]
    ) -> None:
        super().__init__(share.config(whole.config), whole.names)
        self.whole, self.share, self._keeps_whole = whole, share, keeps_whole

    def qkv(self, layer: int) -> LinearWeights:
        """The rank's heads."""
        return self._either(self.whole.qkv(layer), super().qkv(layer))

    def queries(self, layer: int) -> LinearWeights:
        """The rank's heads."""
        return self._either(self.whole.queries(layer), super().queries(layer))

    def attention_output(self, layer: int) -> LinearWeights:
        """Some of D, of all columns."""
        return self._outputs(self.whole.attention_output(layer))

    def mlp(self, layer: int) -> MLPWeights | None:
        """Some of the middle, and some of D of the whole middle."""
        whole, own = self.whole.mlp(layer), super().mlp(layer)
        if whole is None or own is None:
            return None
        return MLPWeights(self._either(whole.gate_up, own.gate_up), self._outputs(whole.down))

    def mlps(self, layer: int) -> list[MLPWeights]:
        """Those of the rank, experts first."""
        mlp, experts = self.mlp(layer), self.experts(layer)
        own = [expert for number, expert in enumerate(experts) if number in self.share.experts]
        return [*own, *([] if mlp is None else [mlp])]

    def experts(self, layer: int) -> list[MLPWeights]:
        """All, by their numbers."""
        return self.whole.experts(layer)

    def _vocabulary(self, module: str) -> LinearWeights:
        return LinearWeights((module,), (len(self.share.tokens),), self.config.hidden_size)

    def _outputs(self, whole: LinearWeights) -> LinearWeights:
        return self._either(whole, replace(whole, rows=(len(self.share.outputs),)))

    def _either(self, whole: LinearWeights, own: LinearWeights) -> LinearWeights:
        return whole if self._keeps_whole(whole) else own


@dataclass(slots=True)
class OwnRows:
    """Which rows a rank takes of tensors; of those that are not here it takes all.

    Attributes:
        kept: By the name of a tensor.
        outputs: The same of matrices that are stored (in, out).
        linears: By the modules of a linear, which of its outputs, also where it stays whole.
    """

    kept: dict[str, Rows] = field(default_factory=dict)
    outputs: dict[str, Rows] = field(default_factory=dict)
    linears: dict[tuple[str, ...], Rows] = field(default_factory=dict)


def own_rows(weights: ShareWeights, keeps_whole: Callable[[LinearWeights], bool]) -> OwnRows:
    """Return the rows of a rank's tensors."""
    found = OwnRows()
    for linear, parts in _linears(weights):
        starts = np.cumsum((0, *linear.rows[:-1]))
        found.linears[linear.modules] = np.concatenate(
            [start + part for start, part in zip(starts, parts, strict=True)]
        )
        if keeps_whole(linear):
            continue
        for module, part in zip(linear.modules, parts, strict=True):
            (found.outputs if linear.transposed else found.kept)[f"{module}.weight"] = part
            if linear.bias:
                found.kept[f"{module}.bias"] = part
    share, whole = weights.share, weights.whole
    heads = np.array(share.heads), np.array(share.kv_heads)
    for layer in range(whole.config.num_layers):
        if whole.config.attention_sinks:
            found.kept[whole.sinks(layer)] = heads[0]
        if whole.config.qk_norm == "layer_of_heads":
            for norm, rows in zip(whole.qk_norm(layer), heads, strict=True):
                found.kept[f"{norm.module}.weight"] = rows
    return found


def _linears(weights: ShareWeights) -> Iterator[tuple[LinearWeights, list[Rows]]]:
    """Yield the linears of the model that are divided, with a rank's rows of each matrix."""
    whole, share = weights.whole, weights.share
    tokens, outputs = np.array(share.tokens), np.array(share.outputs)
    for linear in (whole.embedding(), whole.head()):
        yield linear, [tokens]
    for layer in range(whole.config.num_layers):
        yield from _attention(whole, share, layer)
        yield whole.attention_output(layer), [outputs]
        mlp = whole.mlp(layer)
        if mlp is not None:
            is_dense = whole.config.layer_moe(layer) is None
            middle = np.array(share.width if is_dense else share.shared)
            yield mlp.gate_up, _stacked(mlp.gate_up, middle, whole.config.gated_mlp, mlp.down)
            yield mlp.down, [outputs]


def _stacked(gate_up: LinearWeights, middle: Rows, gated: bool, down: LinearWeights) -> list[Rows]:
    """Return the rows of gate and up, one matrix or two."""
    if not gated or len(gate_up.modules) == 2:
        return [middle] * len(gate_up.modules)
    return [np.concatenate([middle, down.columns + middle])]


def _attention(
    whole: WeightMap, share: Share, layer: int
) -> Iterator[tuple[LinearWeights, list[Rows]]]:
    config = whole.config
    size, (num, kv) = config.head_dim, (config.num_heads, config.num_kv_heads)
    if config.latent is not None:
        yield whole.queries(layer), [_of_heads(share.heads, size)]
        heads = config.latent.key_dim + config.latent.value_dim
        yield whole.latent_heads(layer), [_of_heads(share.heads, heads)]
        return
    parts = [_of_heads(own, size) for own in (share.heads, share.kv_heads, share.kv_heads)]
    qkv = whole.qkv(layer)
    if len(qkv.modules) == 1:
        firsts = (0, num * size, (num + kv) * size)
        parts = [np.concatenate([a + part for a, part in zip(firsts, parts, strict=True)])]
    yield qkv, parts


def _of_heads(heads: range, size: int) -> Rows:
    return np.arange(heads.start * size, heads.stop * size)
