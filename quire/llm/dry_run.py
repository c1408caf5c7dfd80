"""What ``quire serve`` would do, told without loading weights: ranks, memory, exchanges."""

from __future__ import annotations

from collections.abc import Iterator

from quire.core.config import EngineConfig
from quire.core.machine import Machine
from quire.core.memory_budget import format_bytes
from quire.core.parallel_costs import LINKS, SplitShape
from quire.core.parallel_plan import PlannedLoad
from quire.core.parallel_report import report_lines
from quire.llm.inferred_methods import infer_methods
from quire.llm.memory_needs import engine_demand
from quire.models.config_reader import read_model_config
from quire.models.hub import resolve_model
from quire.runner.parallel.device_map import map_devices


def dry_run_lines(config: EngineConfig, machine: Machine) -> Iterator[str]:
    """Give lines on one model.

    Raises:
        ModelLoadError: There is no such model, or it cannot be used.
        ConfigError: A setting is impossible.
    """
    path = resolve_model(config.model.model, config.model.revision)
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
    link = LINKS["shared-memory"]
    yield from report_lines(
        load,
        layout,
        link,
        exact=parallel.exact_tensor_parallel,
        whole_experts=parallel.enable_expert_parallel,
    )
