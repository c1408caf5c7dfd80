"""Token-level stop conditions."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.engine_request import EngineRequest
from quire.core.outputs import RequestMetrics
from quire.core.sampling_params import SamplingParams
from quire.engine.request import Request
from quire.engine.scheduling.stop_conditions import check_stop

EOS = frozenset({7, 8})


def after(output: list[int], max_total_tokens: int = 100, **params: Any) -> Request:
    return Request(
        request_id="r",
        source=EngineRequest("r", [7, 5, 9], SamplingParams()),
        index=0,
        token_ids=[7, 5, 9, *output],
        num_prompt_tokens=3,
        max_total_tokens=max_total_tokens,
        params=SamplingParams(max_tokens=None, **params),
        seed=0,
        order=(0.0, 0, 0),
        metrics=RequestMetrics(),
    )


@pytest.mark.parametrize(
    ("output", "params", "expected"),
    [
        ([1], {}, None),
        ([7], {}, ("stop", None)),
        ([1, 8], {}, ("stop", None)),
        ([7], {"ignore_eos": True}, None),
        ([5], {"stop_token_ids": [4, 5]}, ("stop", 5)),
        ([7], {"ignore_eos": True, "stop_token_ids": [7]}, ("stop", 7)),
        ([7], {"min_tokens": 2}, None),
        ([5], {"min_tokens": 2, "stop_token_ids": [5]}, None),
        ([1, 7], {"min_tokens": 2}, ("stop", None)),
        ([1, 2], {"max_total_tokens": 5}, ("length", None)),
        ([1, 7], {"max_total_tokens": 5}, ("stop", None)),
        ([1, 2], {"max_total_tokens": 5, "min_tokens": 9}, ("length", None)),
    ],
)
def test_stop_conditions(output, params, expected):
    assert check_stop(after(output, **params), EOS) == expected


class Counting(tuple):
    """Ids that count how often all of them are read."""

    num_reads = 0

    def __iter__(self):
        Counting.num_reads += 1
        return super().__iter__()

    def __contains__(self, token_id):
        Counting.num_reads += 1
        return super().__contains__(token_id)


def test_many_stop_token_ids_are_not_read_for_every_token(start):
    """A body may have 262,144: each token of each row took 2 ms, of 60 rows a step 0.1 s."""
    run = start()
    ids = Counting(range(1000, 1100))
    for name in "ab":
        run.add(name, [1, 2], max_tokens=20, n=3)
        for one in run.engine.scheduler.sequences.group(name):
            one.params.stop_token_ids = ids
    run.finish()
    assert Counting.num_reads == 0
    run.add("c", [1, 2], max_tokens=20, stop_token_ids=[run.tokens["a", 0][4]])
    run.finish()
    assert run.tokens["c", 0] == run.tokens["a", 0][:5] and run.endings["c", 0] == "stop"
