"""Ranks as actors of a Ray cluster: placed, started, and asked why they are gone.

Ray only places and starts them; nothing of a step goes through it.
"""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress
from typing import Any

from quire.core import env
from quire.core.errors import ConfigError, ModelLoadError
from quire.core.log import get_logger
from quire.core.parallel_layout import ParallelLayout
from quire.runner.parallel.meeting import Address

log = get_logger(__name__)

#: How long a cluster may take to find room for all ranks.
PLACE_SECONDS = 300.0
_NO_RAY = (
    "[parallel] --distributed-executor-backend ray needs Ray; it is not installed. Run pip install "
    "'quire[ray]' on each node."
)


def _reach(address: str | None) -> None:
    """Try the cluster's address; Ray itself would go on for minutes.

    Raises:
        OSError: Nobody listens there.
    """
    if address is not None:
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), timeout=10).close()


class RankActor:
    """What Ray runs: one rank of an engine, in a process of its own."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def __repr__(self) -> str:
        """Return how Ray begins each line that this rank logs."""
        return f"rank {self._rank}"

    def run(self, address: Address, key: str) -> None:
        """Serve the driver until it needs no rank any more."""
        from quire.runner.parallel.remote_rank import serve_driver

        serve_driver(address, key, self._rank)


class RayActors:
    """Starts ranks 1 to ``size - 1`` in the cluster that ``RAY_ADDRESS`` names, or this node's.

    The shards of a stage are put on one node where any has room for them, those of stage 0 on this
    one, and stages on as many nodes as there are. Room for rank 0 is taken, too.

    Args:
        layout: Which ranks there are.
        threads: Processors of each.

    Raises:
        ConfigError: Ray is not installed, or there is no cluster.
    """

    def __init__(self, layout: ParallelLayout, threads: int) -> None:
        try:
            import ray
        except ImportError as error:
            raise ConfigError(_NO_RAY) from error
        self._ray, self._layout, self._threads = ray, layout, threads
        try:
            _reach(env.ray_address())
            ray.init(address="auto", logging_level="warning", namespace="quire")
        except OSError as error:  # ConnectionError, too
            raise ConfigError(
                "[parallel] --distributed-executor-backend ray needs a cluster; got none. Run ray "
                "start --head on this node, or set RAY_ADDRESS."
            ) from error
        self._node: str = ray.util.get_node_ip_address()
        self.address: Address = (self._node, 0)
        self.key = secrets.token_hex(16)
        self._group: Any = None
        self._runs: dict[int, Any] = {}
        self._actors: list[Any] = []

    def start(self, address: Address) -> None:
        """Place and start the actors, each of which comes to ``address``.

        Raises:
            ModelLoadError: The cluster has no room for them.
        """
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actor_class = self._ray.remote(RankActor)
        for bundle, ranks in enumerate(self._place()):
            for rank in ranks:
                if rank == 0:
                    continue
                actor = actor_class.options(
                    num_cpus=self._threads,
                    max_restarts=0,  # the engine starts all of them again
                    scheduling_strategy=PlacementGroupSchedulingStrategy(
                        self._group, placement_group_bundle_index=bundle
                    ),
                ).remote(rank)
                self._actors.append(actor)
                self._runs[rank] = actor.run.remote(address, self.key)

    def _place(self) -> list[list[int]]:
        """Take room in the cluster; return the ranks of each bundle, which is on one node.

        Raises:
            ModelLoadError: There is none.
        """
        ray, layout, threads = self._ray, self._layout, self._threads
        nodes = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
        if threads * layout.tensor <= max(nodes, default=0):
            strategy = "SPREAD"
            ranks = [layout.stage_ranks(stage) for stage in range(layout.pipeline)]
        else:
            strategy, ranks = "PACK", [[rank] for rank in range(layout.size)]
            log.warning(
                "[ray] no node has %d processors, so shards of a layer are on several: each layer "
                "waits for the network",
                threads * layout.tensor,
            )
        bundles: list[dict[str, float]] = [{"CPU": threads * len(own)} for own in ranks]
        bundles[0][f"node:{self._node}"] = 0.001
        self._group = ray.util.placement_group(bundles, strategy=strategy, name="quire")
        ready, _ = ray.wait([self._group.ready()], timeout=PLACE_SECONDS)
        if not ready:
            raise ModelLoadError(
                f"[ray] the cluster must have room for {bundles}; got nodes of {nodes} processors, "
                f"{ray.available_resources().get('CPU', 0):g} free in all. Add nodes, or lower "
                "--threads."
            )
        return ranks

    def check(self) -> None:
        """Return as long as no actor has ended.

        Raises:
            ModelLoadError: One has.
        """
        ended, _ = self._ray.wait(list(self._runs.values()), timeout=0)
        for rank, run in self._runs.items():
            if run in ended:
                why = self.why_gone(rank)
                raise ModelLoadError(f"[rank {rank}] it ended before all had come: {why}.")

    def why_gone(self, rank: int) -> str:
        """Return what Ray knows of a rank that is gone, in a line."""
        try:
            self._ray.get(self._runs[rank], timeout=2.0)
        except self._ray.exceptions.GetTimeoutError:
            return ""
        except Exception as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return f"{type(error).__name__}: {' '.join(lines)[:400]}"
        return ""

    def close(self) -> None:
        """End the actors and give their places back."""
        with suppress(Exception):  # the cluster may be gone
            for actor in self._actors:
                self._ray.kill(actor)
            if self._group is not None:
                self._ray.util.remove_placement_group(self._group)
        self._ray.shutdown()
