"""Ranks as actors of a Ray cluster."""

from __future__ import annotations

import secrets

from quire.core.errors import ModelLoadError
from quire.runner.ranks.ray_cluster import RayCluster, failure_text
from quire.runner.ranks.rendezvous import Address
from quire.settings.parallel_layout import ParallelLayout
from quire.system.log import get_logger

log = get_logger(__name__)


class RayActors:
    """Ranks 1 to ``size - 1``, started in a Ray cluster.

    The shards of a stage are put on one node where any has room for them, those of stage 0 on this
    node, and stages on as many nodes as there are. Room for rank 0 is taken, too.

    Args:
        layout: The ranks and their groups.
        threads: Processors of each rank.

    Raises:
        ConfigError: Ray is not installed, or there is no cluster.
    """

    def __init__(self, layout: ParallelLayout, threads: int) -> None:
        self._layout, self._threads = layout, threads
        self._cluster = RayCluster()
        self.address: Address = (self._cluster.node, 0)
        self.key = secrets.token_hex(16)

    def start(self, address: Address) -> None:
        """Place and start the actors, each of which connects to ``address``.

        Raises:
            ModelLoadError: The cluster has no room for them.
        """
        from quire.runner.ranks.remote_rank import serve_driver

        cluster, threads = self._cluster, self._threads
        for part, ranks in enumerate(self._place()):
            for rank in ranks:
                if rank > 0:
                    cluster.start(
                        rank, part, threads, f"rank {rank}", serve_driver, address, self.key, rank
                    )

    def _place(self) -> list[list[int]]:
        """Take room in the cluster; return the ranks of each part of it, which is on one node.

        Raises:
            ModelLoadError: The cluster has no room.
        """
        cluster, layout, threads = self._cluster, self._layout, self._threads
        if threads * layout.tensor <= max(cluster.processors(), default=0):
            strategy = "SPREAD"
            ranks = [layout.stage_ranks(stage) for stage in range(layout.pipeline)]
        else:
            strategy, ranks = "PACK", [[rank] for rank in range(layout.size)]
            log.warning(
                "[ray] no node has %d processors, so shards of a layer are on several: each layer "
                "waits for the network",
                threads * layout.tensor,
            )
        cluster.take_room([threads * len(own) for own in ranks], strategy)
        return ranks

    def check(self) -> None:
        """Check that no actor has ended.

        Raises:
            ModelLoadError: An actor has ended.
        """
        for rank in self._cluster.ended():
            why = self.why_gone(rank)
            raise ModelLoadError(f"[rank {rank}] it ended before all had come: {why}.")

    def why_gone(self, rank: int) -> str:
        """Return what Ray knows of a rank that is gone, in a line."""
        return failure_text(self._cluster.failure(rank))

    def close(self) -> None:
        """End the actors and release their places."""
        self._cluster.close()
