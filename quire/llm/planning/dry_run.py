"""The plan of ``quire serve``, made from the checkpoint without loading weights, as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from quire.llm.planning.model_plan import plan_model
from quire.llm.replicas.load_replicas import own_engines
from quire.llm.replicas.roles import NO_ROLES, Roles
from quire.planner.parallel_costs import SplitShape
from quire.planner.plan_report import engine_lines, rank_lines, ranks_text, role_lines
from quire.runner.memory.engine_plan import EnginePlan
from quire.settings.config import EngineConfig
from quire.system.machine import Machine


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
    yield from engine_lines(config.model.model, config.parallel)
    for own in own_engines(config, machine, roles):
        plan = plan_model(own, machine)
        role = None if own.transfer is None else own.transfer.role
        yield from role_lines(config.parallel.data_parallel_size, roles.num_prefill, role)
        yield from _plan_lines(own, plan, machine)


def _plan_lines(config: EngineConfig, plan: EnginePlan, machine: Machine) -> Iterator[str]:
    """Give lines on an engine: its ranks, the memory of each, and what they exchange."""
    resolved = plan.resolved
    parallel = resolved.config.parallel
    yield f"{config.model.model}: {ranks_text(parallel.layout)}"
    yield from (*resolved.notices, *plan.choices)
    plans = [rank.divide(machine) for rank in plan.ranks]
    if parallel.layout.size == 1:
        yield from (*plans[0].choices, *plans[0].lines())
        return
    undivided = replace(config, parallel=parallel.undivided())
    yield from rank_lines(
        parallel,
        SplitShape.of_config(plan.model_config),
        plan_model(undivided, machine).ranks[0].whole,
        resolved.memory_bytes,
        [one.budget for one in plans],
    )
