"""A prompt's hidden states as one vector, or as the logits of classes; it computes no states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from quire.core.step import ScheduledRequest
from quire.kernels.backend import Array
from quire.models.model import Model


@dataclass(slots=True)
class PooledPrompt:
    """One request's vector while its prompt is computed.

    Attributes:
        pooling: The same as in :class:`~quire.core.sampling_params.SamplingParams`.
        num_prompt_tokens: Number of tokens of the request's prompt.
        total: (D,) float64, sum of the states so far; None before the first.
    """

    pooling: str
    num_prompt_tokens: int
    total: Any = None


class PoolingState:
    """The pools of live requests.

    Args:
        model: The model that computes the states.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._pools: dict[str, PooledPrompt] = {}

    def __bool__(self) -> bool:
        return bool(self._pools)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._pools

    def set(self, request_id: str, pooling: str, num_prompt_tokens: int) -> None:
        """Begin a request; a preempted one begins again."""
        self._pools[request_id] = PooledPrompt(pooling, num_prompt_tokens)

    def remove(self, request_id: str) -> None:
        """Forget a request; unknown ids are no error."""
        self._pools.pop(request_id, None)

    def totals(self) -> dict[str, Any]:
        """Return every request's sum so far."""
        return {request_id: pool.total for request_id, pool in self._pools.items()}

    def restore(self, totals: dict[str, Any]) -> None:
        """Restore sums that :meth:`totals` returned."""
        for request_id, total in totals.items():
            self._pools[request_id].total = total

    def wanted(self, row: ScheduledRequest) -> tuple[int, int]:
        """Return the first state to read of a request's part of a step, and the number of them."""
        pool = self._pools[row.request_id]
        count = row.num_scheduled_tokens
        if pool.pooling == "mean":
            return 0, count
        if self._is_first(pool):  # an encoder's, whose whole prompt is in one step
            return 0, 1
        ends = row.num_computed_tokens + count == pool.num_prompt_tokens
        return (count - 1, 1) if ends else (0, 0)

    def add(self, row: ScheduledRequest, states: Array) -> bytes | None:
        """Add the states that were wanted to the request's sum.

        They are added one after another in the order of their positions, in float64: the division
        of the prompt into steps does not change the result.

        Args:
            row: The request's part of the step.
            states: (count, D) of the backend, after the final norm.

        Returns:
            (D,) float32 little-endian when the prompt has ended, scaled to length 1 if the model
            asks for that, or the logits (C,) of classes; None before the prompt's end.

        Raises:
            FloatingPointError: The states are not finite.
        """
        pool, head = self._pools[row.request_id], self._model.state_head
        if pool.pooling == "classify":
            states = head.logits(states)
        elif pool.pooling == "pooler":
            states = head.pooled(states)
        for state in self._model.backend.to_numpy(states).astype(np.float64):
            pool.total = state if pool.total is None else pool.total + state
        if row.num_computed_tokens + row.num_scheduled_tokens < pool.num_prompt_tokens:
            return None
        return self._finish(pool)

    def _finish(self, pool: PooledPrompt) -> bytes:
        vector = pool.total
        length = float(np.sqrt((vector * vector).sum()))
        if not np.isfinite(length):
            raise FloatingPointError(
                "[pooling] hidden states must be finite; got NaN or infinity. The checkpoint or "
                "its dtype cannot compute this input."
            )
        if pool.pooling == "classify":
            pass
        elif self._model.config.pooling.normalize:
            vector = vector / length if length else vector
        elif pool.pooling == "mean":
            vector = vector / pool.num_prompt_tokens
        made: bytes = vector.astype("<f4").tobytes()
        return made

    def _is_first(self, pool: PooledPrompt) -> bool:
        if pool.pooling != "classify":
            return pool.pooling in ("cls", "pooler")
        classifier = self._model.config.classifier
        return classifier is not None and classifier.state == "first"
