"""The plan of ``quire serve`` as text, without loading weights: ranks, memory, exchanges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from quire.core.counts import format_bytes
from quire.llm.planning.model_plan import plan_model
from quire.llm.replicas.loading import own_engines
from quire.llm.replicas.roles import NO_ROLES, Roles
from quire.planner.parallel_costs import LINKS, SplitShape
from quire.planner.parallel_report import exchange_lines
from quire.runner.memory.engine_plan import EnginePlan
from quire.settings.config import EngineConfig
from quire.settings.parallel_layout import ParallelLayout
from quire.settings.parallel_options import ParallelOptions
from quire.system.machine import Machine

#: What may be between processes of CPUs.
_LINKS = ("shared-memory", "100gbe", "10gbe")


def dry_run_lines(config: EngineConfig, machine: Machine, roles: Roles = NO_ROLES) -> Iterator[str]:
    """Yield the lines about one model.

    Args:
        config: The model's settings; ``data_parallel_size`` is the number of its engines of all
            roles, and the memory is for all of them.
        machine: The machine that it would run on.
        roles: Roles of the engines.

    Raises:
        ModelLoadError: The model does not exist, or it cannot be used.
        ConfigError: A setting is impossible.
    """
    name, count = config.model.model, config.parallel.data_parallel_size
    if count > 1:
        yield f"{name}: {count} engines, with requests of their own"
        yield from _engine_lines(config.parallel)
    for own in own_engines(config, machine, roles):
        plan = plan_model(own, machine)
        if own.transfer is not None:
            is_decode = own.transfer.role == "decode"
            num_alike = count - roles.num_prefill if is_decode else roles.num_prefill
            purpose = "outputs" if is_decode else "long prompts"
            several = f"{num_alike} engines for {purpose}, each of them:"
            yield f"1 engine for {purpose}:" if num_alike == 1 else several
        elif count > 1:
            yield "each of them:"
        yield from _plan_lines(own, plan, machine)


def _plan_lines(config: EngineConfig, plan: EnginePlan, machine: Machine) -> Iterator[str]:
    """Give lines on an engine: its ranks, the memory of each, and what they exchange."""
    resolved, model = plan.resolved, plan.model_config
    parallel = resolved.config.parallel
    layout = parallel.layout
    yield f"{config.model.model}: {_ranks_text(layout)}"
    yield from (*resolved.notices, *plan.choices)
    plans = [rank.divide(machine) for rank in plan.ranks]
    if layout.size == 1:
        yield from (*plans[0].choices, *plans[0].lines())
        return
    whole = plan_model(replace(config, parallel=parallel.undivided()), machine).ranks[0].whole
    yield (
        f"whole: weights {format_bytes(whole.weight_bytes)}, scratch "
        f"{format_bytes(whole.scratch_bytes)}, KV {format_bytes(whole.spec.token_bytes)} a "
        f"token; of this machine {format_bytes(resolved.memory_bytes)}"
    )
    if whole.least_bytes <= resolved.memory_bytes:
        yield (
            "it fits one process: divide it for memory's sake only. More processes serve more "
            "requests as replicas (--data-parallel-size)."
        )
    if parallel.nnodes > 1:
        yield from _node_lines(parallel, "ranks", parallel.ranks_of, "rank 0 with the server")
    yield from layout.lines(model.num_layers)
    num_blocks = min(one.budget.num_blocks for one in plans)
    for number, one in enumerate(plans):
        demand = one.budget.demand
        yield (
            f"rank {number}: weights {format_bytes(demand.weight_bytes)}, scratch and buffers "
            f"{format_bytes(demand.scratch_bytes)}, KV cache "
            f"{format_bytes(num_blocks * demand.block_bytes)} of {num_blocks - 1:,} blocks"
        )
    is_apart = parallel.machine_ranks % layout.tensor != 0  # shards of a layer
    links = sorted(_LINKS, key=lambda name: name != "10gbe") if is_apart else _LINKS
    yield from exchange_lines(
        SplitShape.of_config(model),
        layout,
        [LINKS[name] for name in links],
        exact=parallel.exact_tensor_parallel,
        whole_experts=parallel.enable_expert_parallel,
    )


def _ranks_text(layout: ParallelLayout) -> str:
    """Say how many ranks there are, and what each has."""
    if layout.size == 1:
        return "one process"
    shards, stages = f"{layout.tensor} shards of each layer", f"{layout.pipeline} stages"
    if layout.pipeline == 1:
        return f"{layout.size} ranks: {shards}"
    return f"{layout.size} ranks: {stages}" + (f" of {shards}" if layout.tensor > 1 else "")


def _engine_lines(parallel: ParallelOptions) -> Iterator[str]:
    """Give the map of engines, where some are on other machines."""
    if parallel.deals_engines:
        yield from _node_lines(parallel, "engines", parallel.engines_of, "with the server")
    elif parallel.places_engines:
        yield "engine 0: with the server"
        last = parallel.data_parallel_size - 1
        yield f"engines 1 to {last}: in a Ray cluster, spread over its nodes"


def _node_lines(
    parallel: ParallelOptions, what: str, numbers: Callable[[int], range], of_first: str
) -> Iterator[str]:
    """Give the map of engines, or of ranks, over machines."""
    for node in range(parallel.nnodes):
        own = ", this one" if node == parallel.node_rank else ""
        where = of_first if node == 0 else f"which go to {parallel.master_addr}"
        listed = ", ".join(map(str, numbers(node)))
        yield f"machine {node}{own}: {what} {listed}, {where}"
