"""Embeddings: the hidden states of a prompt as one vector of length 1; it computes no states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from quire.core.step import ScheduledRequest


@dataclass(slots=True)
class Pool:
    """One request's vector while its prompt is computed.

    Attributes:
        pooling: ``mean`` or ``last``.
        num_prompt_tokens: Of the request.
        total: (D,) float64, sum of the states so far; None before the first.
    """

    pooling: str
    num_prompt_tokens: int
    total: Any = None


class PoolingState:
    """The pools of live requests."""

    def __init__(self) -> None:
        self._pools: dict[str, Pool] = {}

    def __bool__(self) -> bool:
        return bool(self._pools)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._pools

    def set(self, request_id: str, pooling: str, num_prompt_tokens: int) -> None:
        """Begin a request; one that was preempted begins again."""
        self._pools[request_id] = Pool(pooling, num_prompt_tokens)

    def remove(self, request_id: str) -> None:
        """Forget a request; unknown ids are no error."""
        self._pools.pop(request_id, None)

    def totals(self) -> dict[str, Any]:
        """Return every request's sum so far."""
        return {request_id: pool.total for request_id, pool in self._pools.items()}

    def restore(self, totals: dict[str, Any]) -> None:
        """Go back to what :meth:`totals` returned."""
        for request_id, total in totals.items():
            self._pools[request_id].total = total

    def wanted(self, row: ScheduledRequest) -> tuple[int, int]:
        """Return which states of a request's part of a step are read: first one and how many."""
        pool = self._pools[row.request_id]
        count = row.num_scheduled_tokens
        if pool.pooling == "mean":
            return 0, count
        ends = row.num_computed_tokens + count == pool.num_prompt_tokens
        return (count - 1, 1) if ends else (0, 0)

    def add(self, row: ScheduledRequest, states: Any) -> bytes | None:
        """Take in the states that were wanted.

        They are added one after another in the order of their positions, in float64: how the prompt
        was cut into steps does not show.

        Args:
            row: The request's part of the step.
            states: (count, D) float32, after the final norm.

        Returns:
            (D,) float32 little-endian, scaled to length 1, when the prompt has ended; else None.

        Raises:
            FloatingPointError: The states are not finite.
        """
        pool = self._pools[row.request_id]
        for state in states.astype(np.float64):
            pool.total = state if pool.total is None else pool.total + state
        if row.num_computed_tokens + row.num_scheduled_tokens < pool.num_prompt_tokens:
            return None
        length = float(np.sqrt((pool.total * pool.total).sum()))
        if not np.isfinite(length):
            raise FloatingPointError(
                "[pooling] hidden states must be finite; got NaN or infinity. The checkpoint or "
                "its dtype cannot compute this input."
            )
        vector = pool.total / length if length else pool.total
        embedding: bytes = vector.astype("<f4").tobytes()
        return embedding
