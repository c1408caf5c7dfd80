"""Division of the linears of a model over ranks: by outputs, by inputs, or not at all.

Inputs are divided where groups of weights that share a scale end, blocks of a file, and groups of
activations that are rounded together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from quire.checkpoints.gguf.gguf_checkpoint import GgufEntry
from quire.checkpoints.quantized.quantized_checkpoint import MatrixEntry
from quire.checkpoints.rank_files import RankEntry
from quire.checkpoints.tensor_source import NamedTensors
from quire.core.model.model_config import ModelConfig
from quire.models.shards.shares import find_heads
from quire.models.weight_map import LinearWeights, WeightMap
from quire.quantization.quantization_plan import QuantizationPlan

#: Most activations that kernels round together; a divisor of it where fewer are.
ROUNDED_TOGETHER = 128


@dataclass(slots=True)
class Cuts:
    """Linears by the modules that they are stacked of; the others are divided by outputs.

    Attributes:
        whole: Linears that each rank has whole: outputs are mixed with each other after they are
            computed.
        summed: Linears divided by inputs.
        unit: Number of inputs of an MLP that shares are multiples of.
        unsummed: Reasons why linears are not divided by inputs that would be, by their modules.
    """

    whole: set[tuple[str, ...]] = field(default_factory=set)
    summed: set[tuple[str, ...]] = field(default_factory=set)
    unit: int = 1
    unsummed: dict[tuple[str, ...], str] = field(default_factory=dict)


def find_cuts(
    tensors: NamedTensors, weights: WeightMap, plan: QuantizationPlan, size: int, exact: bool
) -> Cuts:
    """Return the division of a checkpoint's linears.

    Args:
        tensors, weights: The checkpoint's.
        plan: The plan of what is rounded when the checkpoint is loaded.
        size: Number of ranks.
        exact: Whether no linear may be divided by inputs.
    """
    found, heads = Cuts(), [own for own, _ in find_heads(weights.config, size)]
    for linear in _linears(weights):
        if any(_is_rotated(tensors, module) for module in linear.modules):
            found.whole.add(linear.modules)
    if exact:
        return found
    units = {}
    for linear, inputs in _last_linears(weights):
        unit = _unit(tensors, plan, linear)
        if unit is None:
            found.unsummed[linear.modules] = "its inputs have scales in common"
        elif inputs is None and not _fit_heads(weights.config, heads, unit):
            found.unsummed[linear.modules] = f"heads do not end where {unit} of its inputs do"
        else:
            units[linear.modules] = unit if inputs is not None else 1, inputs
    found.unit = math.lcm(*(unit for unit, _ in units.values()))
    for modules, (_, inputs) in units.items():
        if inputs is not None and found.unit * size > inputs:
            found.unsummed[modules] = f"it has fewer than {size} times {found.unit} inputs"
        elif modules not in found.whole:
            found.summed.add(modules)
    return found


def _linears(weights: WeightMap) -> Iterator[LinearWeights]:
    for layer in range(weights.config.num_layers):
        yield from weights.attention_inputs(layer)
        yield weights.attention_output(layer)
        mlp = weights.mlp(layer)
        yield from mlp or ()


def _last_linears(weights: WeightMap) -> Iterator[tuple[LinearWeights, int | None]]:
    """Yield linears that end a part of a layer, with the inputs of those that end an MLP."""
    for layer in range(weights.config.num_layers):
        yield weights.attention_output(layer), None
        mlp = weights.mlp(layer)
        if mlp is not None:
            yield mlp.down, mlp.down.columns


def _fit_heads(config: ModelConfig, heads: list[range], unit: int) -> bool:
    """Tell whether heads are divided, and where groups of inputs end."""
    each = config.attended_dim // config.num_heads
    return len(heads[0]) < config.num_heads and all(own.start * each % unit == 0 for own in heads)


def _unit(tensors: NamedTensors, plan: QuantizationPlan, linear: LinearWeights) -> int | None:
    """Return of which number of inputs a share must be a multiple; None if there is none."""
    (module,) = linear.modules
    entry = tensors.entry(f"{module}.weight")
    if isinstance(entry, MatrixEntry | RankEntry) and entry.form is not None:
        form = entry.form
        if form.rotation or form.has_input_order or form.activations or linear.transposed:
            return None
        # A scale of a row is as good for a part of it.
        size = form.group_size if form.group_size < linear.columns else 1
        return math.lcm(size, ROUNDED_TOGETHER)
    if isinstance(entry, GgufEntry) and entry.layout.is_quantized:
        return math.lcm(entry.layout.block_size, ROUNDED_TOGETHER)
    scheme = plan.scheme_of(module, plan.layers)
    if scheme is None:
        return 1
    size = scheme.columns_per_scale(linear.columns)
    return None if size >= linear.columns else math.lcm(size, ROUNDED_TOGETHER)


def _is_rotated(tensors: NamedTensors, module: str) -> bool:
    entry = tensors.entry(f"{module}.weight")
    form = entry.form if isinstance(entry, MatrixEntry | RankEntry) else None
    return form is not None and form.rotation is not None
