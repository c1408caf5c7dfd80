"""Ranks as actors of a Ray cluster: placed, started, and asked why they are gone.

Ray only places and starts them; nothing of a step goes through it.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import Any

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

    The shards of a stage are put on one node, stages on as many nodes as there are.

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
            # Its lines of other processes come with the rank's name.
            ray.init(address="auto", logging_level="warning", namespace="quire")
        except ConnectionError as error:
            raise ConfigError(
                "[parallel] --distributed-executor-backend ray needs a cluster; got none. Run ray "
                "start --head on this node, or set RAY_ADDRESS."
            ) from error
        self.address: Address = (ray.util.get_node_ip_address(), 0)
        self.key = secrets.token_hex(16)
        self._group: Any = None
        self._runs: dict[int, Any] = {}
        self._actors: list[Any] = []

    def start(self, address: Address) -> None:
        """Place and start the actors, each of which comes to ``address``.

        Raises:
            ModelLoadError: The cluster has no room for them.
        """
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        ray, ranks = self._ray, range(1, self._layout.size)
        # A bundle is never divided over nodes, so it has the ranks of one stage.
        stages = [
            [rank for rank in self._layout.stage_ranks(stage) if rank in ranks]
            for stage in range(self._layout.pipeline)
        ]
        stages = [own for own in stages if own]
        bundles = [{"CPU": float(self._threads * len(own))} for own in stages]
        self._group = placement_group(bundles, strategy="SPREAD", name="quire")
        ready, _ = ray.wait([self._group.ready()], timeout=PLACE_SECONDS)
        if not ready:
            raise ModelLoadError(
                f"[ray] the cluster must have room for {bundles}; got "
                f"{ray.available_resources().get('CPU', 0):g} processors that are free. Add nodes, "
                "or lower --threads."
            )
        for bundle, own in enumerate(stages):
            for rank in own:
                actor = (
                    ray.remote(RankActor)
                    .options(
                        num_cpus=self._threads,
                        name=f"quire rank {rank} {self.key[:8]}",
                        max_restarts=0,  # the engine starts all of them again
                        scheduling_strategy=PlacementGroupSchedulingStrategy(
                            self._group, placement_group_bundle_index=bundle
                        ),
                    )
                    .remote(rank)
                )
                self._actors.append(actor)
                self._runs[rank] = actor.run.remote(address, self.key)

    def check(self) -> None:
        """Return as long as no actor has ended.

        Raises:
            ModelLoadError: One has.
        """
        ended, _ = self._ray.wait(list(self._runs.values()), timeout=0)
        for rank, run in self._runs.items():
            if run in ended:
                raise ModelLoadError(
                    f"[rank {rank}] it ended while it came: {self.why_gone(rank)}."
                )

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
        with suppress(Exception):
            for actor in self._actors:
                self._ray.kill(actor)
            if self._group is not None:
                self._ray.util.remove_placement_group(self._group)
        self._ray.shutdown()
