"""Figures of a run out of its records; the definitions are those of docs/benchmarks.md."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from quire.bench.load_client import Record
from quire.core.plurals import counted


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value that ``percent`` of ``values`` do not exceed, by linear interpolation.

    Args:
        values: Values in any order, at least one.
        percent: Percentage in (0, 100].
    """
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True, slots=True)
class Distribution:
    """One quantity over its samples, in milliseconds; zeros without samples."""

    mean: float
    median: float
    std: float
    percentiles: dict[float, float]
    num_samples: int

    @classmethod
    def of(cls, seconds: Sequence[float], percents: Sequence[float]) -> Distribution:
        """Summarise samples given in seconds."""
        if not seconds:
            return cls(0.0, 0.0, 0.0, dict.fromkeys(percents, 0.0), 0)
        milliseconds = [value * 1000 for value in seconds]
        return cls(
            statistics.fmean(milliseconds),
            statistics.median(milliseconds),
            statistics.pstdev(milliseconds),
            {percent: percentile(milliseconds, percent) for percent in percents},
            len(milliseconds),
        )


@dataclass(frozen=True, slots=True)
class Latencies:
    """One request's times, in seconds.

    Attributes:
        ttft: Time from the request sent to the first chunk with output.
        itls: Gaps between chunks with output.
        e2el: Time from the request sent to the last such chunk: ``ttft + sum(itls)``.
        tpot: ``(e2el - ttft) / (output tokens - 1)``; None for a single token. It differs from the
            mean gap where a chunk carries several tokens.
    """

    ttft: float
    itls: list[float]
    e2el: float
    tpot: float | None

    @classmethod
    def of(cls, record: Record) -> Latencies:
        """Take them from a record that did not fail."""
        times = record.times
        ttft, e2el = times[0] - record.sent, times[-1] - record.sent
        gaps = [after - before for before, after in zip(times, times[1:], strict=False)]
        count = record.num_output_tokens
        return cls(ttft, gaps, e2el, (e2el - ttft) / (count - 1) if count > 1 else None)


@dataclass(frozen=True, slots=True)
class Metrics:
    """All figures that are reported; rates are per second of the run's duration."""

    duration: float
    completed: int
    failed: int
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float
    request_goodput: float | None
    output_throughput: float
    total_token_throughput: float
    max_output_tokens_per_s: float
    max_concurrent_requests: int
    tokens_per_second_per_user: float
    distributions: dict[str, Distribution]
    errors: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)


def measure(
    records: Sequence[Record],
    duration: float,
    percents: Sequence[float],
    slos: dict[str, float],
) -> Metrics:
    """Compute the metrics of a run.

    Failed requests count in ``failed`` and nowhere else.

    Args:
        duration: Seconds from the first request's time to the end of the last one.
        percents: Percentiles wanted.
        slos: Milliseconds by metric name; empty: no goodput.
    """
    good = [record for record in records if record.error is None]
    seen = [Latencies.of(record) for record in good]
    samples = {
        "ttft": [item.ttft for item in seen],
        "tpot": [item.tpot for item in seen if item.tpot is not None],
        "itl": [gap for item in seen for gap in item.itls],
        "e2el": [item.e2el for item in seen],
    }
    total_input = sum(record.num_prompt_tokens for record in good)
    total_output = sum(record.num_output_tokens for record in good)
    distributions = {name: Distribution.of(values, percents) for name, values in samples.items()}
    met = sum(_meets(item, slos) for item in seen)
    decode_rates = [1 / value for value in samples["tpot"] if value > 0]
    return Metrics(
        duration=duration,
        completed=len(good),
        failed=len(records) - len(good),
        total_input_tokens=total_input,
        total_output_tokens=total_output,
        request_throughput=len(good) / duration,
        request_goodput=met / duration if slos else None,
        output_throughput=total_output / duration,
        total_token_throughput=(total_input + total_output) / duration,
        max_output_tokens_per_s=peak_rate(good),
        max_concurrent_requests=peak_concurrency(records),
        tokens_per_second_per_user=statistics.fmean(decode_rates) if decode_rates else 0.0,
        distributions=distributions,
        errors=Counter(record.error for record in records if record.error is not None),
        warnings=find_warnings(records, distributions),
    )


def _meets(item: Latencies, slos: dict[str, float]) -> bool:
    own = {"ttft": item.ttft, "tpot": item.tpot or 0.0, "e2el": item.e2el}
    return all(own[name] * 1000 <= bound for name, bound in slos.items())


def peak_rate(records: Sequence[Record]) -> float:
    """Return the most output tokens that came within a second, seconds counted from the start."""
    if not records:
        return 0.0
    start = min(record.sent for record in records)
    seconds: Counter[int] = Counter()
    for record in records:
        tokens_per_chunk = record.num_output_tokens / len(record.times)
        for time in record.times:
            seconds[int(time - start)] += tokens_per_chunk  # type: ignore[assignment]
    return float(max(seconds.values()))


def peak_concurrency(records: Sequence[Record]) -> int:
    """Return the most requests that were under way at one moment."""
    changes = []
    for record in records:
        if record.times:
            changes += [(record.sent, 1), (record.times[-1], -1)]
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return most


def few_samples(distributions: dict[str, Distribution]) -> list[str]:
    """Return which percentiles rest on too few samples."""
    found = []
    for name, distribution in distributions.items():
        for percent in distribution.percentiles:
            needed = math.ceil(round(100 / (100 - percent), 6)) if percent < 100 else 1
            if 0 < distribution.num_samples < needed:
                found.append(
                    f"P{percent:g} of {name.upper()} rests on {distribution.num_samples} samples "
                    f"(fewer than {needed}): it is little more than their maximum"
                )
    return found


def find_warnings(records: Sequence[Record], distributions: dict[str, Distribution]) -> list[str]:
    """Return what makes the figures less than they seem."""
    found = few_samples(distributions)
    good = [record for record in records if record.error is None]
    short = sum(record.num_output_tokens < record.job.max_tokens for record in good)
    if short:
        found.append(f"{counted(short, 'request')} ended before the output length")
    uncounted = sum(not record.counted_by_server for record in good)
    if uncounted:
        answers = counted(uncounted, "answer")
        found.append(f"{answers} without usage: tokens are chunks, counted by the client")
    different = sum(
        record.counted_by_server and record.num_prompt_tokens != record.job.num_prompt_tokens
        for record in good
    )
    if different:
        found.append(
            f"{counted(different, 'prompt')} of another length at the server than asked for "
            "(templates and special tokens count there); the server's is reported"
        )
    return found
