"""Claims about time, on a virtual clock that advances by each step's cost."""

from __future__ import annotations

import random
from typing import Any

import pytest

from quire.core.engine_request import EngineRequest
from quire.core.sampling_params import SamplingParams
from tests.sizes import sized

#: The quotients are what counts: 190 in the mean and 500 at most, or a tenth of both.
EXAMPLE = sized([1, 5, 20, 50], [10, 50, 200, 500])


def latencies(run: Any, prefix: str) -> list[float]:
    return sorted(
        o.metrics.last_token_time - o.metrics.arrival_time
        for o in run.outputs
        if o.finish_reason and o.request_id.startswith(prefix)
    )


def static_endings(lengths: list[int], batch_size: int) -> list[int]:
    """When each request ends if batches run until their longest one has ended, in steps."""
    ends, now = [], 0
    for first in range(0, len(lengths), batch_size):
        now += max(lengths[first : first + batch_size])
        ends += [now] * len(lengths[first : first + batch_size])
    return ends


def test_continuous_against_static_batching(start, counting):
    """Four lengths at batch 4, again and again: 4/190 against 4/500 sequences a step, 2.63 x.

    The other mode is a setting, and takes as long as it should.
    Short requests also wait less, in the mean and at the 99th percentile.
    """
    run = start(executor_class=counting, max_num_seqs=4)
    lengths = EXAMPLE * sized(40, 64)  # of fewer, the first and the last batch weigh too much
    for i, length in enumerate(lengths):
        run.add(f"{length}-{i}", [1], max_tokens=length)
    run.finish()
    static = static_endings(lengths, 4)
    shortest, longest = EXAMPLE[0], EXAMPLE[-1]
    assert static[3] == longest
    steady = run.clock.now - longest  # the last ones run in a batch that fills no more
    rate = (len(lengths) - 4) / steady
    assert rate == pytest.approx(4 / (sum(EXAMPLE) / 4), rel=0.02)
    assert rate / (len(lengths) / static[-1]) == pytest.approx(2.63, rel=0.02)
    short = latencies(run, f"{shortest}-")
    run = start(executor_class=counting, max_num_seqs=4, batching_type="static")
    for i, length in enumerate(lengths):
        run.add(f"{length}-{i}", [1], max_tokens=length)
    run.finish()
    assert run.clock.now == static[-1]
    short_static = latencies(run, f"{shortest}-")
    assert sum(short) < sum(short_static)
    assert short[int(0.99 * len(short))] < short_static[int(0.99 * len(short_static))]


def serve(run: Any, batch_size: int, arrival_seconds: float, count: int) -> None:
    """Requests of one step each arrive evenly; a step starts when ``batch_size`` of them wait."""
    arrived = 0
    while len(run.endings) < count:
        due = min(count, int(run.clock.now / arrival_seconds + 1e-9))
        for i in range(arrived, due):
            time = (i + 1) * arrival_seconds
            run.engine.add_request(EngineRequest(f"r{i}", [1], run.params, arrival_time=time))
        arrived = due
        if run.engine.stats()["num_requests_waiting"] >= batch_size:
            run.step()
        else:
            run.clock.advance((due + 1) * arrival_seconds - run.clock.now)


def test_latency_mode_against_throughput_mode(start, counting):
    """A step takes 50 ms whatever the batch: 20 req/s alone, 320 at 32 in 150 ms: 16 x."""
    rates = []
    for batch_size, arrival_seconds in ((1, 0.050), (32, 0.003125)):
        run = start(
            executor_class=counting, max_num_seqs=batch_size, step_seconds=lambda plan: 0.050
        )
        run.params = SamplingParams(max_tokens=1)
        serve(run, batch_size, arrival_seconds, 20 * batch_size)
        run.finish()
        ends = [o.metrics.last_token_time for o in run.outputs]
        assert len(run.plans) == 20
        rates.append(batch_size * 19 / (max(ends) - min(ends)))
        worst = latencies(run, "r")[-1]
        assert worst == pytest.approx(0.050 if batch_size == 1 else 0.150 - arrival_seconds)
    assert rates == pytest.approx([20.0, 320.0])
    assert rates[1] / rates[0] == pytest.approx(16.0)


def cost(plan: Any) -> float:
    """5 ms a step and 0.1 ms a token."""
    return 0.005 + 0.0001 * plan.num_scheduled_tokens


def ids_of(plan: Any) -> set[str]:
    return {row.request_id for row in plan.scheduled}


def serve_long_prompt(start: Any, counting: Any, chunked: bool) -> tuple[float, float]:
    """Return the longest gap of a stream while 32k tokens are computed, and their TTFT.

    The stream has tokens before, in every step of the long prompt, and after it.
    """
    run = start(
        num_blocks=3000,
        executor_class=counting,
        max_position_embeddings=40000,
        enable_chunked_prefill=chunked,
        max_num_batched_tokens=2048 if chunked else 40000,
        step_seconds=cost,
    )
    run.add("decode", [1], max_tokens=400)
    for _ in range(3):
        run.step()
    run.add("long", [2] * 32768, max_tokens=1)
    arrival, ttft, times = run.clock.now, None, [run.clock.now]
    while run.engine.has_unfinished_requests():
        for output in run.step():
            if output.request_id == "decode":
                times.append(output.metrics.last_token_time)
            else:
                ttft = output.metrics.last_token_time - arrival
    assert ttft is not None
    end = arrival + ttft
    met = [time for time in times if arrival < time <= end]
    num_long_steps = sum("long" in ids_of(plan) for plan in run.plans)
    assert len(met) == num_long_steps and times[-1] > end
    gaps = [after - before for before, after in zip(times, times[1:], strict=False)]
    return max(gaps[: len(met)]), ttft


def test_chunks_bound_the_gaps_of_decodes_at_little_cost(start, counting):
    """The longest gap is at most a quarter; the prompt's TTFT at most 1.5 x."""
    gap, ttft = serve_long_prompt(start, counting, chunked=True)
    whole_gap, whole_ttft = serve_long_prompt(start, counting, chunked=False)
    assert gap <= whole_gap / 4
    assert whole_ttft <= ttft <= 1.5 * whole_ttft


def first_token_seconds(run: Any, prefix: str) -> list[float]:
    return sorted(
        o.metrics.first_token_time - o.metrics.arrival_time
        for o in run.outputs
        if o.finish_reason and o.request_id.startswith(prefix)
    )


def serve_short_prompts(
    start: Any, counting: Any, long_lengths: list[int], *, stream: bool, seed: int = 0
) -> Any:
    """Serve 20-token prompts (20 a second, 8 tokens each) next to long ones and a stream."""
    run = start(
        num_blocks=2400,
        executor_class=counting,
        max_position_embeddings=40000,
        enable_prefix_caching=False,
        step_seconds=cost,
    )
    rng = random.Random(seed)
    if stream:
        run.add("stream", [1], max_tokens=4000)
        run.step()
    arrivals = [(0.5 + 0.001 * i, f"long{i}", length, 1) for i, length in enumerate(long_lengths)]
    time = 0.0
    for number in range(150):
        time += rng.expovariate(20)
        arrivals.append((time, f"short{number}", 20, 8))
    run.gaps, last = [], None
    for time, name, length, max_tokens in sorted(arrivals):
        while run.clock.now < time and run.engine.has_unfinished_requests():
            for output in run.step():
                if output.request_id == "stream":
                    now = output.metrics.last_token_time
                    run.gaps.append(now - (now if last is None else last))
                    last = now
        run.clock.now = max(run.clock.now, time)
        run.add(name, [2] * length, max_tokens=max_tokens, arrival_time=time)
    for _ in range(50):
        run.step()
    alive = set(run.engine.scheduler.requests)
    assert not any(name.startswith("long") for name in alive)
    assert ("stream" in alive) == stream, "the stream lives through it all"
    assert not stream or all("stream" in ids_of(plan) for plan in run.plans)
    return run


def p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]


#: P99 of the first tokens of short prompts without long ones, by whether there is a stream.
_ALONE: dict[bool, float] = {}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("lengths", "factor"), [([8192], 2.0), ([8192] * 4, 2.5), ([300] * 12, 2.5)]
)
def test_a_long_prompt_does_not_hold_up_short_ones(start, counting, stream, lengths, factor):
    """P99 of the first tokens of those that come while it is computed, against P99 of all alone.

    The long prompt's own first token waits for theirs, and at most 1.3 times as long as next to
    the stream alone.
    """
    if stream not in _ALONE:
        without = serve_short_prompts(start, counting, [], stream=stream)
        _ALONE[stream] = p99(first_token_seconds(without, "s"))
    alone = _ALONE[stream]
    run = serve_short_prompts(start, counting, lengths, stream=stream)
    end = max(o.metrics.first_token_time for o in run.outputs if o.request_id.startswith("long"))
    met = [
        output.metrics.first_token_time - output.metrics.arrival_time
        for output in run.outputs
        if output.finish_reason
        and output.request_id.startswith("short")
        and 0.5 <= output.metrics.arrival_time < end
    ]
    assert len(met) > 5
    assert p99(met) <= factor * alone
    if len(lengths) == 1:
        undisturbed = start(
            num_blocks=600,
            executor_class=counting,
            step_seconds=cost,
            max_position_embeddings=40000,
        )
        if stream:
            undisturbed.add("stream", [1], max_tokens=4000)
            undisturbed.step()
        undisturbed.add("long", [2] * lengths[0], max_tokens=1)
        while ("long", 0) not in undisturbed.endings:
            undisturbed.step()
        (ttft,) = first_token_seconds(run, "long")
        assert ttft <= 1.3 * first_token_seconds(undisturbed, "long")[0]
