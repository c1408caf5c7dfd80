"""The printed block and the result file, in the shapes of ``vllm bench serve``."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from quire.bench.bench_options import BenchOptions
from quire.bench.latency_metrics import Distribution, Latencies, Metrics, measure
from quire.bench.load_client import Record
from quire.bench.server_options import TargetOptions, pairs
from quire.core.errors import ConfigError

WIDTH = 50
TITLES = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}


def block(metrics: Metrics, options: BenchOptions) -> str:
    """Return the printed report."""
    lines = [" Serving Benchmark Result ".center(WIDTH, "=")]

    def add(name: str, value: float) -> None:
        shown = f"{value:<10}" if isinstance(value, int) else f"{value:<10.2f}"
        lines.append(f"{name:<40} {shown}")

    add("Successful requests:", metrics.completed)
    add("Failed requests:", metrics.failed)
    if options.max_concurrency is not None:
        add("Maximum request concurrency:", options.max_concurrency)
    if not math.isinf(options.request_rate):
        add("Request rate configured (RPS):", float(options.request_rate))
    add("Benchmark duration (s):", metrics.duration)
    add("Total input tokens:", metrics.total_input_tokens)
    add("Total generated tokens:", metrics.total_output_tokens)
    add("Request throughput (req/s):", metrics.request_throughput)
    if metrics.request_goodput is not None:
        add("Request goodput (req/s):", metrics.request_goodput)
    add("Output token throughput (tok/s):", metrics.output_throughput)
    add("Peak output token throughput (tok/s):", metrics.max_output_tokens_per_s)
    add("Peak concurrent requests:", float(metrics.max_concurrent_requests))
    add("Total token throughput (tok/s):", metrics.total_token_throughput)
    for name in options.sections():
        distribution = metrics.distributions[name]
        lines.append(TITLES[name].center(WIDTH, "-"))
        add(f"Mean {name.upper()} (ms):", distribution.mean)
        add(f"Median {name.upper()} (ms):", distribution.median)
        for percent, value in distribution.percentiles.items():
            add(f"P{percent:g} {name.upper()} (ms):", value)
    lines.append("=" * WIDTH)
    return "\n".join(lines)


def document(
    metrics: Metrics, records: Sequence[Record], options: BenchOptions, model: str
) -> dict[str, Any]:
    """Return the result as one JSON object."""
    rate = options.request_rate
    found: dict[str, Any] = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": options.backend,
        "backend": options.backend,
        "label": options.label,
        "model_id": model,
        "tokenizer_id": options.tokenizer,
        "num_prompts": options.num_prompts,
        "request_rate": "inf" if math.isinf(rate) else rate,
        "burstiness": options.burstiness,
        "max_concurrency": options.max_concurrency,
        **pairs("--metadata", options.metadata),
        **figures(metrics),
    }
    if options.save_detailed:
        found |= _details(records)
    return found


def figures(metrics: Metrics) -> dict[str, Any]:
    """Return the figures of a run by their names in the result file."""
    found: dict[str, Any] = {
        "duration": metrics.duration,
        "completed": metrics.completed,
        "failed": metrics.failed,
        "total_input_tokens": metrics.total_input_tokens,
        "total_output_tokens": metrics.total_output_tokens,
        "request_throughput": metrics.request_throughput,
        "request_goodput": metrics.request_goodput,
        "output_throughput": metrics.output_throughput,
        "total_token_throughput": metrics.total_token_throughput,
        "max_output_tokens_per_s": metrics.max_output_tokens_per_s,
        "max_concurrent_requests": metrics.max_concurrent_requests,
        "tokens_per_second_per_user": metrics.tokens_per_second_per_user,
        "rtfx": 0.0,
    }
    for name, distribution in metrics.distributions.items():
        found |= _figures(name, distribution)
    found["warnings"] = metrics.warnings
    found["error_counts"] = dict(metrics.errors)
    return found


def _figures(name: str, distribution: Distribution) -> dict[str, float]:
    found = {
        f"mean_{name}_ms": distribution.mean,
        f"median_{name}_ms": distribution.median,
        f"std_{name}_ms": distribution.std,
    }
    for percent, value in distribution.percentiles.items():
        found[f"p{percent:g}_{name}_ms"] = value
    return found


def _details(records: Sequence[Record]) -> dict[str, Any]:
    """Return one list per quantity, one entry per request in the order of sending, in seconds."""
    latencies = [Latencies.of(record) if record.error is None else None for record in records]
    return {
        "input_lens": [record.num_prompt_tokens for record in records],
        "output_lens": [record.num_output_tokens for record in records],
        "ttfts": [item.ttft if item else 0.0 for item in latencies],
        "itls": [item.itls if item else [] for item in latencies],
        "latencies": [item.e2el if item else 0.0 for item in latencies],
        "start_times": [record.sent for record in records],
        "queue_times": [record.sent - record.due for record in records],
        "generated_texts": [record.text for record in records],
        "errors": [record.error or "" for record in records],
    }  # fmt: skip


def check_file(options: TargetOptions, own: Collection[str]) -> None:
    """Refuse a result file that could not be written as asked, before anything is sent.

    Args:
        own: Names that the file has without metadata.

    Raises:
        ConfigError: The folder cannot be written to, or metadata has the name of a figure.
    """
    if not (options.save_result or options.append_result):
        return
    taken = sorted(pairs("--metadata", options.metadata).keys() & own)
    if taken:
        raise ConfigError(
            f"[bench] --metadata must have names of its own; got {', '.join(taken)}, which the "
            "result file has."
        )
    path = Path(options.result_dir or ".") / (options.result_filename or "result.json")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"[bench] the result file must be writable; got {error}.") from error
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(f"[bench] the result file must be writable; got {path}.")


def names_of_result(options: BenchOptions) -> Collection[str]:
    """Return the names that the result file of ``bench serve`` has without metadata."""
    nothing = measure([], 1.0, options.percentiles(), options.slos())
    return document(nothing, [], replace(options, metadata=()), "").keys()


def load_name(options: BenchOptions) -> str:
    """Return what the load is called in the name of a result file."""
    rate = options.request_rate
    limit = "" if options.max_concurrency is None else f"-concurrency{options.max_concurrency}"
    return f"{options.backend}-{'inf' if math.isinf(rate) else rate}qps{limit}"


def save(result: dict[str, Any], options: TargetOptions, load: str) -> Path:
    """Write the result file and return its path.

    Args:
        result: The result's entries, ``model_id`` and ``date`` among them.
        load: First part of the file's name where the options give none.

    Raises:
        ConfigError: The file cannot be written.
    """
    name = options.result_filename
    if name is None:
        model = str(result["model_id"]).rsplit("/", 1)[-1]
        name = f"{load}-{model}-{result['date']}.json"
    path = Path(options.result_dir or ".") / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if options.append_result else "w") as file:
            file.write(json.dumps(result) + "\n")
    except OSError as error:
        raise ConfigError(f"[bench] the result file must be writable; got {error}.") from error
    return path
