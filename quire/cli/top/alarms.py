"""Alarms of a server, judged from its last readings; nothing is drawn.

Thresholds are those of ``deploy/prometheus/alerts.yml`` where it has the same alarm. Prometheus
waits minutes so that a peak wakes no operator; here an operator is looking.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

from quire.cli.top.figures import figures
from quire.cli.top.reading import Reading
from quire.core.plurals import counted

#: What alarms look back on. Shorter, and one long prompt is an alarm; longer, and one that is over
#: stays.
ALARM_SECONDS = 60.0
#: Without a step while requests are pending. Longer than the longest step of a sane server: one of
#: 2,048 tokens of an 8B model takes a few seconds on a small CPU.
STALL_SECONDS = 10.0
#: Before this, a growing queue is only the start of a load; and less growth between the last two
#: quarters of the while is the noise of a queue that stays as long as it is.
QUEUE_SECONDS, QUEUE_GROWTH = 10.0, 0.1
#: Fewer have no quarters.
MIN_READINGS = 4
#: Blocks in use, of all: from here on new requests wait or others are preempted.
KV_FULL = 0.95
#: Empty slots of used blocks, of all, once half of the cache is in use: --block-size is too large.
KV_FRAGMENTED, KV_FRAGMENTED_FROM = 0.3, 0.5
#: Computed again after preemption, of all that was computed.
RECOMPUTED = 0.1
#: Sequences that ended with an error, and by their deadline, of all that ended.
ERRORS, TIMEOUTS = 0.01, 0.05
#: 99th percentiles in seconds above which people stop reading along.
SLOW_FIRST_TOKEN, SLOW_TOKENS = 5.0, 0.5


@dataclass(frozen=True, slots=True)
class Alarm:
    """A problem that needs a look.

    Attributes:
        critical: Requests fail or stand still; otherwise they wait or cost more than they should.
        text: The problem, with its number, and what helps.
    """

    critical: bool
    text: str


def alarms(readings: Sequence[Reading]) -> list[Alarm]:
    """Return the alarms at the end of ``readings``, critical ones first.

    Args:
        readings: Readings of the last :data:`ALARM_SECONDS`, oldest first, at least one.
    """
    last = readings[-1]
    found = [*_states(last), *_stall(readings)]
    if len(readings) > 1:
        found += [*_events(readings[0], last), *_queue(readings), *_shares(readings[0], last)]
    found += [*_cache(last), *_proposals(last)]
    return sorted(found, key=lambda alarm: not alarm.critical)


def _states(last: Reading) -> Iterator[Alarm]:
    if last.not_ready is not None:
        yield Alarm(True, f"not ready: {last.not_ready}")
    for name, state in last.models.items():
        if state == "failed":
            yield Alarm(True, f"{name} failed to load; the server's log says why")


def _stall(readings: Sequence[Reading]) -> Iterator[Alarm]:
    last = readings[-1]
    for model in last.scrape.models:
        steps = last.scrape.value("num_steps", model)
        since = last.seconds
        for reading in reversed(readings):
            if reading.scrape.value("num_steps", model) != steps or not _pending(reading, model):
                break
            since = reading.seconds
        if last.seconds - since >= STALL_SECONDS:
            pending = _pending(last, model)
            seconds = last.seconds - since
            yield Alarm(
                True, f"{model} stands still: no step for {seconds:.0f} s, {pending:.0f} pending"
            )


def _pending(reading: Reading, model: str) -> float:
    stems = ("num_requests_running", "num_requests_waiting")
    return sum(reading.scrape.value(stem, model) or 0.0 for stem in stems)


def _events(first: Reading, last: Reading) -> Iterator[Alarm]:
    """Yield what should never happen and did."""

    def added(stem: str, **labels: str) -> float:
        return last.scrape.increase(first.scrape, stem, **labels) or 0.0

    if count := added("engine_restarts"):
        yield Alarm(True, f"engine started again {_times(count)}; its last words are in the log")
    if count := added("kv_canary_failures"):
        yield Alarm(True, f"{count:.0f} cached KV blocks changed in memory; suspect the machine")
    reasons = {dict(s.labels).get("reason", "") for s in last.scrape.series("admission_rejections")}
    refused = {reason: added("admission_rejections", reason=reason) for reason in sorted(reasons)}
    if any(refused.values()):
        told = ", ".join(f"{count:.0f} by {reason}" for reason, count in refused.items() if count)
        yield Alarm(False, f"refused at the door: {told}")


def _queue(readings: Sequence[Reading]) -> Iterator[Alarm]:
    waiting = [reading.scrape.value("num_requests_waiting") or 0.0 for reading in readings]
    too_short = readings[-1].seconds - readings[0].seconds < QUEUE_SECONDS
    if too_short or len(waiting) < MIN_READINGS or min(waiting[1:]) == 0:
        return
    recent = waiting[len(waiting) // 2 :]
    middle = len(recent) // 2
    if mean(recent[middle:]) > (1 + QUEUE_GROWTH) * mean(recent[:middle]):
        grown = f"{waiting[0]:.0f} to {waiting[-1]:.0f}"
        seconds = readings[-1].seconds - readings[0].seconds
        yield Alarm(False, f"queue grows: {grown} in {seconds:.0f} s; more arrives than is served")


def _shares(first: Reading, last: Reading) -> Iterator[Alarm]:
    """Yield what happens too often."""

    def added(stem: str, **labels: str) -> float:
        return last.scrape.increase(first.scrape, stem, **labels) or 0.0

    ended = added("request_success")
    if (count := added("request_success", finished_reason="error")) > ERRORS * ended:
        yield Alarm(True, f"{count:.0f} of {counted(round(ended), 'sequence')} ended with an error")
    if (count := added("request_timeouts")) > TIMEOUTS * ended:
        yield Alarm(False, f"the deadline ended {count:.0f} of {counted(round(ended), 'sequence')}")
    if count := added("num_preemptions"):
        again, computed = added("preemption_recomputed_tokens"), added("num_computed_tokens")
        part = again / computed if computed else 0.0
        advice = "; lower --max-num-seqs or raise --memory" if part > RECOMPUTED else ""
        yield Alarm(
            False, f"preempted {_times(count)}: {part:.0%} of the computation repeats{advice}"
        )
    sums = figures(first, last)
    if sums.ttft is not None and sums.ttft.p99 > SLOW_FIRST_TOKEN:
        yield Alarm(False, f"slow first tokens: p99 {sums.ttft.p99:.1f} s")
    if sums.itl is not None and sums.itl.p99 > SLOW_TOKENS:
        yield Alarm(False, f"slow tokens: p99 {sums.itl.p99:.2f} s")


def _cache(last: Reading) -> Iterator[Alarm]:
    for model in last.scrape.models:
        usage = last.scrape.value("kv_cache_usage_perc", model) or 0.0
        empty = last.scrape.value("kv_cache_fragmentation_perc", model) or 0.0
        if usage > KV_FULL:
            yield Alarm(False, f"{model}: KV cache {usage:.0%} full; requests wait for blocks")
        if empty > KV_FRAGMENTED and usage > KV_FRAGMENTED_FROM:
            yield Alarm(
                False, f"{model}: {empty:.0%} of the used KV slots are empty; lower --block-size"
            )


def _proposals(last: Reading) -> Iterator[Alarm]:
    for series in last.scrape.series("spec_decode_low_acceptance"):
        if last.scrape.values[series]:
            method = dict(series.labels).get("method", "")
            text = f"{series.model}: few tokens that {method} proposes hold; fewer are proposed"
            yield Alarm(False, text)


def _times(count: float) -> str:
    return "once" if count == 1 else f"{count:.0f} times"
