"""The engines of a model that run on other machines, and the port that they connect to."""

from __future__ import annotations

from dataclasses import replace

from quire.llm.load_state import Loading
from quire.llm.replicas.ray_engines import RayEngines
from quire.llm.replicas.ray_keeper import Wanted
from quire.llm.replicas.remote_engines import RemoteEngines, listen_for_machines
from quire.settings.config import EngineConfig
from quire.system.log import LogFormat
from quire.system.machine import Machine


def engines_elsewhere(
    config: EngineConfig,
    machine: Machine,
    num_prefill: int,
    log_format: LogFormat,
    loading: Loading,
) -> RemoteEngines | None:
    """Return the port that engines of other machines connect to; None where there are none.

    Args:
        config: Settings of all engines.
        machine: The machine of the server.
        num_prefill: Engines that compute prompts for the others.
        log_format: Format of the log lines of engines that this server has started.
        loading: The progress of the model; cancelling it ends the wait for a cluster.

    Raises:
        QuireError: No engine can connect.
    """
    parallel = config.parallel
    if parallel.deals_engines:
        return listen_for_machines(config)
    if not parallel.places_engines:
        return None
    num_own = parallel.num_own_engines(num_prefill)
    numbers = list(range(num_own, parallel.data_parallel_size))
    threads = parallel.threads or max(1, machine.num_cores // (num_own * parallel.layout.size))
    config = replace(config, parallel=replace(parallel, threads=threads))
    return RayEngines(Wanted(numbers, num_own, config, log_format), loading).engines
