"""The choice of a model's division: within a node by layers' shards, across nodes by stages.

Arithmetic alone, of what fits; it starts nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.planner.device_map import Room, map_line, place_layers
from quire.planner.parallel_costs import (
    SLOW_RATE,
    Interconnect,
    RankMemory,
    SplitShape,
    kv_heads_of,
    rank_memory,
)
from quire.settings.parallel_layout import ParallelLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Equal devices.

    Attributes:
        num_nodes: Number of machines.
        node_devices: Number of devices of each machine.
        device_bytes: Bytes that a rank may use on a device.
        link: The link between devices of one machine.
    """

    num_nodes: int
    node_devices: int
    device_bytes: int
    link: Interconnect


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLoad:
    """The load that a division shall serve.

    Attributes:
        shape: The model.
        spec: The model's KV cache in one process.
        weight_bytes: Bytes of the whole model's weights.
        kv_tokens: Number of tokens of all sequences at once.
        max_rows: Number of tokens of the largest step.
    """

    shape: SplitShape
    spec: KVCacheSpec
    weight_bytes: int
    kv_tokens: int
    max_rows: int

    def rank_bytes(self, layout: ParallelLayout) -> int:
        """Return what the rank needs that needs most."""
        return max(one.total(self.kv_tokens) for one in self._ranks(layout))

    def layers_bytes(self, layers: range) -> int:
        """Return what a process needs that has some layers, as a stage if they are not all."""
        after = self.shape.num_layers - layers.stop
        counts = tuple(count for count in (layers.start, len(layers), after) if count)
        ranks = self._ranks(ParallelLayout(pipeline=len(counts), counts=counts))
        return ranks[1 if layers.start else 0].total(self.kv_tokens)

    def _ranks(self, layout: ParallelLayout) -> list[RankMemory]:
        return rank_memory(self.shape, self.spec, layout, self.weight_bytes, self.max_rows)


@dataclass(frozen=True, slots=True)
class LayoutCost:
    """A layout, what its fullest rank needs, and on how many nodes it stands."""

    layout: ParallelLayout
    rank_bytes: int
    num_nodes: int


@dataclass(frozen=True, slots=True)
class ParallelPlan:
    """The layouts of the fewest devices that hold the model, best first, and why.

    ``candidates`` is empty where the fleet does not hold it.
    """

    candidates: tuple[LayoutCost, ...]
    reasons: tuple[str, ...]


def plan_layout(load: PlannedLoad, fleet: Fleet) -> ParallelPlan:
    """Choose a layout: the fewest devices that hold the model, as every division has a cost.

    Shards of one layer stay within a node and, over a slow link, are two at most; stages may stand
    on several nodes.
    """
    found = [one for one in _candidates(load, fleet) if one.rank_bytes <= fleet.device_bytes]
    if not found:
        least = min(_candidates(load, fleet), key=lambda one: one.rank_bytes)
        return ParallelPlan((), (
            f"the model must fit in {fleet.device_bytes / 1e9:.1f} GB of each device; the best "
            f"division, {_name(least.layout)}, needs {least.rank_bytes / 1e9:.1f} GB. quire calc "
            "fit shows what lowers it.",
        ))  # fmt: skip
    fewest = min(one.layout.size for one in found)
    chosen = [one for one in found if one.layout.size == fewest]
    chosen.sort(key=lambda one: (_is_slow(one.layout, fleet), -one.layout.tensor))
    first = chosen[0]
    if fewest == 1:
        reason = (
            f"it fits one device ({first.rank_bytes / 1e9:.1f} of {fleet.device_bytes / 1e9:.1f} "
            "GB): do not divide it. Ranks would wait for each other in every layer; more devices "
            "serve more requests as replicas (--data-parallel-size)."
        )
        return ParallelPlan(tuple(chosen), (reason,))
    reasons = [f"{fewest} devices are the fewest that hold it"]
    if first.layout.tensor > 1:
        reasons.append(f"{first.layout.tensor} shards of each layer stay within a node")
    if first.layout.pipeline > 1:
        where = "across nodes" if first.num_nodes > 1 else "in one node"
        reasons.append(f"{first.layout.pipeline} stages {where}, which exchange rows once each")
    if fleet.link.rate < SLOW_RATE and fewest > 2:
        reasons.append(f"{fleet.link.title} is slow for more than 2 shards of each layer")
    return ParallelPlan(tuple(chosen), tuple(reasons))


def place_load(load: PlannedLoad, rooms: Sequence[Room]) -> tuple[ParallelLayout, str]:
    """Return the stages that unequal devices have room for, and a line that says which.

    Raises:
        ConfigError: The devices do not hold the model.
    """
    placed = place_layers(load.shape.num_layers, lambda _, layers: load.layers_bytes(layers), rooms)
    counts = tuple(len(stage.layers) for stage in placed)
    return ParallelLayout(pipeline=len(placed), counts=counts), map_line(placed)


def _is_slow(layout: ParallelLayout, fleet: Fleet) -> bool:
    return layout.tensor > 2 and fleet.link.rate < SLOW_RATE


def _candidates(load: PlannedLoad, fleet: Fleet) -> list[LayoutCost]:
    """Return what is possible: an even part of a node, or whole nodes; shards in powers of two."""
    found = []
    tensor = 1
    while tensor <= fleet.node_devices:
        heads = kv_heads_of(load.shape, tensor)
        node_stages = fleet.node_devices // tensor
        most = min(node_stages * fleet.num_nodes, load.shape.num_layers)
        if len(set(heads)) == 1:  # else the shard with one head more decides
            for pipeline in range(1, most + 1):
                layout = ParallelLayout(tensor, pipeline)
                if fleet.node_devices % layout.size and layout.size % fleet.node_devices:
                    continue
                nodes = -(-pipeline // node_stages)
                found.append(LayoutCost(layout, load.rank_bytes(layout), nodes))
        tensor *= 2
    return found


def _name(layout: ParallelLayout) -> str:
    return f"TP={layout.tensor} x PP={layout.pipeline}"
