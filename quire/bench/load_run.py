"""A whole run: get ready, send every request at its time, measure; not how it is printed."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.bench.arrivals import arrival_times
from quire.bench.bench_options import BenchOptions
from quire.bench.connection import ConnectionPool
from quire.bench.latency_metrics import Metrics, measure
from quire.bench.load_client import LoadClient, Record, first_model, wait_ready
from quire.bench.server_options import TargetOptions
from quire.bench.workload import BenchRequest, make_jobs
from quire.core.errors import ConfigError

if TYPE_CHECKING:
    from quire.text.tokenizers.tokenizer import Tokenizer

#: A client that is later than this measures itself.
LATE_SECONDS = 0.01
OnDone = Callable[[Record], None]


@dataclass(frozen=True, slots=True)
class BenchRun:
    """The records and figures of a run."""

    model: str
    records: list[Record]
    metrics: Metrics


@asynccontextmanager
async def connected(options: TargetOptions) -> AsyncIterator[LoadClient]:
    """Yield a client of the server, which is ready.

    Raises:
        ConfigError: The options contradict one another, or no server answers.
    """
    pool = ConnectionPool(options.url(), options.headers(), verify=not options.insecure)
    try:
        await wait_ready(pool, options.ready_check_timeout_sec)
        yield LoadClient(options, options.model or await first_model(pool), pool)
    finally:
        pool.close()


async def run_benchmark(options: BenchOptions, on_done: OnDone = lambda record: None) -> BenchRun:
    """Send the load that ``options`` describe.

    Args:
        on_done: A function called with each record as its request ends.

    Raises:
        ConfigError: The options contradict one another, or no server answers.
    """
    jobs = make_jobs(options, _tokenizer(options))
    async with connected(options) as client:
        warm_ups = [jobs[i % len(jobs)] for i in range(options.num_warmups)]
        await warm_up(client, warm_ups, options.max_concurrency)
        starts = _starts(jobs, options)
        records, duration = await send_jobs(client, jobs, starts, options.max_concurrency, on_done)
    metrics = measure(records, duration, options.percentiles(), options.slos())
    if options.max_concurrency is None:
        late = max(record.sent - record.due for record in records)
        if late > LATE_SECONDS and options.request_rate != float("inf"):
            metrics.warnings.append(f"the client sent a request {late * 1000:.0f} ms late")
    return BenchRun(client.model, records, metrics)


async def send_jobs(
    client: LoadClient,
    jobs: Sequence[BenchRequest],
    starts: Sequence[float],
    max_concurrency: int | None,
    on_done: OnDone,
) -> tuple[list[Record], float]:
    """Send each job at its time, in seconds from now.

    Returns:
        The jobs' records in their order, and the seconds from now to the end of the last.
    """
    begin = time.perf_counter()
    records = [Record(job, begin + start) for job, start in zip(jobs, starts, strict=True)]
    await send_all(client, records, max_concurrency, on_done)
    return records, time.perf_counter() - begin


async def send_all(
    client: LoadClient, records: list[Record], max_concurrency: int | None, on_done: OnDone
) -> None:
    """Send each record's job when it is due, at most ``max_concurrency`` at once."""
    places = None if max_concurrency is None else asyncio.Semaphore(max_concurrency)

    async def one(record: Record) -> None:
        await asyncio.sleep(record.due - time.perf_counter())
        async with AsyncExitStack() as stack:
            if places is not None:
                await stack.enter_async_context(places)
            await client.run(record)
        on_done(record)

    async with asyncio.TaskGroup() as tasks:
        for record in records:
            tasks.create_task(one(record))


async def warm_up(
    client: LoadClient, jobs: Sequence[BenchRequest], max_concurrency: int | None
) -> None:
    """Send jobs beforehand.

    Raises:
        ConfigError: A request failed: the others would, too.
    """
    records = [Record(job, 0.0) for job in jobs]
    await send_all(client, records, max_concurrency, lambda record: None)
    for record in records:
        if record.error is not None:
            raise ConfigError(f"[bench] warm-up requests must succeed; got {record.error}")


def _starts(jobs: list[BenchRequest], options: BenchOptions) -> list[float]:
    timed = [job.start for job in jobs if job.start is not None]
    if timed:
        return timed
    arrivals = random.Random(f"arrivals {options.seed}")
    return arrival_times(len(jobs), options.request_rate, options.burstiness, arrivals)


def _tokenizer(options: BenchOptions) -> Tokenizer | None:
    if options.tokenizer is None:
        return None
    from quire.store.hub import resolve_model
    from quire.text.tokenizers.tokenizer import load_tokenizer

    return load_tokenizer(resolve_model(options.tokenizer))
