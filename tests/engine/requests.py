"""Requests as small as they can be."""

from __future__ import annotations

from typing import Any

from quire.core.client import SHARED, Client
from quire.core.engine_request import EngineRequest, RangeKey
from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.core.outputs import RequestMetrics
from quire.core.sampling_params import SamplingParams
from quire.engine.request import Request
from quire.engine.scheduling.fair_queue import FairQueue
from quire.engine.scheduling.request_queue import RequestQueue, arrival_order


def spec(block_size: int, **window: Any) -> KVCacheSpec:
    """Return the smallest KV cache of blocks of that size."""
    return KVCacheSpec(1, 1, 1, block_size, "float32", **window)


def take_next(queue: FairQueue | RequestQueue) -> Request:
    """Take the request that starts next out of a queue."""
    request = queue.peek()
    assert request is not None
    queue.remove(request)
    return request


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


def request(
    request_id: str,
    token_ids: list[int],
    extra_keys: tuple[str, ...] = (),
    range_keys: tuple[RangeKey, ...] = (),
    **changes: Any,
) -> Request:
    """Return a request of one sequence that is a prompt so far."""
    params = SamplingParams()
    source = EngineRequest(
        request_id, token_ids, params, extra_keys=extra_keys, range_keys=range_keys
    )
    values: dict[str, Any] = {
        "source": source,
        "index": 0,
        "num_prompt_tokens": len(token_ids),
        "max_total_tokens": 10**6,
        "params": params,
        "seed": 0,
        "order": (0.0, 0, 0),
        "metrics": RequestMetrics(),
    }
    return Request(request_id=request_id, token_ids=list(token_ids), **(values | changes))
