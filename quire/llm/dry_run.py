"""What ``quire serve`` would do, told without loading weights: ranks, memory, exchanges."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from quire.core.config import EngineConfig
from quire.core.expert_sharing import ExpertSharing
from quire.core.machine import Machine
from quire.core.memory_budget import format_bytes
from quire.core.parallel_costs import LINKS, SplitShape, shared_row_bytes
from quire.core.parallel_options import ParallelOptions
from quire.core.parallel_plan import PlannedLoad
from quire.core.parallel_report import report_lines
from quire.llm.inferred_methods import infer_methods
from quire.llm.memory_needs import engine_demand
from quire.llm.replicas.loading import divide
from quire.llm.replicas.sharing import find_sharings
from quire.models.config_reader import read_model_config
from quire.models.hub import resolve_model
from quire.models.shards.engine_model import ExpertPart
from quire.runner.parallel.device_map import map_devices


def dry_run_lines(config: EngineConfig, machine: Machine) -> Iterator[str]:
    """Give lines on one model.

    Raises:
        ModelLoadError: There is no such model, or it cannot be used.
        ConfigError: A setting is impossible.
    """
    path = resolve_model(config.model.model, config.model.revision)
    count = config.parallel.data_parallel_size
    if count > 1:
        yield f"{config.model.model}: {count} engines, with requests of their own"
        sharings = [one for one in find_sharings(config, count) if one is not None]
        num_own = count // config.parallel.nnodes
        if config.parallel.deals_engines:
            engines = config.parallel.engines_of
            yield from _node_lines(config.parallel, "engines", engines, "with the server")
        elif config.parallel.places_engines:
            num_own = 1
            yield "engine 0: with the server"
            yield f"engines 1 to {count - 1}: in a Ray cluster, spread over its nodes"
        config = divide(config, machine, num_own)
        if sharings:
            yield from _sharing_lines(path, config, machine, sharings)
            return
        yield "each of them:"
    model_config = read_model_config(path)
    config, mapped = map_devices(path, infer_methods(config), model_config, machine)
    demand, resolved = engine_demand(path, config, machine)
    parallel = config.parallel
    layout = parallel.layout
    load = PlannedLoad(
        shape=SplitShape.of_config(model_config),
        spec=demand.spec,
        weight_bytes=demand.weight_bytes,
        kv_tokens=demand.max_model_len,
        max_rows=config.scheduler.max_num_batched_tokens,
    )
    yield f"{config.model.model}: {layout.pipeline} stages of {layout.tensor} ranks"
    yield from (*mapped, *resolved.choices)
    yield (
        f"whole: weights {format_bytes(demand.weight_bytes)}, scratch "
        f"{format_bytes(demand.scratch_bytes)}, KV {format_bytes(demand.spec.token_bytes)} a "
        f"token; of this machine {format_bytes(resolved.memory_bytes)}"
    )
    if layout.size > 1 and demand.least_bytes <= resolved.memory_bytes:
        yield (
            "it fits one process: divide it for memory's sake only. More processes serve more "
            "requests as replicas (--data-parallel-size)."
        )
    if parallel.nnodes > 1:
        yield from _node_lines(parallel, "ranks", parallel.ranks_of, "rank 0 with the server")
    is_apart = parallel.machine_ranks % layout.tensor != 0  # shards of a layer
    link = LINKS["10gbe" if is_apart else "shared-memory"]
    yield from report_lines(
        load,
        layout,
        link,
        exact=parallel.exact_tensor_parallel,
        whole_experts=parallel.enable_expert_parallel,
    )


def _node_lines(
    parallel: ParallelOptions, what: str, numbers: Callable[[int], range], of_first: str
) -> Iterator[str]:
    """Give the map of engines, or of ranks, over machines."""
    for node in range(parallel.nnodes):
        own = ", this one" if node == parallel.node_rank else ""
        where = of_first if node == 0 else f"which go to {parallel.master_addr}"
        listed = ", ".join(map(str, numbers(node)))
        yield f"machine {node}{own}: {what} {listed}, {where}"


def _sharing_lines(
    path: Path, config: EngineConfig, machine: Machine, sharings: Sequence[ExpertSharing]
) -> Iterator[str]:
    """Give the map of engines that share experts, and what they send each other."""
    model, count = read_model_config(path), len(sharings)
    for sharing in sharings:
        demand, _ = engine_demand(path, replace(config, sharing=sharing), machine)
        numbers = ExpertPart(sharing.number, count).placement(model).of(sharing.number)
        yield (
            f"engine {sharing.number}: experts {numbers[0]} to {numbers[-1]} of each layer; "
            f"weights {format_bytes(demand.weight_bytes)}, scratch "
            f"{format_bytes(demand.scratch_bytes)}, KV {format_bytes(demand.spec.token_bytes)} a "
            "token"
        )
    shape = SplitShape.of_config(model)
    yield (
        f"a token's forward sends {shared_row_bytes(shape, count):,} bytes to other engines on "
        f"average, and as many come back: in {shape.num_moe_layers} layers of experts"
    )
