"""The plan of engines and their ranks, as lines of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from quire.core.counts import format_bytes
from quire.core.plurals import counted, listed
from quire.planner.memory_budget import MemoryBudget, MemoryDemand
from quire.planner.parallel_costs import LINKS, SplitShape
from quire.planner.parallel_report import exchange_lines
from quire.settings.parallel_layout import ParallelLayout
from quire.settings.parallel_options import ParallelOptions

#: Links that may be between processes of CPUs.
_CPU_LINKS = ("shared-memory", "100gbe", "10gbe")


def engine_lines(name: str, parallel: ParallelOptions) -> Iterator[str]:
    """Give lines on the engines of a model, where it has several: their map over machines."""
    count = parallel.data_parallel_size
    if count == 1:
        return
    yield f"{name}: {count} engines, with requests of their own"
    if parallel.deals_engines:
        yield from _node_lines(parallel, "engine", parallel.engines_of, "with the server")
    elif parallel.places_engines:
        yield "engine 0: with the server"
        others = f"engines 1 to {count - 1}" if count > 2 else "engine 1"
        yield f"{others}: in a Ray cluster, spread over its nodes"


def role_lines(
    num_engines: int, num_prefill: int, role: Literal["prefill", "decode"] | None
) -> Iterator[str]:
    """Give the heading of the engines that are planned alike; none of a single engine.

    Args:
        num_engines: Engines of the model, of all roles.
        num_prefill: Engines among them that compute prompts for the others.
        role: Role of these engines; None where none has one.
    """
    if role is not None:
        num_alike = num_engines - num_prefill if role == "decode" else num_prefill
        purpose = "outputs" if role == "decode" else "long prompts"
        each = "" if num_alike == 1 else ", each of them"
        yield f"{counted(num_alike, 'engine')} for {purpose}{each}:"
    elif num_engines > 1:
        yield "each of them:"


def ranks_text(layout: ParallelLayout) -> str:
    """Return the number of ranks, and what each has."""
    if layout.size == 1:
        return "one process"
    shards, stages = f"{layout.tensor} shards of each layer", f"{layout.pipeline} stages"
    if layout.pipeline == 1:
        return f"{layout.size} ranks: {shards}"
    return f"{layout.size} ranks: {stages}" + (f" of {shards}" if layout.tensor > 1 else "")


def rank_lines(
    parallel: ParallelOptions,
    shape: SplitShape,
    whole: MemoryDemand,
    memory_bytes: int,
    budgets: Sequence[MemoryBudget],
) -> Iterator[str]:
    """Give lines on the ranks of a divided model: the memory of each, and what they exchange.

    Args:
        parallel: Settings of the division.
        shape: Shape of the model.
        whole: Demand of the model in one process.
        memory_bytes: Bytes of this machine for its ranks.
        budgets: Memory of each rank, divided.
    """
    layout = parallel.layout
    yield (
        f"whole: weights {format_bytes(whole.weight_bytes)}, scratch "
        f"{format_bytes(whole.scratch_bytes)}, KV {format_bytes(whole.spec.token_bytes)} a "
        f"token; of this machine {format_bytes(memory_bytes)}"
    )
    if whole.least_bytes <= memory_bytes:
        yield (
            "it fits one process: divide it for memory's sake only. More processes serve more "
            "requests as replicas (--data-parallel-size)."
        )
    if parallel.nnodes > 1:
        yield from _node_lines(parallel, "rank", parallel.ranks_of, "rank 0 with the server")
    yield from layout.lines(shape.num_layers)
    num_blocks = min(one.num_blocks for one in budgets)
    for number, one in enumerate(budgets):
        demand = one.demand
        yield (
            f"rank {number}: weights {format_bytes(demand.weight_bytes)}, scratch and buffers "
            f"{format_bytes(demand.scratch_bytes)}, KV cache "
            f"{format_bytes(num_blocks * demand.block_bytes)} of "
            f"{counted(num_blocks - 1, 'block')}"
        )
    is_apart = parallel.machine_ranks % layout.tensor != 0  # shards of a layer
    links = sorted(_CPU_LINKS, key=lambda name: name != "10gbe") if is_apart else _CPU_LINKS
    yield from exchange_lines(
        shape,
        layout,
        [LINKS[name] for name in links],
        exact=parallel.exact_tensor_parallel,
        whole_experts=parallel.enable_expert_parallel,
    )


def _node_lines(
    parallel: ParallelOptions, what: str, numbers: Callable[[int], range], of_first: str
) -> Iterator[str]:
    """Give the map of engines, or of ranks, over machines."""
    for node in range(parallel.nnodes):
        own = ", this one" if node == parallel.node_rank else ""
        is_one = len(numbers(node)) == 1
        where = f"which {'goes' if is_one else 'go'} to {parallel.master_addr}"
        if node == 0:
            where = "with the server" if is_one else of_first
        yield f"machine {node}{own}: {listed(what, numbers(node))}, {where}"
