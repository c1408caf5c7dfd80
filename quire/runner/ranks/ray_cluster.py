"""A Ray cluster: room on its nodes, processes there, and the reason why a process is gone.

Ray only places and starts processes; nothing of a step passes through it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from quire.core.errors import ConfigError, ModelLoadError
from quire.system import env

#: Seconds that a cluster may take to find room, and to answer at its address.
PLACE_SECONDS, REACH_SECONDS = 300.0, 10.0
#: First bytes of a client of HTTP/2, and so of gRPC: a preface, and settings that change nothing. A
#: server answers with a frame of its own settings (RFC 9113, sections 3.4 and 6.5).
_HEADER, _SETTINGS = 9, 4
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0))
_NO_RAY = (
    "[parallel] --distributed-executor-backend ray needs Ray; it is not installed. Run pip install "
    "'quire[ray]' on each node."
)


def _reach(address: str | None) -> None:
    """Try the cluster's address; Ray itself would retry for minutes, whatever answers there.

    Raises:
        OSError: No server of gRPC answers there.
        ValueError: The text is no address.
    """
    if address is None:
        return
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=REACH_SECONDS) as peer:
        if not env.ray_uses_tls():
            peer.sendall(_PREFACE)
            header = peer.recv(_HEADER, socket.MSG_WAITALL)
            if len(header) < _HEADER or header[3] != _SETTINGS:
                raise ConnectionError("the server at that address is not Ray")


class Actor:
    """An actor of Ray, in a process of its own.

    Args:
        name: The beginning of each line that it logs.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        """Return the name, which Ray writes before each line."""
        return self._name

    def run(self, function: Callable[..., None], *arguments: object) -> None:
        """Call a function; what it raises is the actor's failure."""
        function(*arguments)


class RayCluster:
    """The cluster that ``RAY_ADDRESS`` names, or this node's; actors and room end with it.

    Attributes:
        node: Address of this node.

    Raises:
        ConfigError: Ray is not installed, or there is no cluster.
    """

    def __init__(self) -> None:
        try:
            import ray
        except ImportError as error:
            raise ConfigError(_NO_RAY) from error
        self._ray = ray
        try:
            _reach(env.ray_address())
            ray.init(address="auto", logging_level="warning", namespace="quire")
        except (OSError, ValueError) as error:  # ConnectionError, and names that are none, too
            raise ConfigError(
                "[parallel] --distributed-executor-backend ray needs a cluster; got none "
                f"({str(error)[:200]}). Run ray start --head on this node, or set RAY_ADDRESS."
            ) from error
        self.node: str = ray.util.get_node_ip_address()
        self._group: Any = None
        self._actors: dict[int, Any] = {}
        self._runs: dict[int, Any] = {}

    def processors(self) -> list[float]:
        """Return the processors of each live node, whether in use or free."""
        return [one["Resources"].get("CPU", 0) for one in self._ray.nodes() if one["Alive"]]

    def take_room(self, processors: Sequence[int], strategy: str) -> None:
        """Reserve room; each part of it is on one node, the first on this one.

        Args:
            processors: Processors of each part.
            strategy: Ray's strategy, by which parts are placed.

        Raises:
            ModelLoadError: The cluster has no such room.
        """
        ray = self._ray
        bundles: list[dict[str, float]] = [{"CPU": count} if count else {} for count in processors]
        bundles[0][f"node:{self.node}"] = 0.001
        self._group = ray.util.placement_group(bundles, strategy=strategy)
        ready, _ = ray.wait([self._group.ready()], timeout=PLACE_SECONDS)
        if not ready:
            raise ModelLoadError(
                f"[ray] the cluster must have room for {bundles}; got nodes of {self.processors()} "
                f"processors, {ray.available_resources().get('CPU', 0):g} free in all. Add nodes, "
                "or lower --threads."
            )

    def start(
        self,
        number: int,
        part: int,
        processors: int,
        name: str,
        function: Callable[..., None],
        *arguments: object,
    ) -> None:
        """Start an actor that calls a function.

        Args:
            number: Number of the actor; an earlier one of this number is replaced.
            part: The part of the room that it is in.
            processors: Processors that it takes of that.
            name: The beginning of its lines in the log.
            function: Function to call; the actor has ended when it returns or raises.
            arguments: The function's.
        """
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actor = (
            self._ray.remote(Actor)
            .options(
                num_cpus=processors,
                max_restarts=0,  # the caller knows whether another is wanted
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._group, placement_group_bundle_index=part
                ),
            )
            .remote(name)
        )
        self._actors[number] = actor
        self._runs[number] = actor.run.remote(function, *arguments)

    def ended(self, seconds: float = 0.0) -> list[int]:
        """Return the number of an actor that has ended, as soon as one has; none after a time."""
        ended = self._ray.wait(list(self._runs.values()), timeout=seconds)[0]
        return [number for number, run in self._runs.items() if run in ended]

    def failure(self, number: int) -> Exception | None:
        """Return what an actor has ended with; None where nothing is known."""
        try:
            self._ray.get(self._runs[number], timeout=2.0)
        except self._ray.exceptions.GetTimeoutError:
            return None
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            return cause if isinstance(cause, Exception) else error
        except Exception as error:
            return error
        return None

    def close(self) -> None:
        """End the actors and release their places."""
        with suppress(Exception):  # the cluster may be gone
            for actor in self._actors.values():
                self._ray.kill(actor)
            if self._group is not None:
                self._ray.util.remove_placement_group(self._group)
        self._ray.shutdown()


def failure_text(error: Exception | None) -> str:
    """Return an actor's ending in a line; empty where nothing is known."""
    if error is None:
        return ""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:400]}"
