"""Requests that wait in a queue, as small as they can be."""

from __future__ import annotations

from quire.core.client import SHARED, Client
from quire.core.outputs import RequestMetrics
from quire.core.request import EngineRequest
from quire.core.sampling_params import SamplingParams
from quire.engine.request import Request
from quire.engine.request_queue import arrival_order


def waiting_request(
    number: int,
    client: Client = SHARED,
    policy: str = "priority",
    priority: int = 0,
    time: float = 0.0,
) -> Request:
    """Return request ``r<number>``: one prompt token, one to generate."""
    return Request(
        request_id=f"r{number}",
        source=EngineRequest(f"r{number}", [1], SamplingParams(), client=client),
        index=0,
        token_ids=[1],
        num_prompt_tokens=1,
        max_total_tokens=2,
        params=SamplingParams(),
        seed=0,
        order=(arrival_order(policy, priority, time, number), number, 0),
        metrics=RequestMetrics(arrival_time=time),
        priority=priority,
    )
