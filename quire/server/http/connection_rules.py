"""Rules for every connection of a server: the names it answers to, and the most connections."""

from __future__ import annotations

import resource
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from quire.server.http.host_rule import HostRule
from quire.server.http.http_errors import ApiError

#: Why connections are refused; counted with what admission refuses.
REASONS = ("host", "origin", "connections")
#: File descriptors that are not for connections: files of the model, pipes, the listener.
RESERVED_DESCRIPTORS = 128
#: Connections above the limit that may still ask for the server's health.
PROBE_CONNECTIONS = 32
#: Without a limit of descriptors.
MAX_CONNECTIONS = 65536


@dataclass(slots=True)
class ConnectionRules:
    """The rules, and the refusals that they have led to.

    Attributes:
        hosts: Names that requests may give the server.
        max_connections: Most connections at once; those above it are refused.
        probe_paths: Paths that are served above the limit, too.
        rejections: Connections and requests refused, by reason.
    """

    hosts: HostRule = field(default_factory=HostRule)
    max_connections: int = MAX_CONNECTIONS
    probe_paths: frozenset[str] = frozenset()
    rejections: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(REASONS, 0)))

    def check_probe(self, path: str) -> None:
        """Refuse a request on a connection above the limit, unless it asks for the health.

        Raises:
            ApiError: 503, with a time to try again.
        """
        if path not in self.probe_paths:
            self.rejections["connections"] += 1
            raise ApiError(
                503,
                f"The server has {self.max_connections} connections (--max-connections), "
                "which is all it takes. Try again.",
                headers={"Retry-After": "1"},
            )


class ProtocolConfig(uvicorn.Config):
    """uvicorn's settings, and the rules that this server's protocols keep.

    Args:
        app: The app that answers requests.
        rules: The rules for all connections.
        **settings: Settings of uvicorn.
    """

    def __init__(self, app: Any, rules: ConnectionRules, **settings: Any) -> None:
        super().__init__(app, **settings)
        self.rules = rules


def default_max_connections() -> int:
    """Return how many connections this process's limit of file descriptors leaves room for."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(1, min(MAX_CONNECTIONS, limit - RESERVED_DESCRIPTORS - PROBE_CONNECTIONS))
