"""The sequences of each user's request; many sequences of one request start in parts.

A part is a prompt of its own, which finds its blocks in the prefix cache, and the sequences that
split off from it. The first one computes the prompt; once it draws, others follow, as many as leave
places for other requests. So a request that wants as many sequences as may run needs no more free
places than one that wants a few, and others need not wait for its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from quire.engine.request import Request

#: Most sequences that split off at once, the one that they split off from included.
PART = 16


def divide(group: Sequence[Request], in_parts: bool) -> list[Request]:
    """Divide a request's sequences into parts, each split off from its first; return the first."""
    size = PART if in_parts else len(group)
    heads = []
    for start in range(0, len(group), size):
        head, *children = group[start : start + size]
        head.pending_children = children
        head.token_ids = list(head.token_ids)
        for child in children:
            child.parent_id = head.request_id
        heads.append(head)
    return heads


class SequenceGroups:
    """The live sequences of all requests.

    Args:
        most: Sequences of one request that run or are queued, while parts of it are kept back.
    """

    def __init__(self, most: int) -> None:
        self._most = max(most, PART)
        self._live: dict[str, list[Request]] = {}
        self._kept_back: dict[str, deque[Request]] = {}

    def live(self, group_id: str) -> list[Request]:
        """Return the live sequences of a user's request; empty when unknown or finished."""
        return list(self._live.get(group_id, ()))

    def add(self, group: Sequence[Request]) -> None:
        """Take in sequences of a request."""
        self._live.setdefault(group[0].group_id, []).extend(group)

    def keep_back(self, heads: Sequence[Request]) -> None:
        """Keep parts of a request back until :meth:`next_parts` returns them."""
        if heads:
            self._kept_back[heads[0].group_id] = deque(heads)

    def next_parts(self, group_id: str) -> list[Request]:
        """Return the parts of a request that start now; they are kept back no longer."""
        heads = self._kept_back.get(group_id)
        if heads is None:
            return []
        started = []
        num_kept = sum(1 + len(head.pending_children) for head in heads)
        num_others = len(self._live.get(group_id, ())) - num_kept
        while heads and num_others + 1 + len(heads[0].pending_children) <= self._most:
            num_others += 1 + len(heads[0].pending_children)
            started.append(heads.popleft())
        if not heads:
            del self._kept_back[group_id]
        return started

    def ended(self, request: Request) -> None:
        """Forget a sequence."""
        heads = self._kept_back.get(request.group_id)
        if heads is not None and request in heads:
            heads.remove(request)
        group = self._live[request.group_id]
        group.remove(request)
        if not group:
            del self._live[request.group_id]
