"""Every metric Quire exports, with kind and meaning, and the histogram that collects values.

Both processes count in plain numbers; how they are shown is the server's business.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

#: Values by stem, labels in Prometheus' form (``request_success{finished_reason="stop"}``). A
#: histogram's value is a list, see :meth:`HistogramCounts.state`.
Samples: TypeAlias = dict[str, float | list[float]]

TTFT_BUCKETS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5,
    7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
ITL_BUCKETS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1,
    2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
LATENCY_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20,
    30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
ITERATION_TOKENS_BUCKETS = (1, 8, *(2**power for power in range(4, 15)))
COMPILATION_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
BLOCK_SECONDS_BUCKETS = (
    0.001, 0.01, 0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400,
)  # fmt: skip
OFFLOAD_SIZE_BUCKETS = tuple(4**power for power in range(5, 16))
PREEMPTION_BUCKETS = (0, 1, 2, 3, 5, 10, 20, 50)
N_BUCKETS = (1, 2, 5, 10, 20)


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric.

    Attributes:
        kind: Prometheus' type; a counter's name gets ``_total``.
        help: Description of what it counts, with the unit.
        buckets: Upper bounds of a histogram; empty for one whose bounds are 1, 2, 5, 10 ... up to
            the context length.
    """

    kind: Literal["gauge", "counter", "histogram"]
    help: str
    buckets: tuple[float, ...] = ()


def _gauge(help: str) -> MetricSpec:
    return MetricSpec("gauge", help)


def _counter(help: str) -> MetricSpec:
    return MetricSpec("counter", help)


def _seconds(help: str, buckets: tuple[float, ...] = LATENCY_BUCKETS) -> MetricSpec:
    return MetricSpec("histogram", help + ", in seconds.", buckets)


def _tokens(help: str) -> MetricSpec:
    return MetricSpec("histogram", help)


#: By stem, without prefix; names, labels and types are vLLM's where it has them. Its histograms
#: have finer buckets here below their floor: small models answer faster than that.
METRICS: dict[str, MetricSpec] = {
    # Now.
    "num_requests_running": _gauge("Sequences in execution."),
    "num_requests_waiting": _gauge("Sequences that wait to start, preempted ones included."),
    "num_requests_waiting_by_reason": _gauge(
        "Sequences that wait, by reason: capacity (a slot, blocks or the step's budget), deferred."
    ),
    "kv_cache_usage_perc": _gauge("Part of the KV blocks in use, 0 to 1."),
    "kv_cache_expected_usage_perc": _gauge(
        "Part of the KV blocks that running requests are expected to need at their peak."
    ),
    "num_kv_blocks": _gauge("KV blocks, by state: used, free."),
    "num_kv_block_references": _gauge("Entries of block tables; shared KV blocks count each time."),
    "gpu_cache_usage_perc": _gauge("Old name of kv_cache_usage_perc."),
    "kv_cache_fragmentation_perc": _gauge("Part of the slots of used KV blocks that is empty."),
    "avg_prompt_throughput_toks_per_s": _gauge("Prompt tokens computed a second, last 10 s."),
    "avg_generation_throughput_toks_per_s": _gauge("Tokens generated a second, last 10 s."),
    "memory_bytes": _gauge(
        "Memory reserved at start, by pool: weights, scratch, kv_cache, kv_offload, adapters."
    ),
    "kv_offload_blocks": _gauge("KV blocks in a tier, by tier."),
    "kv_offload_held_bytes": _gauge("Bytes of them."),
    "lora_requests_info": _gauge(
        "Adapters of running and of waiting requests, as labels; when that was, unix seconds."
    ),
    "lora_adapters": _gauge("Adapters in memory."),
    "lora_adapter_bytes": _gauge("Memory that they take."),
    "lora_adapter_loads": _counter("Adapters read into memory."),
    "lora_adapter_evictions": _counter("Adapters given up for others."),
    "process_memory_bytes": _gauge("Resident memory, by process: engine, server."),
    "process_heap_bytes": _gauge("The C library's heap, by process and state: used, free."),
    "host_cpu_usage_perc": _gauge("Part of the machine's cores that were busy lately, 0 to 1."),
    "model_flops_utilization_perc": _gauge(
        "Operations a second of the last step by the machine's fastest (quire doctor), 0 to 1."
    ),
    "model_bandwidth_utilization_perc": _gauge(
        "Bytes read a second in the last step by what the machine reads (quire doctor), 0 to 1."
    ),
    "server_load": _gauge("Generation requests being answered, as GET /load shows."),
    "model_load_progress_perc": _gauge("Part of the model's weights that is loaded, 0 to 1."),
    "engine_sleep_state": _gauge(
        "Whether the model is awake, as all are here, by state: awake, weights_offloaded, "
        "discard_all."
    ),
    "cache_config_info": _gauge("The KV cache's settings, as labels; always 1."),
    # Tokens and requests.
    "prefix_cache_queries": _counter("Prompt tokens looked up in the prefix cache."),
    "prefix_cache_hits": _counter("Prompt tokens found in the prefix cache."),
    "external_prefix_cache_queries": _counter("Of those not found there, looked up in KV tiers."),
    "external_prefix_cache_hits": _counter("Of these, loaded."),
    "prompt_tokens": _counter("Prompt tokens of requests that were started."),
    "prompt_tokens_by_source": _counter(
        "Prompt tokens by where their KV came from: local_compute, local_cache_hit, "
        "external_kv_transfer (tiers)."
    ),
    "prefill_requests": _counter(
        "Prompts of --disaggregate, by the place that computed them: apart, mixed (with outputs)."
    ),
    "prompt_tokens_cached": _counter("Prompt tokens that needed no computation."),
    "prompt_tokens_cached_by_source": _counter("Of these, by the cache they came from."),
    "generation_tokens": _counter("Tokens generated."),
    "structured_output_forced_tokens": _counter(
        "Of these, not drawn because a grammar allowed no other token."
    ),
    "spec_decode_low_acceptance": _gauge(
        "Whether fewer of a method's proposed tokens hold than its alarm says, by method."
    ),
    "spec_decode_num_drafts": _counter("Rounds in which tokens were proposed, by method."),
    "spec_decode_num_draft_tokens": _counter("Tokens proposed ahead of the model, by method."),
    "spec_decode_num_accepted_tokens": _counter("Of these, tokens that held, by method."),
    "spec_decode_num_accepted_tokens_per_pos": _counter(
        "Of these, tokens that held, by method and position in their round."
    ),
    "spec_decode_num_failed_proposals": _counter(
        "Steps in which a method failed to propose, and its requests went on without."
    ),
    "request_success": _counter("Sequences that ended, by finish reason."),
    "request_timeouts": _counter("Sequences that their deadline ended: in queue, prefill, decode."),
    "admission_rejections": _counter("Requests refused at the door, by reason."),
    "unread_answer_disconnects": _counter(
        "Connections cut because their client read nothing (--write-timeout)."
    ),
    # Work.
    "num_steps": _counter("Steps executed."),
    "step_seconds": _counter(
        "Time in the engine, by stage: schedule, execute, sample, update, detokenize."
    ),
    "num_computed_tokens": _counter("Token positions computed, recomputation included."),
    "num_preemptions": _counter("Times that a sequence lost its blocks to others."),
    "preemption_recomputed_tokens": _counter("Token positions computed again after preemption."),
    "preemption_swapped_tokens": _counter("Token positions loaded again after preemption."),
    "kv_offload_load_bytes": _counter("Bytes of KV blocks that came from a tier, by tier."),
    "kv_offload_load_time": _counter("Seconds that this took."),
    "kv_offload_store_bytes": _counter("Bytes of KV blocks put into a tier, by tier."),
    "kv_offload_store_time": _counter("Seconds that this took."),
    "kv_offload_dropped_blocks": _counter("KV blocks not written: too many waited, by tier."),
    "kv_offload_damaged_blocks": _counter("KV blocks that were not what they should be, by tier."),
    "kv_offload_failures": _counter("Times that a tier did not answer or take a block."),
    "dropped_prompt_parts": _counter(
        "Parts of long prompts that were given up in the midst, for a request that came."
    ),
    "num_block_copies": _counter("KV blocks copied on write."),
    "num_sequences_added": _counter("Sequences that were taken; at rest as many have ended."),
    "estimated_flops_per_gpu": _counter("Floating-point operations, estimated, drafters included."),
    "estimated_read_bytes_per_gpu": _counter(
        "Bytes of weights and KV read, estimated, drafters included."
    ),
    "estimated_write_bytes_per_gpu": _counter("Bytes of KV written, estimated, drafters included."),
    "kv_canary_checks": _counter("Reused KV blocks whose checksum was verified (--kv-canary)."),
    "kv_canary_failures": _counter("Of these, found changed."),
    "mm_cache_queries": _counter("Pictures of prompts that were computed."),
    "mm_cache_hits": _counter("Of these, rows of pictures known already."),
    "num_ranks": _gauge("Processes that compute the model together."),
    "expert_imbalance": _gauge(
        "Rows of the rank whose experts got most over the mean's, in the worst layer."
    ),
    "rank_memory_bytes": _gauge("Memory of a rank, by pool."),
    "collective_calls": _counter("What rank 0 asked of the others, by kind."),
    "collective_bytes": _counter("Payload of these, by kind."),
    "engine_restarts": _counter("Times that the engine's process was started again."),
    "log_lines_dropped": _counter("Log lines that were dropped, not read in time, by process."),
    "process_cpu_seconds": _counter("CPU time, by process: engine, server."),
    # Distributions.
    "time_to_first_token_seconds": _seconds("Arrival to first token", TTFT_BUCKETS),
    "inter_token_latency_seconds": _seconds("Gaps between two tokens", ITL_BUCKETS),
    "time_per_output_token_seconds": _seconds("Old name of inter_token_latency", ITL_BUCKETS),
    "request_time_per_output_token_seconds": _seconds("Mean gap of a request", ITL_BUCKETS),
    "e2e_request_latency_seconds": _seconds("Arrival to last token"),
    "request_queue_time_seconds": _seconds("Arrival to first scheduled"),
    "request_inference_time_seconds": _seconds("First scheduled to last token"),
    "request_prefill_time_seconds": _seconds("First scheduled to first token"),
    "request_decode_time_seconds": _seconds("First token to last token"),
    "iteration_tokens_total": MetricSpec(
        "histogram", "Tokens of a step.", ITERATION_TOKENS_BUCKETS
    ),
    "grammar_compilation_time_seconds": _seconds("Compiling a grammar", COMPILATION_BUCKETS),
    "request_prompt_tokens": _tokens("Prompt tokens of a request."),
    "request_generation_tokens": _tokens("Tokens of a sequence."),
    "request_max_num_generation_tokens": _tokens("Tokens of a request's longest sequence."),
    "request_params_max_tokens": _tokens("The parameter max_tokens."),
    "request_prefill_kv_computed_tokens": _tokens("Prompt tokens that were no cache hits."),
    "request_params_n": MetricSpec("histogram", "The parameter n.", N_BUCKETS),
    "kv_block_lifetime_seconds": _seconds(
        "A cached KV block's life until eviction", BLOCK_SECONDS_BUCKETS
    ),
    "kv_block_idle_before_evict_seconds": _seconds(
        "Its last use to its eviction", BLOCK_SECONDS_BUCKETS
    ),
    "kv_block_reuse_gap_seconds": _seconds("Two uses of a KV block", BLOCK_SECONDS_BUCKETS),
    "kv_offload_load_size": MetricSpec(
        "histogram", "Bytes that came from a tier at once.", OFFLOAD_SIZE_BUCKETS
    ),
    "kv_offload_store_size": MetricSpec(
        "histogram", "Bytes put into a tier at once.", OFFLOAD_SIZE_BUCKETS
    ),
    "request_num_preemptions": MetricSpec(
        "histogram", "Preemptions of a request.", PREEMPTION_BUCKETS
    ),
}


def stem_of(name: str) -> str:
    """Return the stem of a sample's name, labels cut off."""
    return name.partition("{")[0]


def add_label(name: str, label: str, value: str) -> str:
    """Return a sample's name with one more label, before those that it has."""
    stem, _, labels = name.partition("{")
    return f'{stem}{{{label}="{value}"' + (f",{labels}" if labels else "}")


def add_up(samples: Samples, stem: str, **labels: str) -> float:
    """Return the sum of a stem's values that have all these labels; histograms have no sum."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(
        value
        for name, value in samples.items()
        if stem_of(name) == stem
        and not isinstance(value, list)
        and all(label in name for label in wanted)
    )


def add_counters(earlier: Mapping[str, float | list[float]], newer: Samples) -> Samples:
    """Return ``newer``, whose counters and histograms go on from ``earlier``; gauges as they are.

    A process that was started again counts from zero; what is shown must not go backwards.
    """
    joined = dict(newer)
    for name, before in earlier.items():
        if METRICS[stem_of(name)].kind == "gauge":
            continue
        now = newer.get(name)
        if now is None:
            joined[name] = before
        elif isinstance(before, list) and isinstance(now, list):
            joined[name] = [a + b for a, b in zip(before, now, strict=True)]
        elif not isinstance(before, list) and not isinstance(now, list):
            joined[name] = before + now
    return joined


class HistogramCounts:
    """Counts values by bucket; one thread writes.

    Args:
        bounds: Upper bounds of the buckets, inclusive, ascending; a last one without bound is
            added.

    Attributes:
        bounds: The given upper bounds.
        counts: Number of values per bucket, one more than ``bounds``.
        total: Sum of the values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, ``times`` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def state(self) -> list[float]:
        """Return the sum, then the count of each bucket."""
        return [self.total, *self.counts]
