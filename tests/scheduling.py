"""Which tests a worker gets together: a whole file, or all files that share a running server."""

from __future__ import annotations

from xdist.scheduler import LoadGroupScheduling


class FileScheduling(LoadGroupScheduling):
    """Hands out groups of :mod:`xdist`; what is in none goes with its file."""

    def _split_scope(self, nodeid: str) -> str:
        group: str = super()._split_scope(nodeid)
        return group.split("::", 1)[0]
