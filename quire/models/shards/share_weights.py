"""A model's tensors as one of several ranks holds them: shapes, and the rows of each.

Rows are counted in the kernels' order. D model dim, N query heads, K KV heads, H head dim.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from quire.checkpoints.matrix_rows import Picks, Rows
from quire.models.shards.cuts import Cuts
from quire.models.shards.shares import Share
from quire.models.weight_map import LinearWeights, MLPWeights, WeightMap


class ShareWeights(WeightMap):
    """The tensors of a rank; those that it does not divide are the whole model's.

    Args:
        whole: Weights of the whole model.
        share: The rank's share.
        cuts: Division of the linears.
    """

    def __init__(self, whole: WeightMap, share: Share, cuts: Cuts) -> None:
        super().__init__(share.config(whole.config), whole.names, whole.layers)
        self.whole, self.share, self._cuts = whole, share, cuts

    def qkv(self, layer: int) -> LinearWeights:
        """The rank's heads."""
        return self._either(self.whole.qkv(layer), super().qkv(layer))

    def queries(self, layer: int) -> LinearWeights:
        """The rank's heads."""
        return self._either(self.whole.queries(layer), super().queries(layer))

    def attention_output(self, layer: int) -> LinearWeights:
        """Some rows of D with all columns, or all of D with some columns."""
        return self._last(self.whole.attention_output(layer), super().attention_output(layer))

    def mlp(self, layer: int) -> MLPWeights | None:
        """Some of the middle, and some rows of D with all of it or all of D with some of it."""
        whole, own = self.whole.mlp(layer), super().mlp(layer)
        if whole is None or own is None:
            return None
        up = self._either(whole.gate_up, own.gate_up)
        return MLPWeights(up, self._last(whole.down, own.down))

    def mlps(self, layer: int) -> list[MLPWeights]:
        """The rank's MLPs, experts first."""
        mlp, experts = self.mlp(layer), self.experts(layer)
        own = [expert for number, expert in enumerate(experts) if number in self.share.experts]
        return [*own, *([] if mlp is None else [mlp])]

    def experts(self, layer: int) -> list[MLPWeights]:
        """All experts whole, by their numbers; or some of the middle, and some of D, of each."""
        whole, outputs = self.whole.experts(layer), (len(self.share.outputs),)
        if not self.share.expert_width:
            return whole
        return [
            MLPWeights(own.gate_up, replace(mlp.down, rows=outputs))
            for own, mlp in zip(super().experts(layer), whole, strict=True)
        ]

    def _vocabulary(self, module: str) -> LinearWeights:
        return LinearWeights((module,), (len(self.share.tokens),), self.config.hidden_size)

    def _last(self, whole: LinearWeights, own: LinearWeights) -> LinearWeights:
        if whole.modules in self._cuts.summed:
            # One rank adds the bias.
            return replace(own, bias=own.bias and self.share.tokens.start == 0)
        return self._either(whole, replace(whole, rows=(len(self.share.outputs),)))

    def _either(self, whole: LinearWeights, own: LinearWeights) -> LinearWeights:
        return whole if whole.modules in self._cuts.whole else own


@dataclass(slots=True)
class OwnParts:
    """Parts of tensors that a rank takes.

    Attributes:
        picks: Parts by tensor.
        linears: Outputs of each linear, by its modules, also where it stays whole.
    """

    picks: Picks = field(default_factory=Picks)
    linears: dict[tuple[str, ...], Rows] = field(default_factory=dict)


def own_parts(weights: ShareWeights, cuts: Cuts) -> OwnParts:
    """Return what a rank takes of tensors."""
    found = OwnParts()
    picks = found.picks
    for alike, parts in _linears(weights):
        starts = np.cumsum((0, *alike[0].rows[:-1]))
        rows = np.concatenate([start + part for start, part in zip(starts, parts, strict=True)])
        for linear in alike:
            found.linears[linear.modules] = rows
            if linear.modules not in cuts.whole | cuts.summed:
                _add_rows(linear, parts, picks)
    _add_columns(weights, cuts, picks)
    share, whole = weights.share, weights.whole
    heads = np.array(share.heads), np.array(share.kv_heads)
    for layer in range(whole.config.num_layers):
        if whole.config.attention_sinks:
            picks.rows[whole.sinks(layer)] = heads[0]
        if whole.config.qk_norm == "layer_of_heads":
            for norm, rows in zip(whole.qk_norm(layer), heads, strict=True):
                picks.rows[f"{norm.module}.weight"] = rows
    return found


def _add_rows(linear: LinearWeights, parts: list[Rows], picks: Picks) -> None:
    for module, part in zip(linear.modules, parts, strict=True):
        (picks.outputs if linear.transposed else picks.rows)[f"{module}.weight"] = part
        if linear.bias:
            picks.rows[f"{module}.bias"] = part


def _add_columns(weights: ShareWeights, cuts: Cuts, picks: Picks) -> None:
    """Add the inputs of linears whose products are summed over ranks."""
    whole, share = weights.whole, weights.share
    for layer in range(whole.config.num_layers):
        is_dense, mlp = whole.config.layer_moe(layer) is None, whole.mlp(layer)
        output, each = whole.attention_output(layer), whole.config.attended_dim
        each //= whole.config.num_heads
        linears = [(output, range(share.heads.start * each, share.heads.stop * each))]
        if mlp is not None:
            linears.append((mlp.down, share.width if is_dense else share.shared))
        for linear, columns in linears:
            if linear.modules in cuts.summed:
                name = f"{linear.modules[0]}.weight"
                (picks.inputs if linear.transposed else picks.columns)[name] = columns


def _linears(weights: ShareWeights) -> Iterator[tuple[list[LinearWeights], list[Rows]]]:
    """Yield linears of the model that are divided alike, with a rank's rows of each matrix."""
    whole, share = weights.whole, weights.share
    tokens, outputs = np.array(share.tokens), np.array(share.outputs)
    for linear in (whole.embedding(), whole.head()):
        yield [linear], [tokens]
    for layer in range(whole.config.num_layers):
        for linear, parts in _attention(whole, share, layer):
            yield [linear], parts
        yield [whole.attention_output(layer)], [outputs]
        experts = whole.experts(layer) if share.expert_width else []
        if experts:
            first, inner = experts[0], np.array(share.expert_width)
            up = _stacked(first.gate_up, inner, True, first.down)
            yield [mlp.gate_up for mlp in experts], up
            yield [mlp.down for mlp in experts], [outputs]
        mlp = whole.mlp(layer)
        if mlp is not None:
            is_dense = whole.config.layer_moe(layer) is None
            middle = np.array(share.width if is_dense else share.shared)
            gated = whole.config.gated_mlp
            yield [mlp.gate_up], _stacked(mlp.gate_up, middle, gated, mlp.down)
            yield [mlp.down], [outputs]


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
